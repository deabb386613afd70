"""Exported models: a safetensors file with the state of a trained model, whose header says what the model is.

In the header, ``mlpip_bench`` is a JSON text with ``format``, the mark of what is written here; ``record``, a record of
the model's training without scores, whose key is the training's; and ``sha256`` of all bytes of the tensors.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mlpip_bench.records.migration import migrated
from mlpip_bench.records.record import SCHEMA, Record, Scores
from mlpip_bench.records.store import first_fault, parsed
from mlpip_bench.utils.errors import UserError, cut, message_in_one_line
from mlpip_bench.utils.files import read_file

ENDING = ".safetensors"
FORMAT = "mlpip_bench export 1"
"""It changes with the form of the file."""

_HEADER = "mlpip_bench"
_MOST = 2**33  # bytes of a file
_LONGEST = 2**26  # bytes of a header


@dataclass(frozen=True, slots=True)
class _Unscored(Record):
    """A record that may have no scores."""

    scores: tuple[Scores, ...]


_UNSCORED = TypeAdapter(_Unscored)


def header(record: Record, file: bytes) -> dict[str, str]:
    """What the header says.

    Args:
        record: of the model, without scores; its key is that of its training.
        file: the same tensors as safetensors, under any header.
    """
    said = {
        "format": FORMAT,
        "record": asdict(record),
        "sha256": hashlib.sha256(_parts(file)[1]).hexdigest(),
    }
    return {_HEADER: json.dumps(said, allow_nan=False, sort_keys=True)}


def read(path: Path) -> tuple[Record, bytes]:
    """What a model is, and the whole file, whose tensors nobody has looked at.

    Raises:
        UserError: it cannot be read, is none of these, is of another version, or is damaged.
    """
    try:
        content = read_file(path, _MOST)
        metadata, tensors = _parts(content)
        if not isinstance(text := metadata.get(_HEADER), str):
            raise weights_alone(path)
        said = parsed(text)
        if not isinstance(said, dict) or not isinstance(raw := said.get("record"), dict):
            raise ValueError("its header has no record of the model")
        if (form := said.get("format")) != FORMAT:
            raise ValueError(f"it is of the form {cut(str(form))!r}, and this version of the suite reads {FORMAT!r}")
        if said.get("sha256") != hashlib.sha256(tensors).hexdigest():
            raise ValueError("its tensors were changed after it was written")
        record = _UNSCORED.validate_json(json.dumps(migrated(raw, SCHEMA)), strict=True)
        if len(record.backbone.get("input_shape", ())) != 3:
            raise ValueError("its header lacks the shape of what the model takes")
        return record, content
    except OSError as error:
        raise UserError(f"an exported model must be readable; {path} is not: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # pydantic's and json's errors are ValueErrors
        wrong = first_fault(error) if isinstance(error, ValidationError) else message_in_one_line(error)
        raise UserError(
            f"an exported model must be whole, as export wrote it; {path} is not: {wrong}. Export it again."
        ) from error


def weights_alone(path: Path) -> UserError:
    """The error for a file of weights that is given where a model is wanted."""
    return UserError(
        f"a model says what it is: a record, an exported model, or a name of list models; {path} is none of them. Of "
        "weights alone the network is not known: if a run made them, name its record, records/BENCH/METHOD/NAME.json, "
        f"or export that; weights of another program go into a run, with --init {path},trained_on=TEXT and "
        "--evaluate-only or more training, and its record is the model."
    )


def _parts(file: bytes) -> tuple[dict[str, Any], memoryview]:
    """What the header says of other things than tensors, and the bytes of these."""
    length = int.from_bytes(file[:8], "little")
    if not 2 <= length <= min(_LONGEST, len(file) - 8):
        raise ValueError("it is no safetensors file, or is cut short")
    try:
        found: Any = parsed(file[8 : 8 + length].decode())
    except ValueError as error:
        raise ValueError("it is no safetensors file") from error
    if not isinstance(found, dict):
        raise ValueError("it is no safetensors file")
    metadata = found.get("__metadata__", {})
    return metadata if isinstance(metadata, dict) else {}, memoryview(file)[8 + length :]

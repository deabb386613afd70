"""Headers of exported models: what is written comes back, and nothing else is taken for one."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as tensors_of
from safetensors.numpy import save as as_file

from builders import make_record
from mlpip_bench.records import exports
from mlpip_bench.records.record import Record
from mlpip_bench.utils.errors import UserError

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((), dtype=np.float32)}
BACKBONE = {"name": "conv4", "spec": {}, "input_shape": [1, 28, 28]}
MADE = make_record(training={"iterations": 7, "history": [{"iteration": 3.0}]})
RECORD = dataclasses.replace(MADE, scores=(), backbone=BACKBONE)


def written(path: Path, tensors: dict[str, np.ndarray] = TENSORS, record: Record = RECORD) -> Path:
    path.write_bytes(as_file(tensors, exports.header(record, as_file(tensors))))
    return path


def with_header(path: Path, **changes: object) -> Path:
    """An export that says something else; None for a name that it lacks."""
    (said,) = exports.header(RECORD, as_file(TENSORS)).values()
    changed = {name: value for name, value in (json.loads(said) | changes).items() if value is not None}
    path.write_bytes(as_file(TENSORS, {"mlpip_bench": json.dumps(changed)}))
    return path


def test_what_is_written_comes_back(tmp_path):
    record, content = exports.read(written(tmp_path / "m.safetensors"))
    assert dataclasses.asdict(record) == dataclasses.asdict(RECORD)
    read = tensors_of(content)
    assert {name: tensor.tolist() for name, tensor in read.items()} == {n: t.tolist() for n, t in TENSORS.items()}


def test_the_same_model_is_the_same_file(tmp_path):
    one, other = (written(tmp_path / f"{name}.safetensors").read_bytes() for name in "ab")
    assert one == other


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no safetensors file, or is cut short"),
        (b"PK\x03\x04 a checkpoint of torch", "no safetensors file, or is cut short"),
        (b"\x02\0\0\0\0\0\0\0[]", "no safetensors file"),
        (b"\x05\0\0\0\0\0\0\0{nope", "no safetensors file"),
        (as_file(TENSORS, {"mlpip_bench": "{"}), "Expecting property name"),
        (as_file(TENSORS, {"mlpip_bench": "[]"}), "no record of the model"),
        (as_file(TENSORS, {"mlpip_bench": "{}"}), "no record of the model"),
        (as_file(TENSORS, {"mlpip_bench": '{"format": 1, "format": 2}'}), "'format' is there twice"),
        (as_file(TENSORS, {"mlpip_bench": "[" * 100_000}), "not: "),
    ],
)
def test_other_files_are_refused(content, says, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"an exported model must be whole, as export wrote it; .*m\.safetensors") as it:
        exports.read(tmp_path / "m.safetensors")
    assert says in str(it.value)
    assert "\n" not in str(it.value)


def test_weights_of_another_program_are_no_model(tmp_path):
    (tmp_path / "m.safetensors").write_bytes(as_file(TENSORS))
    with pytest.raises(UserError, match=r"a model says what it is.*m\.safetensors is none of them.*--init"):
        exports.read(tmp_path / "m.safetensors")


RAW = dataclasses.asdict(RECORD)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": "mlpip_bench export 2"}, "of the form 'mlpip_bench export 2', and this version of the suite reads"),
        ({"sha256": "0" * 64}, "its tensors were changed after it was written"),
        ({"record": None}, "its header has no record of the model"),
        ({"record": []}, "its header has no record of the model"),
        ({"record": RAW | {"schema": 99}}, "it is schema 99; this version reads schemas 1 to 2"),
        ({"record": RAW | {"seed": -1}}, "seed must be from 0"),
        ({"record": RAW | {"config": {}}}, "config"),
        ({"record": RAW | {"backbone": BACKBONE | {"input_shape": [28]}}}, "lacks the shape of what the model takes"),
        ({"record": RAW | {"more": 1}}, "more: Unexpected keyword argument"),
        ({"record": {name: value for name, value in RAW.items() if name != "data"}}, "data"),
    ],
)
def test_other_headers_are_refused(changes, says, tmp_path):
    with pytest.raises(UserError, match="an exported model must be whole") as refused:
        exports.read(with_header(tmp_path / "m.safetensors", **changes))
    assert says in str(refused.value)


def test_flipped_bits_and_missing_ends_are_found(tmp_path):
    path = written(tmp_path / "m.safetensors")
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:], whole[: len(whole) // 2], whole[:9]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="an exported model must be whole"):
            exports.read(path)


def test_what_is_no_file_is_refused_and_does_not_wait(tmp_path):
    places = [tmp_path / "none.safetensors", tmp_path]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.safetensors")
        places.append(tmp_path / "pipe.safetensors")
    for place in places:
        with pytest.raises(UserError, match=r"an exported model must be readable; .* is not: "):
            exports.read(place)

"""What a results folder holds that no table needs: outdated records, predictions of none, checkpoints, failures.

Checkpoints of unfinished trainings are no table's either, but somebody may want to go on from them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mlpip_bench import registry
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION, plugin_code
from mlpip_bench.execution.restoring import trial_of
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.locks import is_held
from mlpip_bench.utils.naming import bench_of

Kind = Literal["records", "predictions", "checkpoints", "failures", "unfinished"]
KINDS: tuple[Kind, ...] = get_args(Kind)
USUAL = tuple(kind for kind in KINDS if kind != "unfinished")
"""What goes where nothing is named."""


@dataclass(frozen=True)
class Leftover:
    """A file that can go.

    Attributes:
        kind: what it is.
        path: where.
        why: why it can go.
        size: bytes.
    """

    kind: Kind
    path: Path
    why: str
    size: int


def leftovers(folder: Path, kinds: Collection[Kind] = USUAL, *, trust_code: bool = False) -> list[Leftover]:
    """What can go; nothing that a run is at work on.

    Args:
        folder: of results.
        kinds: what is looked for.
        trust_code: whether code of somebody's own that records name may be run, without which nothing says which
            checkpoints are theirs; all that could be then stay.

    Raises:
        UserError: there is no such folder, or a record is damaged.
    """
    if not folder.is_dir():
        raise UserError(f"a results folder must exist; {folder} is not one.")
    found: list[Leftover] = []
    records = {path: store.load(path) for path in store.record_paths(folder)}
    if "records" in kinds or "predictions" in kinds:
        named: set[Path] = set()
        for path, record in records.items():
            if (why := outdated(record)) and "records" in kinds:
                found.append(Leftover("records", path, why, path.stat().st_size))
            elif record.predictions is not None:
                named.add(path.parent / record.predictions.file)
        if "predictions" in kinds:
            found += [
                Leftover("predictions", path, "no record that stays names it", path.stat().st_size)
                for path in _of_trials(folder, "records", ".npz")
                if path not in named
            ]
    if "checkpoints" in kinds or "unfinished" in kinds:
        left = [record for record in records.values() if record.own_code and not trust_code]
        others = {place for record in left for place in _places_of(record)}
        known = (record for record in records.values() if trust_code or not record.own_code)
        finished = set(_checkpoints_of(known, folder))
        for path in _of_trials(folder, "checkpoints", ".pt"):
            if path not in finished and path.parent.relative_to(folder / "checkpoints").as_posix() in others:
                continue
            kind: Kind = "checkpoints" if path in finished else "unfinished"
            why = "the model of its records" if path in finished else "no record has it: a training to go on with?"
            if kind in kinds:
                found.append(Leftover(kind, path, why, path.stat().st_size))
    if "failures" in kinds:
        for path in _of_trials(folder, "failures", ".json"):
            note = store.load_failure(path)
            found.append(Leftover("failures", path, note[1] if note else "it cannot be read", path.stat().st_size))
    return found


def _checkpoints_of(records: Iterable[Record], folder: Path) -> Iterator[Path]:
    """Where the models of records are, of those that the present code could have made."""
    for record in records:
        with contextlib.suppress(UserError, KeyError, TypeError, ValueError):  # other code, with other settings
            trial = trial_of(record)
            if trial.record_key(record.protocol) == record.key:
                yield trial.checkpoint(folder)
                if trial.pretraining is not None:
                    yield trial.pretraining_checkpoint(folder)


def _places_of(record: Record) -> tuple[str, str]:
    """Folders of the checkpoints of a record's model, and of its pre-training."""
    return f"{bench_of(record.bench)}/{record.method}", f"pretraining/{record.data['name']}"


def _of_trials(folder: Path, kind: str, suffix: str) -> Iterator[Path]:
    """Files of trials that no run is at work on; what is in their names beyond the trial's is not in its lock's."""
    for path in sorted((folder / kind).glob(f"*/*/*{suffix}")):
        trial = path.name.removeprefix("predictions-").partition(".")[0]
        if not is_held(folder / "locks" / path.relative_to(folder / kind).with_name(f"{trial}.lock")):
            yield path


def outdated(record: Record) -> str:
    """Why the present code would make a record again; empty where it would not."""
    code: dict[str, Any] = record.environment.get("code", {})
    if code.get("numbers") != NUMBERS_VERSION:
        made_by = code.get("numbers", record.environment.get("mlpip_bench", "an older version"))
        return f"made by numbers version {made_by}; the present one is {NUMBERS_VERSION}"
    for plugin, fingerprint in code.get("plugins", {}).items():
        kind, name = plugin.split(" ", 1)
        if name in registry.names(kind) and plugin_code(kind, name) != fingerprint:
            return f"{plugin} has changed since"
    return ""


def remove(found: Collection[Leftover]) -> None:
    """Remove files, and folders that are empty then.

    Raises:
        UserError: one cannot be removed.
    """
    for leftover in found:
        try:
            leftover.path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"{leftover.path} cannot be removed: {error.strerror}.") from error
        for folder in (leftover.path.parent, leftover.path.parent.parent):
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()

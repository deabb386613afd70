"""``import-scores``: scores that another program computed on the test tasks of a bench become records."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlpip_bench import registry
from mlpip_bench.datasets.arrays import names_in, read_npz
from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.evaluation.protocol import scores_of
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION, engine_code
from mlpip_bench.execution.frozen_tasks import FrozenTasks
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.records.schema import checked_name
from mlpip_bench.utils.encoding import printable
from mlpip_bench.utils.errors import UserError, cut, message_in_one_line
from mlpip_bench.utils.files import given_path, read_file, sha256_of

METRICS = {metric.name: metric for metric in (ACCURACY, NLL)}
"""What may be imported, each under the protocol of its name."""

_RANGES = {
    ACCURACY.name: (1.0, "a fraction from 0 to 1 (92 % is 0.92)"),
    NLL.name: (np.inf, "0 or more nats a query, and finite"),
}
"""The largest score of a task, and the rule in words."""

_ROUNDED = 5e-5
"""What an accuracy may differ from a number of right queries over all: it is written to four digits at least."""

_LONGEST, _LARGEST = 200, 2**53  # of texts and numbers in a record
_MOST = 2**26  # bytes of a file of scores: some ten million numbers


@dataclass(frozen=True)
class Made:
    """What a user says of how scores were made.

    Attributes:
        method: the name that they are shown under.
        backbone: the network.
        norm: how it normalizes.
        inductive: whether each query was predicted without sight of the others.
        parameters: how many numbers were trained.
        pretraining: what was trained before, and how; ``none`` for nothing.
        saw: the data that it was trained on.
        weights: the file of the trained network, whose digest is kept; None where there is none to name.
        seed: of the training.
        device: where they were computed.
    """

    method: str
    backbone: str
    norm: str
    inductive: bool
    parameters: int
    pretraining: str
    saw: str = ""
    weights: Path | None = None
    seed: int = 0
    device: str = "outside"

    def check(self) -> None:
        """Refuse what no record can hold, before anything is read.

        Raises:
            UserError: what is missing, or is no name.
        """
        for option, name in (("as", self.method), ("norm", self.norm), ("device", self.device)):
            try:
                checked_name(name)
            except ValueError as error:
                raise UserError(f"--{option}: {message_in_one_line(error)}.") from error
        if self.method in registry.method_names():
            raise UserError(
                f"scores that were computed elsewhere have a name of their own; {self.method} is a method that the "
                f"suite trains itself. Call them otherwise, for example --as {self.method}-elsewhere."
            )
        for option, text in (("backbone", self.backbone), ("pretraining", self.pretraining), ("saw", self.saw)):
            if not text.isprintable() or len(text) > _LONGEST or not (text.strip() or option == "saw"):
                raise UserError(
                    f"tables say what made a score, in a line of at most {_LONGEST} characters; got --{option} "
                    f"{cut(text)!r}. Say it in a few words."
                )
        for option, number in (("seed", self.seed), ("parameters", self.parameters)):
            if not 0 <= number <= _LARGEST:
                raise UserError(f"--{option} takes a whole number from 0 to {_LARGEST}; got {number}.")
        if self.trained_before != bool(self.saw.strip()):
            raise UserError(
                "what a network saw decides what its scores mean: --pretraining TEXT goes with --saw TEXT, the data, "
                f"and --pretraining none with nothing; got --pretraining {self.pretraining!r} and --saw {self.saw!r}."
            )
        if self.weights is not None and not self.trained_before:
            raise UserError(
                "--weights is the file of what --pretraining trained, which is none. Leave one of them out."
            )

    @property
    def trained_before(self) -> bool:
        """Whether there was anything."""
        return self.pretraining.strip() != "none"

    @property
    def training(self) -> dict[str, Any]:
        """What a record says of training: that the suite did none, and what was done elsewhere."""
        file = {} if self.weights is None else {"file": printable(self.weights.name), "sha256": digest_of(self.weights)}
        before = {"pretraining": {"what": self.pretraining, "saw": self.saw, **file}} if self.trained_before else {}
        return {"outside": True, "iterations": 0, "tasks_seen": 0, "seconds": 0.0, **before}


def digest_of(path: Path) -> str:
    """SHA-256 of a file that a user names.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return sha256_of(path)
    except OSError as error:
        raise UserError(f"a file that is named must be readable; {path} is not: {error.strerror or error}.") from error


def read_scores(path: Path) -> dict[str, list[float]]:
    """Scores of single tasks by metric, in the order of the tasks.

    Args:
        path: a csv file with the columns ``accuracy``, ``nll`` or both, a row a task, in order or with a column
            ``task`` of numbers from 0; or an npz file with such arrays.

    Raises:
        UserError: it cannot be read, or has something else.
    """
    try:
        if path.suffix.lower() == ".npz":
            columns = _of_npz(path)
        else:
            columns = _of_csv(path, read_file(path, _MOST).decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or message_in_one_line(error)
        raise UserError(f"scores are a csv file in UTF-8, or an npz file; {path} is not readable: {reason}.") from error
    order = columns.pop("task", None)
    tasks = {len(values) for values in columns.values()}
    if not columns or columns.keys() - METRICS.keys() or len(tasks) != 1:
        raise UserError(
            f"scores are {' and '.join(METRICS)}, one of them or both, a number a task, with the numbers of the tasks "
            f"as task if they are in another order; {path} has {', '.join(columns) or 'none'}. Name its columns so."
        )
    if order is None:
        return columns
    if sorted(order) != list(range(*tasks)):
        raise UserError(f"the column task of {path} must have each of 0 to {max(tasks) - 1} once; it has not.")
    places = np.argsort(order)
    return {name: [values[place] for place in places] for name, values in columns.items()}


def _of_csv(path: Path, text: str) -> dict[str, list[float]]:
    head, *rows = [row for row in csv.reader(io.StringIO(text)) if row] or [[]]
    if ";" in (first := ",".join(head)) or "\t" in first:
        raise UserError(
            "the values of a row are separated by commas, and numbers have a point; "
            f"{path} begins with {first[:80]!r}. Write it so."
        )
    names = [name.strip() for name in head]
    if len(set(names)) < len(names):
        raise UserError(f"each column has a name of its own; {path} has {', '.join(names)}.")
    columns: dict[str, list[float]] = {name: [] for name in names}
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise UserError(
                f"each row has a value a column, {len(names)}, with commas between values alone; row {number} of "
                f"{path} has {len(row)}."
            )
        for name, value in zip(names, row, strict=True):
            try:
                columns[name].append(float(value))
            except ValueError:
                raise UserError(f"scores are numbers; {name} in row {number} of {path} is {value[:50]!r}.") from None
    return columns


def _of_npz(path: Path) -> dict[str, list[float]]:
    names = names_in(path)
    arrays = read_npz(path, names, _MOST)
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "fiu":
            raise UserError(f"scores are one number a task; {name} of {path} is {array.dtype} {array.shape}.")
    return {name: array.astype(float).tolist() for name, array in arrays.items()}


def check_scores(scores: Mapping[str, Sequence[float]], frozen: FrozenTasks, source: Path) -> None:
    """Refuse what cannot be scores of the test tasks.

    Raises:
        UserError: another number of them, one that is not finite, or out of range; or an accuracy that no number of
            right queries gives.
    """
    tasks, queries = frozen.trial.plan.test_tasks, frozen.trial.bench.way * frozen.trial.queries
    for name, values in scores.items():
        if len(values) != tasks:
            raise UserError(
                f"there must be one {name} for each of the {tasks} test tasks; {source} has {len(values)}. Test on "
                "all, or pass the options of the export (--test-tasks)."
            )
        most, rule = _RANGES[name]
        for task, value in enumerate(values):
            if not (np.isfinite(value) and 0 <= value <= most):
                raise UserError(f"{name} is {rule}; that of task {task} in {source} is {value:g}.")
    for task, value in enumerate(scores.get(ACCURACY.name, ())):
        right = round(value * queries)
        if abs(value - right / queries) > _ROUNDED:
            raise UserError(
                f"{ACCURACY.name} is the number of right queries over the {queries} of a task, to four digits at "
                f"least; that of task {task} in {source} is {value:g}, and the nearest is {right}/{queries} = "
                f"{right / queries:.4f}. Write it unrounded, of all queries of the task."
            )


def tasks_in(given: str) -> int | None:
    """How many tasks the file of ``--tasks`` has; None where that is a digest, or no file.

    Raises:
        UserError: it is no file of tasks.
    """
    if re.fullmatch("[0-9a-fA-F]{64}", given.strip()) or not (path := given_path(given)).is_file():
        return None
    return len(read_npz(path, ["classes"], _MOST)["classes"])


def check_tasks(frozen: FrozenTasks, given: str) -> None:
    """Refuse scores of other tasks.

    Args:
        frozen: the test tasks of the bench, as the options have them.
        given: the SHA-256 of the tasks that the scores are of, or the path of that very file.

    Raises:
        UserError: they are others.
    """
    wanted = frozen.sha256
    found = given.strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", found):
        path = given_path(given)
        if not path.exists():
            raise UserError(
                "--tasks takes the SHA-256 of the tasks that were tested on, 64 hexadecimal digits, or the path of "
                f"their tasks.npz; got {cut(given)!r}. data export-split has written both."
            )
        found = digest_of(path)
    if found != wanted:
        trial = frozen.trial
        raise UserError(
            f"scores must be of the bench's own test tasks; those of {trial.measured_as} with {trial.queries} queries, "
            f"{trial.plan.test_tasks} tasks and {trial.data.name} ({trial.data.source}) have the SHA-256 {wanted}, and "
            f"--tasks has {found}. Pass the options of data export-split (--queries, --test-tasks, --data, "
            "--data-root), or test on its tasks."
        )


def records_of(frozen: FrozenTasks, made: Made, scores: Mapping[str, Sequence[float]], source: Path) -> list[Record]:
    """A record for each metric.

    Args:
        frozen: the test tasks.
        made: how the scores were made.
        scores: by metric.
        source: the file that they came in.
    """
    trial = frozen.trial
    of_test = {name: trial.config[name] for name in ("way", "shot", "queries", "query_concentration", "preset")
               if name in trial.config}  # fmt: skip
    facts: dict[str, Any] = {
        "bench": trial.measured_as,
        "method": made.method,
        "seed": made.seed,
        "device": made.device,
        "inductive": made.inductive,
        "config": {**of_test, "norm": made.norm, "iterations": 0, "tasks_per_batch": 1, "settings": {}},
        "data": trial.data_facts,
        "backbone": {"name": made.backbone, "spec": {}, "input_shape": list(trial.backbone.input_shape)},
        "parameters": made.parameters,
        "training": made.training,
    }
    came = {"tasks": frozen.sha256, "scores": {"file": printable(source.name), "sha256": digest_of(source)}}
    return [
        Record(
            key=hashlib.sha256(json.dumps([NUMBERS_VERSION, name, facts], sort_keys=True).encode()).hexdigest(),
            protocol=name,
            scores=(scores_of(METRICS[name], frozen.stream, values),),
            seconds=0.0,
            environment={"code": {"numbers": NUMBERS_VERSION, "build": engine_code()}, **came},
            **facts,
        )
        for name, values in scores.items()
    ]


def save(records: Sequence[Record], results: Path, *, replace: bool) -> Iterator[Path]:
    """Write records, unless others are there already.

    Raises:
        UserError: there is one with other scores, and it is not to be replaced.
    """
    for record in records:
        path = results / "records" / record.filename
        if path.exists() and not replace and _values(store.load(path)) != _values(record):
            raise UserError(
                f"a record is written once; {path} has other {record.protocol} of {record.method}, seed {record.seed}. "
                "Pass --replace, or another --as or --seed."
            )
    for record in records:
        yield store.save(record, results)


def _values(record: Record) -> list[float]:
    return list(record.scores[0].per_task)

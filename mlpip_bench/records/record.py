"""A record: one trial measured by one protocol, with everything that made it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from pydantic import ConfigDict, Field

from mlpip_bench.records import schema as schemas
from mlpip_bench.records.schema import Condition, Count, Name, Number, Size, Text
from mlpip_bench.utils.places import is_place

SCHEMA = 2
"""Version of the record format; a record of another version is an error, not a guess."""

TRAINING_SERIES = ("history", "history_seconds")
"""What of a record's training is a list with an entry a validation."""

LARGEST_SEED = 2**63
"""Seeds are below it, so that tables hold them as 64-bit integers."""

_STRICT = ConfigDict(extra="forbid")
Better: TypeAlias = Literal["higher", "lower", "neither"]
Model: TypeAlias = Literal["best", "last"]
Over: TypeAlias = Literal["tasks", "repeats"]


@dataclass(frozen=True, slots=True)
class Scores:
    """Per-task scores of one metric under one condition of evaluation.

    Attributes:
        metric: name of the metric.
        unit: its unit.
        better: ``higher``, ``lower``, or ``neither`` where a number has a right value or only tells.
        way, shot, queries: the test condition; queries are per class.
        model: ``best`` (on validation) or ``last`` (of training).
        per_task: one score a test task, in the order of the bench's fixed task stream; or one a repeat.
        condition: what else of the test condition differs from the bench's own, by name; for example
            ``{"asked": "one at a time"}`` or ``{"steps": 10}``. Scores of unlike conditions never mix.
        detail: what a figure of the metric needs beyond the scores, by name: numbers, or a PNG file in base64.
        over: what the scores are one of each for: ``tasks``, or ``repeats`` of one measurement.
        chosen_by: the metric of validation that chose the best model; empty where no choice was recorded.
    """

    __pydantic_config__: ClassVar = _STRICT

    metric: Name
    unit: Text
    better: Better
    way: Size
    shot: Size
    queries: Count
    model: Model
    per_task: Sequence[Number]
    condition: Mapping[Text, Text | Condition] = field(default_factory=dict)
    detail: Mapping[Text, tuple[Number, ...] | str] = field(default_factory=dict)
    over: Over = "tasks"
    chosen_by: str = ""

    def __post_init__(self) -> None:
        if not len(self.per_task) or not np.isfinite(self.per_task).all():
            raise ValueError(
                f"{self.metric}: scores must be finite and at least one; the first are {self.per_task[:3]}"
            )
        for name, words in (("better", Better), ("model", Model), ("over", Over)):
            if (word := getattr(self, name)) not in get_args(words):
                raise ValueError(f"{self.metric}: {name} must be one of {', '.join(get_args(words))}; it is {word!r}")


@dataclass(frozen=True)
class PredictionsFile:
    """The file of predictions next to a record.

    Attributes:
        file: its name, which ends with the first digits of its digest.
        sha256: digest of its bytes, in hexadecimal.
    """

    __pydantic_config__: ClassVar = _STRICT

    file: str
    sha256: str

    def __post_init__(self) -> None:
        name = re.fullmatch(r"predictions-seed\d{1,19}-[0-9a-f]{12}\.([0-9a-f]{12})\.npz", self.file)
        if name is None or not re.fullmatch("[0-9a-f]{64}", self.sha256) or name[1] != self.sha256[:12]:
            raise ValueError(
                "a file of predictions has the name predictions-seedN-KEY.DIGEST.npz, with the first digits of its "
                f"SHA-256; got {self.file[:80]!r} of {self.sha256[:80]!r}"
            )


@dataclass(frozen=True, slots=True)
class Record:
    """One trial, bench x method x seed x protocol, with everything that made it.

    Attributes:
        key: hash of all that decides the numbers: configuration, data fingerprint, seed, version.
        config: the resolved configuration: ``norm``, ``preset``, ``iterations``, ``settings`` and so on.
        data: ``name``, ``source``, ``fingerprint`` and ``options`` of the data set; ``training_classes`` and
            ``test_classes``, how many the tasks of each are drawn from, where there are classes.
        backbone: ``name``, ``spec`` (all settings) and ``input_shape`` of the network from inputs to features.
        inductive: whether each query was predicted without sight of the others.
        device: ``cpu`` or ``cuda``; of imported scores what their user says, else ``outside``.
        training: ``iterations``, ``tasks_seen``, ``seconds``, ``best_iteration``, ``history``, and ``chosen``, the
            iteration that each metric of validation chose; ``history_seconds``, the time until each entry of the
            history, None where that was not noted; ``swept`` names settings that a sweep varied; ``tuning``
            says what a tuned trial drew and chose, and ``default`` values.
        environment: versions, machine, threads.
        seconds: wall-clock seconds of the evaluation.
        predictions: the file of its model's predictions; None where they were not kept.
    """

    __pydantic_config__: ClassVar = _STRICT

    key: Name
    bench: Name
    method: Name
    protocol: Name
    seed: int
    device: Name
    inductive: bool
    config: schemas.Config
    data: schemas.Data
    backbone: schemas.BackboneFacts
    scores: Annotated[tuple[Scores, ...], Field(min_length=1)]
    parameters: Count
    training: schemas.Training
    seconds: schemas.Seconds
    environment: schemas.Environment
    schema: int = field(default=SCHEMA)
    predictions: PredictionsFile | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < LARGEST_SEED:
            raise ValueError(f"seed must be from 0 to {LARGEST_SEED - 1}; got {self.seed}")
        tuning = self.training.get("tuning", {})
        if not isinstance(tuning, Mapping) or not isinstance(tuning.get("default", {}), Mapping):
            raise ValueError("training.tuning must have default settings by name")

    @property
    def filename(self) -> str:
        """Where the record lies below ``records/``."""
        return _filename(self.bench, self.method, self.protocol, self.seed, self.key)

    @property
    def own_code(self) -> list[str]:
        """Places of code of somebody's own, ``file.py:name``, that is run where its model is built again."""
        code = self.environment.get("code", {})
        named = (str(self.backbone["name"]), code.get("place", ""), *code.get("plugins", {}))
        return [name for name in named if is_place(name)]


def _filename(bench: str, method: str, protocol: str, seed: int, key: str) -> str:
    return f"{bench}/{method}/{protocol}-seed{seed}-{key[:12]}.json"


def path_of(results: Path, bench: str, method: str, protocol: str, seed: int, key: str) -> Path:
    """Where a record of a results folder lies, or would lie."""
    return results / "records" / _filename(bench, method, protocol, seed, key)


def facts(record: Record, score: Scores) -> dict[str, object]:
    """All that tells a measured configuration from others, by name; its seed is no part of it.

    Nor is what a tuned trial has chosen, which differs between seeds.
    """
    chosen = record.training.get("tuning", {}).get("default", ())
    known = _facts(record, score)
    names = {name if name in known else f"settings.{name}" for name in chosen}
    return {**known, **dict.fromkeys(sorted(names), "tuned")}


_GROUPS = ("settings", "protocol_settings", "pretraining", "init", "seed")
"""Of a configuration: what has names of its own among the facts, and the seed, which is none."""


_OF_TRAINING = ("tasks_per_batch", "train_queries", "learning_rate", "halve_every", "validate_every")
"""Of a configuration: what means nothing where nothing is trained."""


def _facts(record: Record, score: Scores) -> dict[str, object]:
    before = record.training.get("pretraining", {})
    left_out = _GROUPS + (() if record.config["iterations"] else _OF_TRAINING)
    return {
        **{name: value for name, value in record.config.items() if name not in left_out},
        **{f"settings.{name}": value for name, value in record.config.get("settings", {}).items()},
        **{f"protocol.{name}": value for name, value in record.config.get("protocol_settings", {}).items()},
        **{f"pretraining.{name}": value for name, value in record.config.get("pretraining", {}).items()},
        **{f"pretrained.{name}": before[name] for name in ("what", "saw") if name in before},
        **({"pretrained.sha256": before["sha256"][:12]} if "sha256" in before else {}),
        **{f"data.{name}": value for name, value in record.data.get("options", {}).items()},
        **_facts_of_test_data(record),
        "backbone": record.backbone["name"],
        **{f"backbone.{name}": value for name, value in record.backbone["spec"].items()},
        "data.name": record.data.get("name", ""),
        "data.fingerprint": record.data["fingerprint"][:12],
        **{name: getattr(record, name) for name in ("method", "device", "protocol")},
        "source": record.data["source"],
        "inductive": "yes" if record.inductive else "no",
        "queries": score.queries,
        "test_tasks": len(score.per_task),
        **code_facts(record),
    }


def _facts_of_test_data(record: Record) -> dict[str, object]:
    if (other := record.data.get("test_on")) is None:
        return {}
    return {
        "data.test_on": other["family"],
        "data.test_on.fingerprint": other["fingerprint"][:12],
        **{f"data.test_on.{name}": value for name, value in other["options"].items()},
    }


def code_facts(record: Record) -> dict[str, object]:
    """What tells code that made a record from other code: the suite's numbers version, and other packages' plugins."""
    code = record.environment.get("code", {})
    return {
        "numbers": code.get("numbers", record.environment.get("mlpip_bench", "")),
        **{f"{plugin.partition(' ')[0]} code": digest for plugin, digest in code.get("plugins", {}).items()},
    }


def conformance(record: Record) -> str:
    """What the conformance suite found of the method of another package, in words; empty where it found no fault.

    Methods of the suite are held to it by its tests, and their records say nothing of it.
    """
    code = record.environment.get("code", {})
    if not any(plugin.startswith("method ") for plugin in code.get("plugins", {})):
        return ""
    if "checks" not in code:
        return "not checked"
    failed = len(code["checks"].get("failed", ()))
    return f"fails {failed} check{'s' if failed > 1 else ''}" if failed else ""

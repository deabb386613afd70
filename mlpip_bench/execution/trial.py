"""A trial: one bench x method x settings x seed, fully resolved."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mlpip_bench import registry
from mlpip_bench.benches.family import PRESETS, TEST_QUERIES, TaskFamily, TaskSource
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.evaluation.protocol import EvalProtocol, MeasurementRule
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION
from mlpip_bench.inference.method import Method, Problem, TrainingPlan
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.inference.search import Space, drawn
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.nn.weights import Outside
from mlpip_bench.records.record import path_of
from mlpip_bench.tasks.stream import Stream, WithUnequalQueries
from mlpip_bench.utils.choices import DEFAULT_NORM, NormMode
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.naming import with_test_data
from mlpip_bench.utils.numerics import Numerics
from mlpip_bench.utils.seeding import seed_from
from mlpip_bench.utils.settings import as_json, key_of

_ONLY_TEST = ("queries", "query_concentration", "recalibrated", "test_tasks", "compile")
"""What the trained model knows nothing of."""


@dataclass(frozen=True, eq=False)
class TestedOn:
    """Other data that a trained model is tested on.

    Attributes:
        bench: of the other task family, with the way and shots of the trial's own.
        family, data: what its test tasks are made of.
    """

    bench: BenchSpec
    family: TaskFamily
    data: TaskSource

    @property
    def facts(self) -> dict[str, Any]:
        """What a record says of it."""
        return {"family": self.bench.family, **_facts_of(self.family, self.data)}


def _facts_of(family: TaskFamily, data: TaskSource) -> dict[str, Any]:
    return {
        "name": data.name,
        "source": data.source,
        "fingerprint": data.fingerprint,
        "options": {**data.options, **family.task_options},
    }


@dataclass(frozen=True)
class Tuning:
    """How a tuned trial chooses its settings.

    Attributes:
        draws: how many settings are tried, the defaults among them.
        select: metric of the validation tasks that chooses.
        space: what is drawn from.
    """

    draws: int
    select: str
    space: Space

    @property
    def in_words(self) -> str:
        """For tables."""
        return f"{self.draws} draws by validation {self.select}"

    def as_json(self) -> dict[str, Any]:
        """All that decides which settings are tried and chosen."""
        return {
            "draws": self.draws,
            "select": self.select,
            "space": {name: str(choice) for name, choice in sorted(self.space.items())},
        }


@dataclass(frozen=True, eq=False)
class Trial:
    """One bench x method x settings x seed, fully resolved.

    Attributes:
        bench, family, method, seed: which trial.
        plugin: the method's class.
        swept: its own of the settings that a sweep tries.
        plan, settings, norm, backbone, preset, queries, query_concentration: how it is trained and tested.
        protocols: what is measured, of what was asked for: those that apply to its bench and method.
        protocol_settings: of the protocols whose settings are not all at their defaults.
        code: fingerprints of code that does not ship with the suite, by plugin (``method versa``).
        data: what its tasks are made of.
        device: where it runs.
        numerics: how numbers are computed there.
        tuning: for the tuned companion of a trial, how its settings are chosen; plan and settings are its draw 0.
        pretraining: how its backbone is trained before, in a training that trials share; None where it is not.
        init: the file of parameters that it starts from; None for initial ones.
        recalibrated: whether what is measured is its model with a temperature that is fitted on validation.
        tested_on: what the test tasks are of, where it is not what the training tasks are of.
        training_classes: how many classes its training tasks are cut out of; None where there are none.
        note: what else its title says.
    """

    bench: BenchSpec
    family: TaskFamily
    method: str
    plugin: type[Method[Any]]
    seed: int
    swept: Mapping[str, Any]
    plan: TrainingPlan
    settings: Any
    norm: NormMode
    backbone: BackboneSpec
    preset: str
    queries: int
    protocols: tuple[str, ...]
    code: Mapping[str, str]
    data: TaskSource
    device: torch.device
    numerics: Numerics
    tuning: Tuning | None = None
    query_concentration: float | None = None
    pretraining: Pretraining | None = None
    init: Outside | None = None
    recalibrated: bool = False
    tested_on: TestedOn | None = None
    training_classes: int | None = None
    protocol_settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def title(self) -> str:
        """For messages."""
        settings = "".join(f" {name}={value}" for name, value in self.swept.items())
        title = f"{self.measured_as} {self.method}{settings} {self.norm} seed {self.seed}{self.note}"
        title += f" tuned over {self.tuning.in_words}" if self.tuning else ""
        return f"{title} recalibrated" if self.recalibrated else title

    @property
    def protocols_of_one_model(self) -> tuple[str, ...]:
        """Those that measure a model alone, and not several side by side."""
        return tuple(name for name in self.protocols if issubclass(registry.protocol(name), EvalProtocol))

    @property
    def measured_as(self) -> str:
        """The bench of its records: its own, or with the data that it is tested on."""
        return with_test_data(self.bench.name, self.tested_on.bench.family) if self.tested_on else self.bench.name

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration as JSON values."""
        return {
            "way": self.bench.way,
            "shot": self.bench.shot,
            "queries": self.queries,
            **self._of_test_alone,
            "norm": self.norm,
            "preset": self.preset,
            **{name: value for name, value in as_json(self.plan).items() if name not in self.plan.OPTIONAL},
            **key_of(self.plan),
            **key_of(self.numerics),
            "settings": as_json(self.settings),
            **({"tuned": self.tuning.in_words} if self.tuning else {}),
            **({"pretraining": as_json(self.pretraining)} if self.pretraining else {}),
            **({"init": as_json(self.init)} if self.init else {}),
        }

    @property
    def data_facts(self) -> dict[str, Any]:
        """What a record says of the data."""
        test_family, test_data = self.family, self.data
        found = _facts_of(self.family, self.data)
        if other := self.tested_on:
            test_family, test_data = other.family, other.data
            found["test_on"] = other.facts
        counts = {"training_classes": self.training_classes, "test_classes": test_family.test_classes(test_data)}
        return found | {name: count for name, count in counts.items() if count is not None}

    @property
    def _of_test_alone(self) -> dict[str, Any]:
        """What is left out at its default, and training knows nothing of."""
        unequal = {} if self.query_concentration is None else {"query_concentration": self.query_concentration}
        return unequal | ({"recalibrated": "by temperature"} if self.recalibrated else {})

    @property
    def outside(self) -> Mapping[str, str]:
        """What a record says of parameters that were trained somewhere else; nothing where none were."""
        found = self.init or self.backbone.outside
        return self.plugin.outside if found is None else found.facts

    @property
    def backbone_facts(self) -> dict[str, Any]:
        """What a record says of the backbone."""
        chosen = self.backbone
        return {"name": chosen.name, "spec": chosen.spec, "input_shape": list(chosen.input_shape)}

    @functools.cached_property
    def key(self) -> str:
        """Hash of all that decides its numbers, whatever is measured."""
        return self._hash(self._of_test)

    @functools.cached_property
    def training_key(self) -> str:
        """Hash of all that decides the trained model; what only the test sees is left out."""
        return self._hash({}, leave_out=_ONLY_TEST)

    @functools.cached_property
    def pretraining_key(self) -> str:
        """Hash of all that decides the network of its pre-training, which methods, seeds and benches may share."""
        parts = {name: self._parts[name] for name in ("numbers", "device", "data", "task options")}
        parts |= {
            "backbone": [self.backbone.name, key_of(self.backbone.unfrozen.settings)],
            "pretraining": key_of(self.pretraining),
            "numerics": key_of(self.numerics),
            "code": {plugin: code for plugin, code in self._parts["code"].items() if not plugin.startswith("method ")},
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def record_key(self, protocol: str) -> str:
        """Hash of all that decides a record."""
        code, settings = self.code.get(f"protocol {protocol}"), self.protocol_settings.get(protocol)
        parts = {
            "protocol": protocol,
            **({"protocol code": code} if code else {}),
            **({"protocol settings": key_of(settings)} if settings else {}),
        }
        return self._hash({**self._of_test, **parts})

    def protocol(self, name: str) -> MeasurementRule:
        """One of the protocols, with its settings."""
        return registry.protocol(name)(self.protocol_settings.get(name))

    @property
    def _of_test(self) -> dict[str, Any]:
        """What of its key training knows nothing of."""
        if self.tested_on is None:
            return {}
        code = self.code.get(self._test_plugin)
        return {"tested on": self.tested_on.facts, **({"tested on code": code} if code else {})}

    @property
    def _test_plugin(self) -> str:
        return f"bench {self.tested_on.bench.family}" if self.tested_on else ""

    def _hash(self, more: Mapping[str, Any], leave_out: tuple[str, ...] = ()) -> str:
        parts = {**self._parts, **more}
        parts["config"] = {name: value for name, value in parts["config"].items() if name not in leave_out}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @functools.cached_property
    def _parts(self) -> dict[str, Any]:
        """All that decides and is not at its default, so that a new setting leaves the keys of old records as they are.

        Of several keys of a trial it is the longer part of the work.
        """
        changed_options = key_of(self.family.options)
        choices = {
            "norm": (self.norm, DEFAULT_NORM),
            "queries": (self.queries, TEST_QUERIES),
            "preset": (self.preset, PRESETS[0]),
        }
        config = {
            **{name: value for name, (value, default) in choices.items() if value != default},
            **self._of_test_alone,
            **key_of(self.plan),
            **key_of(self.numerics),
        }
        return {
            "numbers": NUMBERS_VERSION,
            "bench": self.bench.name,
            "method": self.method,
            "seed": self.seed,
            "device": self.device.type,
            "backbone": [self.backbone.name, key_of(self.backbone.settings)],
            "data": [self.data.name, self.data.source, self.data.fingerprint],
            "task options": {n: v for n, v in self.family.task_options.items() if n in changed_options},
            "config": config,
            "settings": key_of(self.settings),
            "code": {
                plugin: code
                for plugin, code in self.code.items()
                if not plugin.startswith("protocol ") and plugin != self._test_plugin
            },
            **({"tuned": self.tuning.as_json()} if self.tuning else {}),
            **({"pretraining": key_of(self.pretraining)} if self.pretraining else {}),
            **({"init": self.init.sha256} if self.init else {}),
            **({"outside": dict(self.plugin.outside)} if self.plugin.outside else {}),
        }

    def draw(self, number: int) -> Trial:
        """One of the trials that a tuned one chooses from; nothing is measured of it."""
        assert self.tuning is not None
        values = drawn(self.tuning.space, self.seed, number)
        of_plan = {name: value for name, value in values.items() if hasattr(self.plan, name)}
        of_method = {name: value for name, value in values.items() if name not in of_plan}
        return dataclasses.replace(
            self,
            plan=dataclasses.replace(self.plan, **of_plan),
            settings=dataclasses.replace(self.settings, **of_method),
            protocols=(),
            tuning=None,
            note=f" draw {number} of {self.tuning.draws}",
        )

    def path(self, results_folder: Path, kind: str, suffix: str) -> Path:
        """Where a file of this trial lies: its checkpoint, failure or lock."""
        name = f"seed{self.seed}-{self.training_key[:12]}{suffix}"
        return results_folder / kind / self.bench.name / self.method / name

    def checkpoint(self, results_folder: Path) -> Path:
        """Where its training state lies."""
        return self.path(results_folder, "checkpoints", ".pt")

    def pretraining_checkpoint(self, results_folder: Path) -> Path:
        """Where the training state of its pre-training lies."""
        return self._of_pretraining(results_folder, "checkpoints", ".pt")

    def pretraining_lock(self, results_folder: Path) -> Path:
        """Held by the trial that is at work on it."""
        return self._of_pretraining(results_folder, "locks", ".lock")

    def _of_pretraining(self, results_folder: Path, kind: str, suffix: str) -> Path:
        return results_folder / kind / "pretraining" / self.data.name / f"seed0-{self.pretraining_key[:12]}{suffix}"

    def record_path(self, results_folder: Path, protocol: str) -> Path:
        """Where the record of a protocol lies."""
        key = self.record_key(protocol)
        return path_of(results_folder, self.measured_as, self.method, protocol, self.seed, key)

    @functools.cached_property
    def problem(self) -> Problem:
        """What its method is built for."""
        family = self.family
        return Problem(
            self.backbone,
            self.norm,
            self.bench.way,
            family.kind,
            family.noise_std,
            family.inputs,
            family.kernel,
            self.training_classes,
        )

    def streams(self) -> dict[str, Stream]:
        """Its task streams by split.

        Raises:
            UserError: tasks that the data cannot give.
        """
        device, other = self.device, self.tested_on
        queries = 1 if other else self.queries  # nothing is tested there
        streams = self.family.streams(self.bench, self.data, self.plan, queries=queries, seed=self.seed, device=device)
        if other:
            plan = dataclasses.replace(self.plan, train_queries=1)  # nothing is trained there
            streams["test"] = other.family.streams(
                other.bench, other.data, plan, queries=self.queries, seed=self.seed, device=device
            )["test"]
        if self.query_concentration is not None:
            test = streams["test"]
            if not isinstance(test, WithUnequalQueries):
                raise UserError(
                    f"--query-concentration is for tasks that are drawn from classes of images; those of "
                    f"{self.bench.name} are not. Leave it out."
                )
            streams["test"] = test.unequal(self.query_concentration)
        return streams

    def build_method(self) -> Method[Any]:
        """Its method with seeded initial parameters, on its device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_from("initialisation", self.seed))
            return self.plugin(self.problem, self.settings).to(self.device)

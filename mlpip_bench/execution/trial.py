"""A trial, bench x method x settings x seed, fully resolved."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import mlpip_bench
from mlpip_bench import registry
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.benches.streams import TaskSource, angle_coordinates, task_streams
from mlpip_bench.inference.method import Method, Problem, TrainingPlan
from mlpip_bench.nn.normalization import NormMode
from mlpip_bench.records.record import path_of
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.utils.device import Numerics
from mlpip_bench.utils.seeding import seed_from


@dataclass(frozen=True, eq=False)
class Trial:
    """One bench x method x setting x seed, fully resolved.

    Attributes:
        bench, method, seed: which trial.
        swept: its own of the settings that a sweep tries.
        plan, settings, norm, preset, queries: how it is trained and tested.
        protocols: what is measured, of what was asked for: those that apply to its bench and method, each with the
            fingerprint of its code.
        method_code: fingerprint of the method's code.
        dataset: where its tasks come from.
        device: where it runs.
        numerics: how numbers are computed there.
    """

    bench: BenchSpec
    method: str
    seed: int
    swept: Mapping[str, Any]
    plan: TrainingPlan
    settings: Any
    norm: NormMode
    preset: str
    queries: int
    protocols: Mapping[str, str]
    method_code: str
    dataset: TaskSource
    device: torch.device
    numerics: Numerics

    @property
    def title(self) -> str:
        """For messages."""
        settings = "".join(f" {name}={value}" for name, value in self.swept.items())
        return f"{self.bench.name} {self.method}{settings} {self.norm} seed {self.seed}"

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration as JSON values."""
        config = {
            "way": self.bench.way,
            "shot": self.bench.shot,
            "queries": self.queries,
            "norm": self.norm,
            "preset": self.preset,
            **dataclasses.asdict(self.plan),
            **{k: v for k, v in dataclasses.asdict(self.numerics).items() if v != getattr(Numerics(), k)},
            "settings": dataclasses.asdict(self.settings),
        }
        plain: dict[str, Any] = json.loads(json.dumps(config))
        return plain

    @property
    def data(self) -> dict[str, Any]:
        """What a record says of the data."""
        return {
            "name": self.dataset.name,
            "source": self.dataset.source,
            "fingerprint": self.dataset.fingerprint,
            "options": dict(self.dataset.options),
        }

    @functools.cached_property
    def key(self) -> str:
        """Hash of all that decides its numbers, whatever is measured."""
        return self._hash(self.config, self.code())

    @functools.cached_property
    def training_key(self) -> str:
        """Hash of all that decides the trained model; what only the test sees is left out."""
        config = {k: v for k, v in self.config.items() if k not in ("queries", "test_tasks", "compile")}
        return self._hash(config, self.code())

    def record_key(self, protocol: str) -> str:
        """Hash of all that decides a record."""
        return self._hash({**self.config, "protocol": protocol}, self.code(protocol))

    def code(self, protocol: str | None = None) -> dict[str, str]:
        """Version of the engine, and fingerprints of the code of the method and of one of its protocols."""
        code = {"engine": mlpip_bench.__version__, "method": self.method_code}
        return code | {"protocol": self.protocols[protocol]} if protocol else code

    def _hash(self, config: Mapping[str, Any], code: Mapping[str, str]) -> str:
        parts = [self.bench.name, self.method, self.seed, self.device.type, self.data, config, code]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def path(self, results_folder: Path, kind: str, suffix: str) -> Path:
        """Where a file of this trial lies: its checkpoint, failure or lock."""
        name = f"seed{self.seed}-{self.training_key[:12]}{suffix}"
        return results_folder / kind / self.bench.name / self.method / name

    def checkpoint(self, results_folder: Path) -> Path:
        """Where its training state lies."""
        return self.path(results_folder, "checkpoints", ".pt")

    def record_path(self, results_folder: Path, protocol: str) -> Path:
        """Where the record of a protocol lies."""
        key = self.record_key(protocol)
        return path_of(results_folder, self.bench.name, self.method, protocol, self.seed, key)


def streams_of(trial: Trial, device: torch.device) -> dict[str, Stream]:
    """The task streams of a trial by split."""
    return task_streams(trial.bench, trial.dataset, trial.plan, queries=trial.queries, seed=trial.seed, device=device)


def build_method(trial: Trial) -> Method[Any]:
    """A trial's method with its seeded initial parameters, on its device."""
    plugin = registry.method(trial.method)
    bench = trial.bench
    inputs = angle_coordinates(trial.dataset)
    problem = Problem(bench.extractor, trial.norm, bench.way, bench.data.kind, bench.data.noise_std, inputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_from("initialisation", trial.seed))
        return plugin(problem, trial.settings).to(trial.device)

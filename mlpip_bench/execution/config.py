"""What a user asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlpip_bench.benches.family import TEST_QUERIES, DataRequest
from mlpip_bench.registry import place_of
from mlpip_bench.utils.choices import DEFAULT_NORM, Log, NormMode, SourceChoice
from mlpip_bench.utils.numerics import Numerics
from mlpip_bench.utils.progress import Quiet, Reporter

if TYPE_CHECKING:
    from mlpip_bench.execution.trial import Trial

Overwrite = Literal["never", "failed", "always"]
RUNS = Path("runs")
"""Where results go unless a user names a folder; git ignores it in a checkout."""


@dataclass(frozen=True)
class RunConfig:
    """What a user asks for.

    Attributes:
        benches: names.
        methods: names; none for the methods that enter a bench by default.
        protocols: names, each of which is measured where it applies; none for those that are measured by default.
        seeds: training seeds.
        norms: normalization modes; all methods are run in each.
        backbone: name of the network that all methods share; None for each task family's own.
        backbone_settings: its settings, where they are not at their defaults.
        pretrain: how backbones are trained before; None for each method's own way.
        pretrain_settings: fields of :class:`~mlpip_bench.inference.pretraining.Pretraining` that are set.
        init: file of parameters that methods start from.
        init_trained_on: what they saw.
        evaluate_only: whether models are tested as they are at the start.
        preset: budget.
        queries: queries per class at test.
        query_concentration: None for as many queries of each class at test; else of the Dirichlet distribution that
            the shares of a task's classes are drawn from.
        recalibrate: whether each model is also measured with a temperature that is fitted on validation.
        test_on: task family that the test tasks are of; None for the bench's own.
        overrides: fields of plan or settings, for all methods (key ``"*"``) or by method; settings of
            protocols, by protocol.
        sweeps: several such settings, each of which makes trials of its own, likewise by method.
        tune: how many settings of each method are tried in its tuned trial; None for no such trials.
        select: metric of the validation tasks that chooses among them; None for the first of the bench's.
        source, data_root: where data comes from.
        data: options of task families, by family.
        device: ``auto``, ``cpu``, ``mps``, ``cuda`` or ``cuda:N``.
        numerics: how numbers are computed.
        overwrite: which trials run again: none, failed ones, or all.
        results: folder of records, tables and checkpoints.
        predictions: whether predictions are kept next to records; no part of any key.
        check: whether records of other packages' methods say what the conformance suite finds; no part of any key.
        log: library that logs trainings, to watch them; None for none; no part of any key.
    """

    benches: tuple[str, ...]
    methods: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    norms: tuple[NormMode, ...] = (DEFAULT_NORM,)
    backbone: str | None = None
    backbone_settings: Mapping[str, Any] = field(default_factory=dict)
    pretrain: str | None = None
    pretrain_settings: Mapping[str, Any] = field(default_factory=dict)
    init: Path | None = None
    init_trained_on: str = ""
    evaluate_only: bool = False
    preset: str = "quick"
    queries: int = TEST_QUERIES
    query_concentration: float | None = None
    recalibrate: bool = False
    test_on: str | None = None
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sweeps: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    tune: int | None = None
    select: str | None = None
    source: SourceChoice = "auto"
    data_root: Path | None = None
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    device: str = "auto"
    numerics: Numerics = field(default_factory=Numerics)
    overwrite: Overwrite = "failed"
    results: Path = RUNS
    predictions: bool = True
    check: bool = True
    log: Log | None = None

    def request(self, reporter: Reporter | None = None) -> DataRequest:
        """Where data may come from."""
        return DataRequest(self.source, self.data_root, reporter or Quiet())

    def only(self, trials: Sequence[Trial]) -> RunConfig:
        """What asks for these trials, and for no others unless they are of several benches, seeds or norms.

        Its paths are absolute: it can be planned again in a process with another working directory.
        """
        methods = tuple(dict.fromkeys(trial.method for trial in trials))
        swept = {
            m: [dict(t) for t in dict.fromkeys(tuple(c.swept.items()) for c in trials if c.method == m)]
            for m in methods
        }
        protocols = tuple(dict.fromkeys(name for trial in trials for name in trial.protocols))
        return dataclasses.replace(
            self,
            methods=tuple(map(place_of, methods)),
            protocols=protocols,
            benches=tuple(dict.fromkeys(trial.bench.name for trial in trials)),
            seeds=tuple(dict.fromkeys(trial.seed for trial in trials)),
            norms=tuple(dict.fromkeys(trial.norm for trial in trials)),
            overrides={name: self.overrides[name] for name in ("*", *methods, *protocols) if name in self.overrides},
            sweeps=swept,
            data_root=self.data_root and self.data_root.expanduser().absolute(),
            results=self.results.absolute(),
            init=self.init and self.init.expanduser().absolute(),
        )

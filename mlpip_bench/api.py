"""The Python API: benches, training, evaluation and records in a few lines; the command line does the same by options.

Options are those of ``run``, by the same names (``python -m mlpip_bench run --help``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from mlpip_bench import registry
from mlpip_bench.benches.family import TEST_QUERIES, DataRequest, TaskFamily, TaskSource
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.evaluation.protocol import Evaluation, compiled_for_tests
from mlpip_bench.execution import options, planning, restoring, scheduler
from mlpip_bench.execution.config import RUNS
from mlpip_bench.execution.measuring import make_record, scores_of, train_trial
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.distributions import to_float64
from mlpip_bench.inference.method import Method, Posterior, TrainingPlan
from mlpip_bench.records import rescoring, store
from mlpip_bench.records.frame import to_frame
from mlpip_bench.records.record import Model as RecordedModel
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.tasks.stream import OfShapes
from mlpip_bench.training.checkpoints import TrainingState
from mlpip_bench.utils.choices import SourceChoice
from mlpip_bench.utils.device import resolve_device
from mlpip_bench.utils.errors import TrialError, UserError, unknown_name
from mlpip_bench.utils.files import data_root_of
from mlpip_bench.utils.numerics import SCORED
from mlpip_bench.utils.progress import Quiet, Reporter
from mlpip_bench.utils.seeding import seed_from
from mlpip_bench.utils.settings import with_values

_OF_MODEL = (
    "norm", "backbone", "preset", "iterations", "test_tasks", "queries", "query_concentration", "test_on",
    "source", "data_root", "data", "device", "precision", "compile", "graph",
)  # fmt: skip
"""Options of ``run`` that say what one model is, and how it is tested."""

_OF_COMMAND = ("jobs", "ray", "cpus", "profile", "dry_run", "estimate", "margin")
"""Options that only the command line has: processes of its own, and what it prints."""


@dataclass(frozen=True, eq=False)
class Bench:
    """A bench with its data: tasks to look at, and what they are made of.

    Attributes:
        spec: what its name says.
        family: its task family, with its options.
        data: what its tasks are made of; ``source`` says whether that is real.
        device: where its tensors are.
    """

    spec: BenchSpec
    family: TaskFamily
    data: TaskSource
    device: torch.device

    @property
    def name(self) -> str:
        """For example ``omni5w1s``."""
        return self.spec.name

    def sample(
        self, tasks: int = 1, *, split: str = "train", first: int = 0, queries: int = TEST_QUERIES, seed: int = 0
    ) -> TaskBatch:
        """Tasks of a stream: the same numbers give the same tasks, on every machine.

        Args:
            tasks: how many.
            split: ``train``, ``validation`` or ``test``.
            first: number of the first one.
            queries: per class, in training and at test.
            seed: of the training stream.

        Returns:
            Support sets and queries, images ``[task, point, channel, height, width]`` in [0, 1].

        Raises:
            UserError: no such split, or tasks that the data cannot give.
        """
        plan = TrainingPlan(**{**self.family.budgets["quick"], "train_queries": queries})
        plan = self.family.fitted(plan, self.spec, self.data)
        streams = self.family.streams(
            self.spec, self.data, plan, queries=self.family.queries_at_test(queries), seed=seed, device=self.device
        )
        if split not in streams:
            raise UserError(f"a split is one of {', '.join(streams)}; got {split!r}.")
        if tasks < 1 or first < 0:
            raise UserError(f"tasks are counted from 0, and at least one; got tasks={tasks}, first={first}.")
        if tasks > 1 and isinstance(streams[split], OfShapes):
            raise UserError(
                f"tasks of {self.name} each have a way and shots of their own, and make no batch; got tasks={tasks}. "
                "Ask for one at a time."
            )
        return streams[split].batch(first, tasks)


def load_bench(
    name: str,
    *,
    data_root: str | Path | None = None,
    source: SourceChoice = "auto",
    data: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Bench:
    """A bench, with its data.

    Args:
        name: for example ``omni5w1s``; any numbers work.
        data_root: folder below which real data is looked for; by default what ``MLPIP_BENCH_DATA`` names, if anything.
        source: ``auto`` (real data where found, else the stand-in), ``real`` or ``procedural``.
        data: options of its task family by name, for example ``{"split": "vinyals"}``.
        device: where its tensors are.

    Raises:
        UserError: an unknown name or option, or data that is missing or broken.
    """
    if source not in get_args(SourceChoice):
        raise unknown_name("source", source, get_args(SourceChoice))
    root = data_root_of(Path(data_root) if data_root else None)
    spec = registry.bench(name, root)
    plugin = registry.family(spec.family, root)
    family = plugin(with_values(plugin.Options, data or {}, spec.family))
    found = family.load(DataRequest(source, root))
    return Bench(spec, family, found, resolve_device(device))


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model, ready to adapt to a task and to predict.

    Attributes:
        method: the module, which holds the parameters that were best on validation, by the bench's first metric (for
            images, accuracy); in evaluation mode. ``training.best_by`` has those of the others.
        trial: what it was trained on, and how.
        training: how training went: ``history``, ``best_iteration``, ``seconds``.
    """

    method: Method[Any]
    trial: Trial
    training: TrainingState

    def adapt(self, images: ArrayLike, labels: ArrayLike | Sequence[Any]) -> AdaptedModel:
        """Infer the task's parameters from a support set.

        Args:
            images: ``[point, channel, height, width]``, or without the channel where there is one; integers from 0
                to 255, or floating-point numbers in [0, 1].
            labels: of each point, of any kind that can be sorted.

        Raises:
            UserError: another shape than the model's, or fewer than two classes.
        """
        if self.method.problem.kind != "classification":
            raise UserError(
                f"adapt takes images and their classes; this model is for {self.method.problem.kind}. "
                "Use its method's amortize and predictive."
            )
        x = self._images(images)
        of_points = labels.tolist() if isinstance(labels, np.ndarray | torch.Tensor) else list(labels)  # type: ignore[arg-type]
        try:
            classes = tuple(sorted(set(of_points)))
        except TypeError as error:
            raise UserError(f"labels must be numbers, or texts, one for each image; got others: {error}.") from error
        if len(of_points) != x.shape[1] or len(classes) < 2:
            raise UserError(
                f"a support set needs a label for each image, and at least two classes; got {len(of_points)} labels of "
                f"{len(classes)} classes for {x.shape[1]} images."
            )
        y = torch.tensor([[classes.index(label) for label in of_points]], device=x.device)
        with self._computing():
            return AdaptedModel(self, classes, self.method.amortize(Labeled(x, y, len(classes))))

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """As in evaluation; what is drawn is the same each time, and nobody else's generator moves."""
        device = self.trial.device
        with (
            torch.no_grad(),
            SCORED.applied(),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            torch.manual_seed(seed_from("prediction", self.trial.seed))
            yield

    def _images(self, images: ArrayLike) -> torch.Tensor:
        """One task's images as the method takes them, ``[1, point, channel, height, width]``."""
        shape = self.method.problem.input_shape
        try:
            array = np.asarray(images)
        except (TypeError, ValueError) as error:  # a tensor of a GPU; lists of unequal lengths
            raise UserError(f"images must be an array in the CPU's memory; these are none: {error}.") from error
        if array.ndim == 3 and shape[0] == 1:
            array = array[:, None]
        if array.ndim != 4 or array.shape[1:] != shape or not len(array):
            raise UserError(
                f"images must be [point, {', '.join(map(str, shape))}], and at least one; got {array.shape}."
            )
        if array.dtype.kind not in "buif":
            raise UserError(f"images must be numbers; these are of the type {array.dtype}.")
        largest = 255 if array.dtype.kind in "ui" else 1
        if not (array.min() >= 0 and array.max() <= largest):  # which NaN is not, either
            raise UserError(
                f"images must be integers from 0 to 255, or floating-point numbers in [0, 1]; these are {array.dtype} "
                f"from {array.min()} to {array.max()}."
            )
        return torch.as_tensor(array / largest, dtype=torch.float32, device=self.trial.device).unsqueeze(0)


@dataclass(frozen=True, eq=False)
class AdaptedModel:
    """A model that was adapted to one task.

    Attributes:
        model: the trained model.
        classes: the labels of the support set, sorted; columns of :meth:`predict`.
        posterior: q(psi | D).
    """

    model: Model
    classes: tuple[Any, ...]
    posterior: Posterior[Any]

    def predict(self, images: ArrayLike) -> NDArray[np.float64]:
        """Predictive probabilities ``[point, class]`` in the order of ``classes``; images as in :meth:`Model.adapt`.

        Raises:
            UserError: images of another shape than the model's.
        """
        x = self.model._images(images)
        with self.model._computing():
            predictive: Any = to_float64(self.model.method.predictive(self.posterior, x))
            probabilities: NDArray[np.float64] = predictive.probs[0].cpu().numpy()
        return probabilities


def fit(
    method: str | type[Method[Any]],
    bench: str,
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    results: str | Path | None = None,
    reporter: Reporter | None = None,
    **more: Any,
) -> Model:
    """Train a method on a bench.

    Args:
        method: a registered name, or a class.
        bench: for example ``omni5w1s``.
        seed: training seed.
        settings: fields of the training plan and of the method's settings, by name.
        results: folder for checkpoints, from which an interrupted training goes on; None for a temporary one. A class
            that is not registered has none, since nothing says whether it has changed since.
        reporter: shows progress; None for none.
        more: further options of ``run``: ``norm``, ``backbone``, ``preset``, ``iterations``, ``test_tasks``,
            ``queries``, ``query_concentration``, ``test_on``, ``data_root``, ``source``, ``data``, ``device``,
            ``precision``, ``compile``, ``graph``.

    Raises:
        UserError: what was asked for cannot be done.
        TrialError: training stopped.
    """
    if unknown := [name for name in more if name not in _OF_MODEL]:
        raise unknown_name("option of fit", unknown[0], _OF_MODEL)
    name, own = (method, {}) if isinstance(method, str) else _named(method)
    if own and results is not None:
        raise UserError(
            f"checkpoints are kept for registered methods; {name} is not. Leave results out, or register its class."
        )
    with tempfile.TemporaryDirectory() as temporary:
        layer = {"bench": bench, "methods": name, "seeds": seed, "set": dict(settings or {})}
        config = options.run_config(options.merged(more, layer, {"results": results or temporary}))
        trials = planning.plan_trials(config, reporter, methods=own)
        if len(trials) != 1:
            raise UserError(f"fit trains one model; these options ask for {len(trials)}. Use run for several.")
        built, training, _ = train_trial(trials[0], config.results, reporter or Quiet(), afresh=False)
    built.load_state_dict(training.best_model)
    return Model(built.eval(), trials[0], training)


def _named(method: type[Method[Any]]) -> tuple[str, dict[str, type[Method[Any]]]]:
    """The name of a class; with the class itself, if it is not registered."""
    if faults := registry.method_faults(method):
        raise UserError(f"{method!r} {'; it '.join(faults)}.")
    place = f"{method.__module__}:{method.__qualname__}"
    registered = [name for name, entries in registry.installed("method").items() if place in entries]
    return (registered[0], {}) if registered else (method.__name__, {method.__name__: method})


def evaluate(
    model: Model,
    protocols: str | Sequence[str] | None = None,
    *,
    bench: Bench | None = None,
    reporter: Reporter | None = None,
) -> pd.DataFrame:
    """Measure a trained model on its bench's fixed test tasks.

    Args:
        model: from :func:`fit` or :func:`load`.
        protocols: names of protocols that measure one model; None for those that a run measures by default.
        bench: the model's bench with its data, for a model from :func:`load`, which comes without.
        reporter: shows progress; None for none.

    Returns:
        One row a score, with the columns of :func:`read_records`.

    Raises:
        UserError: an unknown protocol, one that does not apply, or other data than the model's.
        TrialError: a protocol failed.
    """
    trial = _with_data(model.trial, bench)
    chosen = planning.usual_protocols(trial) if protocols is None else options.names(protocols)
    if not chosen:
        raise UserError("evaluate needs a protocol, for example accuracy. See: list protocols.")
    for name in chosen:
        planning.check_protocol(name, trial)
    test, records = trial.streams()["test"], []
    method = compiled_for_tests(model.method, trial.numerics)
    with SCORED.applied():
        alone = is_inductive(method, test.batch(0, 1))
        evaluation = Evaluation(method, "best", test, trial.plan.test_tasks, reporter, trial.title)
        chooses = trial.family.validation_metrics[0].name
        for name in chosen:
            began = time.monotonic()
            scores = [dataclasses.replace(s, chosen_by=chooses) for s in scores_of(trial.protocol(name), evaluation)]
            took = time.monotonic() - began
            records.append(make_record(trial, method, model.training, name, scores, alone, took, {}))
    return to_frame(records)


def _with_data(trial: Trial, bench: Bench | None) -> Trial:
    """The trial with a bench's data, which must be what the model was trained on."""
    if bench is None:
        if isinstance(trial.data, restoring.RecordedData):
            raise UserError(
                "a model from load comes without data; pass its bench, for example "
                f"evaluate(model, bench=load_bench({trial.bench.name!r}, data_root=...))."
            )
        return trial
    if (bench.name, bench.data.fingerprint) != (trial.bench.name, trial.data.fingerprint):
        raise UserError(
            f"a model is measured on its own bench and data, {trial.bench.name} of {trial.data.name} "
            f"({trial.data.source}, {trial.data.fingerprint[:12]}); got {bench.name} of {bench.data.name} "
            f"({bench.data.source}, {bench.data.fingerprint[:12]})."
        )
    return dataclasses.replace(trial, data=bench.data)


def run(*, reporter: Reporter | None = None, **asked: Any) -> pd.DataFrame:
    """Train and test methods on benches, and keep a record of each trial, as the command ``run`` does.

    Args:
        reporter: shows progress; None for none.
        asked: options of ``run`` by name; ``bench`` is needed. Lists may be lists, or texts with commas. Trials run one
            after the other, in processes of their own where a plugin of another package takes part; ``jobs``, ``ray``,
            ``cpus``, ``profile``, ``dry_run``, ``estimate`` and ``margin`` are the command line's alone.

    Returns:
        The records that were asked for, as :func:`read_records` gives them.

    Raises:
        UserError: what was asked for cannot be done.
        TrialError: a trial failed; the records of the others are kept.
    """
    chosen = options.merged(asked)
    if changed := [name for name in _OF_COMMAND if chosen[name] != options.DEFAULTS[name]]:
        raise UserError(
            f"run from Python goes through its trials in this process; {changed[0]} is for the command line."
        )
    config = options.run_config(chosen)
    planned = planning.plan_trials(config, reporter)
    summary = scheduler.run(planned, config, reporter or Quiet(), wait=chosen["wait"], time_limit=chosen["time_limit"])
    if summary.failed:
        title, message = summary.failed[0]
        raise TrialError(f"{len(summary.failed)} of {len(planned)} trials failed; {title}: {message}")
    keys = {trial.record_key(protocol) for trial in planned for protocol in trial.protocols}
    return to_frame(record for record in store.load_all(config.results) if record.key in keys)


def read_records(*folders: str | Path) -> pd.DataFrame:
    """The records of results folders, one row a score; a column for each setting, data option and condition.

    Args:
        folders: of results; none for ``runs``, where they are by default.

    Raises:
        UserError: a record is damaged, or there is none.
    """
    places = [Path(folder).expanduser() for folder in folders or (RUNS,)]
    records = [record for place in places for record in store.load_all(place)]
    if not records:
        raise UserError(f"a results folder holds records; there are none below {', '.join(map(str, places))}.")
    return to_frame(records)


def rescore(
    *folders: str | Path,
    bins: int = rescoring.BINS,
    temperature: bool = False,
    ensemble: bool = False,
    model: RecordedModel = "best",
    over: rescoring.Over = "tasks",
) -> pd.DataFrame:
    """Scores made again from kept predictions: other bins, recalibration, selective risk, ensembles over seeds.

    Args:
        folders: of results; none for ``runs``, where they are by default.
        bins: of the expected calibration error.
        temperature: whether to fit a temperature on the validation predictions, and to apply it.
        ensemble: whether seeds of one configuration are put together, too.
        model: of training: ``best`` on validation, or ``last``.
        over: what intervals are over, ``tasks`` or ``classes``.

    Returns:
        A row for each trained model and each ensemble, as :func:`mlpip_bench.records.rescoring.rescore` has it.

    Raises:
        UserError: there are no predictions, they are damaged, or have not what was asked for.
    """
    models, _ = rescoring.sources(Path(folder).expanduser() for folder in folders or (RUNS,))
    return rescoring.rescore(models, bins=bins, temperatures=temperature, ensembles=ensemble, model=model, over=over)


def load(record: str | Path, *, device: str = "cpu") -> Model:
    """The trained model behind a record, from the checkpoint in the same results folder.

    Args:
        record: a record's file, ``FOLDER/records/BENCH/METHOD/NAME.json``.
        device: where the model is.

    Raises:
        UserError: no such record or checkpoint, or a method that is not installed or has changed since.
    """
    trial, training = restoring.restored(Path(record).expanduser(), resolve_device(device))
    method = trial.build_method()
    method.load_state_dict(training.best_model)
    return Model(method.eval(), trial, training)

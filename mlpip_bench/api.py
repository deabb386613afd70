"""The Python API: benches, training, evaluation and records in a few lines; the command line does the same by options.

Options are those of ``run``, by the same names (``python -m mlpip_bench run --help``).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from mlpip_bench import registry
from mlpip_bench.benches.family import TEST_QUERIES, DataRequest, TaskFamily, TaskSource
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.evaluation.protocol import Evaluation
from mlpip_bench.execution import options, planning, restoring, scheduler
from mlpip_bench.execution.measuring import make_record, scores_of_protocol, train_trial
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method, Posterior, TrainingPlan
from mlpip_bench.records import store
from mlpip_bench.records.frame import to_frame
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.training.checkpoints import TrainingState
from mlpip_bench.utils.device import resolve_device
from mlpip_bench.utils.errors import TrialError, UserError
from mlpip_bench.utils.progress import Quiet, Reporter
from mlpip_bench.utils.settings import with_values


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
        return streams[split].batch(first, tasks)


def load_bench(
    name: str,
    *,
    data_root: str | Path | None = None,
    source: str = "auto",
    data: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Bench:
    """A bench, with its data.

    Args:
        name: for example ``omni5w1s``; any numbers work.
        data_root: folder below which real data is looked for.
        source: ``auto`` (real data where found, else the stand-in), ``real`` or ``procedural``.
        data: options of its task family by name, for example ``{"split": "vinyals"}``.
        device: where its tensors are.

    Raises:
        UserError: an unknown name or option, or data that is missing or broken.
    """
    spec = registry.bench(name)
    plugin = registry.family(spec.family)
    family = plugin(with_values(plugin.Options, data or {}, spec.family))
    found = family.load(DataRequest(source, Path(data_root) if data_root else None))  # type: ignore[arg-type]
    return Bench(spec, family, found, resolve_device(device))


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model, ready to adapt to a task and to predict.

    Attributes:
        method: the module, which holds the parameters that were best on validation; in evaluation mode.
        trial: what it was trained on, and how.
        training: how training went: ``history``, ``best_iteration``, ``seconds``.
    """

    method: Method[Any]
    trial: Trial
    training: TrainingState

    def adapt(self, images: ArrayLike, labels: Sequence[Any]) -> AdaptedModel:
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
        classes = tuple(sorted(set(labels)))
        if len(labels) != x.shape[1] or len(classes) < 2:
            raise UserError(
                f"a support set needs a label for each image, and at least two classes; got {len(labels)} labels of "
                f"{len(classes)} classes for {x.shape[1]} images."
            )
        y = torch.tensor([[classes.index(label) for label in labels]], device=x.device)
        with torch.no_grad():
            return AdaptedModel(self, classes, self.method.amortize(Labeled(x, y, len(classes))))

    def _images(self, images: ArrayLike) -> torch.Tensor:
        """One task's images as the method takes them, ``[1, point, channel, height, width]``."""
        array = np.asarray(images)
        shape = self.method.problem.input_shape
        if array.ndim == 3 and shape[0] == 1:
            array = array[:, None]
        if array.ndim != 4 or array.shape[1:] != shape or not len(array):
            raise UserError(
                f"images must be [point, {', '.join(map(str, shape))}], and at least one; got {array.shape}."
            )
        scale = 255.0 if np.issubdtype(array.dtype, np.integer) else 1.0
        return torch.as_tensor(array / scale, dtype=torch.float32, device=self.trial.device).unsqueeze(0)


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
        """Predictive probabilities ``[point, class]`` in the order of ``classes``; images as in :meth:`Model.adapt`."""
        method = self.model.method
        with torch.no_grad():
            predictive: Any = method.predictive(self.posterior, self.model._images(images))
        probabilities: NDArray[np.float64] = predictive.probs[0].double().cpu().numpy()
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
        results: folder for checkpoints, from which an interrupted training goes on; None for a temporary one.
        reporter: shows progress; None for none.
        more: further options of ``run``: ``norm``, ``backbone``, ``preset``, ``iterations``, ``data_root``, ``source``,
            ``data``, ``device``, ``precision``.

    Raises:
        UserError: what was asked for cannot be done.
        TrialError: training stopped.
    """
    name = method if isinstance(method, str) else method.__name__
    layer = {**more, "bench": bench, "methods": name, "seeds": seed, "set": dict(settings or {})}
    asked = options.run_config(options.merged(layer))
    plugins = None if isinstance(method, str) else {name: method}
    trials = planning.plan_trials(asked, methods=plugins)
    if len(trials) != 1:
        raise UserError(f"fit trains one model; these options ask for {len(trials)}. Use run for several.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(results or temporary)
        built, training, _ = train_trial(trials[0], folder, reporter or Quiet(), afresh=False)
    built.load_state_dict(training.best_model)
    return Model(built.eval(), trials[0], training)


def evaluate(
    model: Model, protocols: str | Sequence[str] = ("accuracy", "nll"), *, reporter: Reporter | None = None
) -> pd.DataFrame:
    """Measure a trained model on its bench's fixed test tasks.

    Args:
        model: from :func:`fit` or :func:`load`.
        protocols: names of protocols that measure one model.
        reporter: shows progress; None for none.

    Returns:
        One row a score, with the columns of :func:`read_records`.

    Raises:
        UserError: an unknown protocol, or one that does not apply.
    """
    trial, method = model.trial, model.method
    streams = trial.streams()
    alone = is_inductive(method, streams["test"].batch(0, 1))
    evaluation = Evaluation(method, "best", streams["test"], trial.plan.test_tasks, reporter, trial.title)
    records = []
    for name in options.names(protocols):
        began = time.monotonic()
        planning.check_protocol(name, trial)
        scores = scores_of_protocol(name, evaluation)
        records.append(make_record(trial, method, model.training, name, scores, alone, time.monotonic() - began, {}))
    return to_frame(records)


def run(*, reporter: Reporter | None = None, **asked: Any) -> pd.DataFrame:
    """Train and test methods on benches, and keep a record of each trial, as the command ``run`` does.

    Args:
        reporter: shows progress; None for none.
        asked: options of ``run`` by name; ``bench`` is needed. Lists may be lists, or texts with commas.

    Returns:
        The records that were asked for, as :func:`read_records` gives them.

    Raises:
        UserError: what was asked for cannot be done.
        TrialError: a trial failed; the records of the others are kept.
    """
    config = options.run_config(options.merged(asked))
    planned = planning.plan_trials(config, reporter)
    summary = scheduler.run(planned, config, reporter or Quiet())
    if summary.failed:
        title, message = summary.failed[0]
        raise TrialError(f"{len(summary.failed)} of {len(planned)} trials failed; {title}: {message}")
    keys = {trial.record_key(protocol) for trial in planned for protocol in trial.protocols}
    return to_frame(record for record in store.load_all(config.results) if record.key in keys)


def read_records(*folders: str | Path) -> pd.DataFrame:
    """The records of results folders, one row a score; a column for each setting, data option and condition.

    Raises:
        UserError: a record is damaged, or there is none.
    """
    records = [record for folder in folders for record in store.load_all(Path(folder).expanduser())]
    if not records:
        raise UserError(f"a results folder holds records; there are none below {', '.join(map(str, folders))}.")
    return to_frame(records)


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

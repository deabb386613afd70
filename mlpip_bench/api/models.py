"""Training, adaptation and evaluation of one model from Python."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from mlpip_bench import registry
from mlpip_bench.api.benches import Bench
from mlpip_bench.datasets.pictures import PictureForm
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.evaluation.predict import POINTS_AT_ONCE
from mlpip_bench.evaluation.protocol import Evaluation, compiled_for_tests
from mlpip_bench.execution import exporting, options, planning, restoring
from mlpip_bench.execution.config import RUNS
from mlpip_bench.execution.logs import TrialLog
from mlpip_bench.execution.measuring import make_record, scores_of, train_trial
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.distributions import to_float64
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.nn.weights import load_strictly
from mlpip_bench.pretrained import exports
from mlpip_bench.records.exports import ENDING
from mlpip_bench.records.frame import to_frame
from mlpip_bench.records.record import Record
from mlpip_bench.tasks.batch import Labeled
from mlpip_bench.training.checkpoints import TrainingState
from mlpip_bench.utils.device import resolve_device
from mlpip_bench.utils.errors import UserError, one_line, unknown_name
from mlpip_bench.utils.files import given_path
from mlpip_bench.utils.numerics import SCORED
from mlpip_bench.utils.progress import Quiet, Reporter
from mlpip_bench.utils.seeding import seed_from

_OF_MODEL = (
    "norm", "backbone", "pretrain", "init", "evaluate_only", "preset", "iterations", "test_tasks", "queries",
    "query_concentration", "test_on", "source", "data_root", "data", "device", "precision", "compile", "graph",
)  # fmt: skip
"""Options of ``run`` that say what one model is, and how it is tested."""


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model, ready to adapt to a task and to predict.

    Attributes:
        method: the module, which holds the parameters that were best on validation, by the bench's first metric (for
            images, accuracy); in evaluation mode. ``training.best_by`` has those of the others.
        trial: what it was trained on, and how.
        training: how training went: ``history``, ``best_iteration``, ``seconds``.
        record: what it was loaded with; None for one that was trained here.
    """

    method: Method[Any]
    trial: Trial
    training: TrainingState
    record: Record | None = None

    @property
    def pictures(self) -> PictureForm:
        """How files of pictures become its images: ``model.pictures.read(paths)``.

        Raises:
            UserError: it takes no pictures.
        """
        shape = self.method.problem.input_shape
        if self.method.problem.kind != "classification" or shape[1:] == (1, 1):  # which feature vectors have
            what = "feature vectors" if self.method.problem.kind == "classification" else self.method.problem.kind
            raise UserError(f"pictures are for models that classify pictures; this one is for {what}.")
        return self.trial.family.picture_form(self.trial.data, shape)

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
        parts = []
        for some in x.split(POINTS_AT_ONCE, dim=1):
            with self.model._computing():
                predictive: Any = to_float64(self.model.method.predictive(self.posterior, some))
                parts.append(predictive.probs[0].cpu().numpy())
        return np.concatenate(parts)


def fit(
    method: str | type[Method[Any]],
    bench: str,
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    results: str | Path | None = None,
    reporter: Reporter | None = None,
    log: str | None = None,
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
        log: ``tensorboard``, ``wandb`` or ``mlflow``, to watch the training; its files are in the folder ``logs`` of
            ``results``, or of ``runs`` where that is None.
        more: further options of ``run``: ``norm``, ``backbone``, ``pretrain``, ``init``, ``evaluate_only``, ``preset``,
            ``iterations``, ``test_tasks``, ``queries``, ``query_concentration``, ``test_on``, ``data_root``,
            ``source``, ``data``, ``device``, ``precision``, ``compile``, ``graph``.

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
        layer = {"bench": bench, "methods": name, "seeds": seed, "set": dict(settings or {}), "log": log}
        config = options.run_config(options.merged(more, layer, {"results": results or temporary}))
        trials = planning.plan_trials(config, reporter, methods=own)
        if len(trials) != 1:
            raise UserError(f"fit trains one model; these options ask for {len(trials)}. Use run for several.")
        shown, watched_in = reporter or Quiet(), RUNS if results is None else config.results
        with TrialLog(config.log, trials[0], watched_in, shown) as opened:
            built, training, _ = train_trial(trials[0], config.results, shown, afresh=False, log=opened)
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


def load(source: str | Path, *, device: str = "cpu", trust_code: bool = False) -> Model:
    """A trained model: that behind a record, an exported one, or one that ships with the suite.

    Args:
        source: a record's file, ``FOLDER/records/BENCH/METHOD/NAME.json``, with the checkpoint in the same results
            folder; a file of :func:`export`; or a name of ``list models``.
        device: where the model is.
        trust_code: whether a network of your own is run that an exported model names.

    Raises:
        UserError: no such record, checkpoint, file or name; one that is damaged; or a method that is not installed or
            has changed since.
    """
    shipped = exports()
    path = shipped.get(str(source)) or given_path(source)
    if not (path.suffix or path.exists()):
        raise unknown_name("model", str(source), shipped)
    if path.suffix == ENDING:
        record, trial, training = exporting.read(path, resolve_device(device), trust_code=trust_code)
    else:
        record, trial, training = restoring.restored(path, resolve_device(device))
    try:
        method = trial.build_method()
    except UserError:
        raise
    except Exception as error:  # whatever sizes that no network has lead to
        raise UserError(f"{path} must be of a model that can be built; it is not: {one_line(error)}.") from error
    load_strictly(method, training.best_model, str(path))
    return Model(method.eval(), trial, training, record)

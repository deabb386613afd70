"""Training, adaptation and evaluation of one model from Python."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from mlpip_bench import registry
from mlpip_bench.api.adapting import Adaptable, WrappedModel, wrapped_model
from mlpip_bench.api.benches import Bench
from mlpip_bench.datasets.pictures import PictureForm
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.evaluation.protocol import Evaluation, compiled_for_tests
from mlpip_bench.execution import exporting, options, planning, restoring
from mlpip_bench.execution.config import RUNS
from mlpip_bench.execution.logs import TrialLog
from mlpip_bench.execution.measuring import make_record, scores_of, train_trial
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method
from mlpip_bench.inference.wrapping import Wrapped
from mlpip_bench.nn.weights import load_strictly
from mlpip_bench.pretrained import exports
from mlpip_bench.records.exports import ENDING, weights_alone
from mlpip_bench.records.frame import to_frame
from mlpip_bench.records.record import Record
from mlpip_bench.training.checkpoints import TrainingState
from mlpip_bench.utils.device import resolve_device
from mlpip_bench.utils.errors import UserError, one_line, unknown_name
from mlpip_bench.utils.files import given_path
from mlpip_bench.utils.numerics import SCORED
from mlpip_bench.utils.places import is_place
from mlpip_bench.utils.progress import Quiet, Reporter

_OF_MODEL = (
    "norm", "backbone", "pretrain", "init", "evaluate_only", "preset", "iterations", "test_tasks", "queries",
    "query_concentration", "test_on", "source", "data_root", "data", "device", "precision", "compile", "graph",
)  # fmt: skip
"""Options of ``run`` that say what one model is, and how it is tested."""


@dataclass(frozen=True, eq=False, repr=False)
class Model(Adaptable):
    """A trained model, ready to adapt to a task and to predict.

    Attributes:
        method: the module, which holds the parameters that were best on validation, by the bench's first metric (for
            images, accuracy); in evaluation mode. ``training.best_by`` has those of the others.
        trial: what it was trained on, and how.
        training: how training went: ``history``, ``best_iteration``, ``seconds``.
        record: what it was loaded with; None for one that was trained here.
    """

    trial: Trial
    training: TrainingState
    record: Record | None = None

    def __repr__(self) -> str:
        return f"<Model {self.trial.title}, {self.method.parameter_count:,} parameters>"

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.trial.device

    @property
    def seed(self) -> int:
        """Of its training."""
        return self.trial.seed

    @property
    def pictures(self) -> PictureForm:
        """How files of pictures become its images: ``model.pictures.read(paths)``.

        Raises:
            UserError: it takes no pictures.
        """
        return self.trial.family.picture_form(self.trial.data, self.shape_of_pictures)


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
    if not isinstance(bench, Bench):
        raise UserError(
            f"bench is a bench with its data, from load_bench; got a {type(bench).__name__}, {bench!r}. "
            f"Pass load_bench({trial.bench.name!r}, data_root=...)."
        )
    if (bench.name, bench.data.fingerprint) != (trial.bench.name, trial.data.fingerprint):
        raise UserError(
            f"a model is measured on its own bench and data, {trial.bench.name} of {trial.data.name} "
            f"({trial.data.source}, {trial.data.fingerprint[:12]}); got {bench.name} of {bench.data.name} "
            f"({bench.data.source}, {bench.data.fingerprint[:12]})."
        )
    return dataclasses.replace(trial, data=bench.data)


def load(source: str | Path, *, device: str = "cpu", trust_code: bool = False) -> Model | WrappedModel:
    """A trained model: that behind a record, an exported one, or one that ships with the suite.

    Args:
        source: a record's file, ``FOLDER/records/BENCH/METHOD/NAME.json``, with the checkpoint in the same results
            folder; a file of :func:`export`; a name of ``list models``; or the place of a wrapped model, as
            ``my_file.py:name``.
        device: where the model is.
        trust_code: whether code of your own is run, a network or a method, that a record or an exported model names.

    Raises:
        UserError: no such record, checkpoint, file or name; one that is damaged; or a method that is not installed or
            has changed since.
    """
    if is_place(str(source)) and Path(source).suffix not in (ENDING, ".json"):
        plugin = registry.method(registry.method_at(str(source)))
        if not issubclass(plugin, Wrapped):
            raise UserError(f"a model of your own code is what wrap returns; {source} is a method. Train it with fit.")
        return wrapped_model(plugin, resolve_device(device))
    shipped = exports()
    path = shipped.get(str(source)) or given_path(source)
    if not (path.suffix or path.exists()):
        raise unknown_name("model", str(source), shipped)
    if path.suffix == ENDING:
        record, trial, training = exporting.read(path, resolve_device(device), trust_code=trust_code)
    elif path.suffix not in ("", ".json") and path.is_file():
        raise weights_alone(path)
    else:
        record, trial, training = restoring.restored(path, resolve_device(device), trust_code=trust_code)
    try:
        method = trial.build_method()
    except UserError:
        raise
    except Exception as error:  # whatever sizes that no network has lead to
        raise UserError(f"{path} must be of a model that can be built; it is not: {one_line(error)}.") from error
    load_strictly(method, training.best_model, str(path))
    return Model(method.eval(), trial, training, record)

"""What a trial's model is before meta-training: initial parameters, a file's, or those of a pre-training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlpip_bench.execution.config import RunConfig
from mlpip_bench.execution.fingerprint import engine_code
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method, TrainingPlan
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.nn.backbone import Backbone, BackboneSpec, NoBackbone
from mlpip_bench.nn.weights import Outside, load_strictly, read_weights
from mlpip_bench.records import exports
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.training.checkpoints import TrainingState, iterations_done, load_checkpoint
from mlpip_bench.training.pretraining import backbone_state, images_of, pretrain
from mlpip_bench.utils.choices import DEFAULT_NORM, OWN_NORM, NormMode
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.locks import locked
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.settings import NoSettings, field_types, with_values

PRETRAININGS = ("none", "classify")


_OF_TEST = {"validation_tasks", "test_tasks"}
"""Fields of a plan that matter where nothing is trained, too."""


def check_used(config: RunConfig, plugins: Mapping[str, type[Method[Any]]]) -> list[str]:
    """Refuse options of a network where all methods bring one of their own.

    Args:
        config: what is asked for.
        plugins: the methods of the run.

    Returns:
        What is to be said of settings of training where no method is trained.

    Raises:
        UserError: options that no method has a use for.
    """
    given = {
        "--backbone": config.backbone is not None,
        "--pretrain": config.pretrain not in (None, "none"),
        "--init": config.init is not None,
        "--norm": not set(config.norms) <= {DEFAULT_NORM, OWN_NORM},
        "--tune": config.tune is not None,
    }
    useless = [option for option, is_given in given.items() if is_given]
    if useless and all(plugin.network_name for plugin in plugins.values()):
        raise UserError(
            f"{', '.join(useless)}: for methods that the suite builds; {', '.join(plugins)} would be measured as "
            f"without {'it' if len(useless) == 1 else 'them'}, since a wrapped model is what its own code makes it. "
            "Leave that out, or name further --methods."
        )
    if any(plugin.trainable for plugin in plugins.values()) and not config.evaluate_only:
        return []
    own = {name for plugin in plugins.values() for name in field_types(plugin.Settings)}
    chosen = {name: value for settings in config.overrides.values() for name, value in settings.items()}
    chosen |= {name: values for several in config.sweeps.values() for values in several for name in values}
    unused = sorted(chosen.keys() & field_types(TrainingPlan).keys() - _OF_TEST - own)
    unused = [name for name in unused if chosen[name]]  # no iterations are what they have
    return [f"no method of this run is meta-trained: {', '.join(unused)} change nothing"] if unused else []


def init_of(config: RunConfig) -> Outside | None:
    """The file of parameters that a run's methods start from."""
    if config.init is None:
        return None
    saw = config.init_trained_on.strip() or _saw(config.init)
    if not saw:
        raise UserError(
            f"--init needs what the parameters were trained on, which decides what a result means: --init "
            f"{config.init},trained_on=TEXT."
        )
    return Outside.of(config.init, saw)


def _saw(path: Path) -> str:
    """What an exported model says that it was trained on; empty of another file."""
    if path.suffix != exports.ENDING:
        return ""
    try:
        record, _ = exports.read(path)
    except UserError:  # another program's
        return ""
    return f"{record.bench} of {record.data['name']} ({record.data['source']})"


def pretraining_of(config: RunConfig, plugin: type[Method[Any]], backbone: BackboneSpec) -> Pretraining | None:
    """How a backbone is trained before a method; its own way, unless it comes trained, or a run says otherwise.

    Raises:
        UserError: an unknown way or setting, or a backbone that cannot be pre-trained.
    """
    if config.pretrain is not None and config.pretrain not in PRETRAININGS:
        raise unknown_name("way of --pretrain", config.pretrain, PRETRAININGS)
    if config.pretrain == "none" and config.pretrain_settings:
        raise UserError("--pretrain none has no settings; --pretrain classify has.")
    if config.pretrain == "none" or plugin.network_name:
        return None
    comes_trained = config.init is not None or backbone.outside is not None
    if config.pretrain is None and (plugin.pretraining is None or comes_trained or not backbone.plugin.learns):
        return None
    if not backbone.plugin.learns:
        raise UserError(
            f"pre-training is for a backbone with parameters; {backbone.name} has none. Use --pretrain none."
        )
    if comes_trained:
        raise UserError(
            "a network is trained here before, or somewhere else; --pretrain classify is given, and weights of a file. "
            "Leave one of them out."
        )
    if backbone.plugin.normalizes and not backbone.plugin.own_norm:
        raise UserError(
            f"pre-training is for networks with ordinary batch norm; {backbone.name} has none. Use another backbone, "
            "or --pretrain none."
        )
    usual = dataclasses.asdict(plugin.pretraining or Pretraining())
    settings: Pretraining = with_values(Pretraining, {**usual, **config.pretrain_settings}, "pretrain")
    _, height, width = backbone.input_shape
    if settings.crop >= min(height, width) > 1:  # vectors are left as they are
        raise UserError(
            f"crop is the pixels by which pre-training pads an image before it cuts out {height}x{width} of them, and "
            f"must be below {min(height, width)}, or nothing of the image may be left; got {settings.crop}."
        )
    return settings


def norm_of(asked: NormMode, backbone: BackboneSpec, pretraining: Pretraining | None) -> NormMode:
    """The norm of a trial: a network that was trained here before, or that a method brings, keeps its own."""
    keeps = pretraining is not None or backbone.plugin is NoBackbone
    return OWN_NORM if keeps and backbone.plugin.normalizes else backbone.norm_used(asked)


def backbone_of(plugin: type[Method[Any]], chosen: BackboneSpec) -> BackboneSpec:
    """The network of a method: its own if it brings one, else the one that a run chose."""
    if not plugin.network_name:
        return chosen
    return BackboneSpec(plugin.network_name, NoBackbone, NoSettings(), chosen.input_shape)


def plan_of(plan: TrainingPlan, config: RunConfig, plugin: type[Method[Any]], *, comes_trained: bool) -> TrainingPlan:
    """The training plan; of a model that is tested as it is at the start, one without training.

    Raises:
        UserError: nothing of the model was ever trained.
    """
    if config.evaluate_only and not comes_trained:
        raise UserError(
            "--evaluate-only tests models that were trained before; of these nothing was. Name their parameters with "
            "--init, or a backbone's with weights=FILE, or use --iterations 0 for models as they are initialized."
        )
    return plan.untrained if config.evaluate_only or not plugin.trainable or not plan.iterations else plan


def check_init(trial: Trial) -> None:
    """Refuse parameters that do not fit a trial's model, before any training."""
    if trial.init is not None:
        try:
            _load(trial.build_method(), trial.init)
        except UserError as error:
            raise UserError(
                f"{error} The run has --norm {trial.norm} and --backbone {trial.backbone.name}, which must be those "
                "that they were trained with."
            ) from error


def begin(
    trial: Trial, streams: Mapping[str, Stream], folder: Path, reporter: Reporter
) -> tuple[Method[Any], dict[str, Any]]:
    """A trial's method at the start of its meta-training, and what a record says of what was trained before.

    Raises:
        TrialError: pre-training stopped.
        UserError: a file or checkpoint that is damaged or does not fit.
    """
    method = trial.build_method()
    if trial.init is not None:
        _load(method, trial.init)
    if trial.pretraining is None:
        return method, dict(trial.outside)
    trained = _pretrained(trial, trial.pretraining, streams, folder, reporter)
    for part in method.modules():
        if isinstance(part, Backbone):
            part.load_state_dict(backbone_state(trained))
    return method, {
        "what": "classification",
        "saw": f"training classes of {trial.data.name} ({trial.data.source})",
        "images": trained.iteration * trial.pretraining.batch_size,
        "seconds": trained.seconds,
    }


def _load(method: Method[Any], outside: Outside) -> None:
    assert outside.path is not None  # --init names one
    load_strictly(method, read_weights(outside.path), str(outside.path))


def _pretrained(
    trial: Trial, settings: Pretraining, streams: Mapping[str, Stream], folder: Path, reporter: Reporter
) -> TrainingState:
    """The network of a trial, trained by the first that needs it; others wait meanwhile."""
    checkpoint, key = trial.pretraining_checkpoint(folder), trial.pretraining_key
    with locked(trial.pretraining_lock(folder), wait=True):
        start = iterations_done(checkpoint, key)
        if start == settings.iterations:
            return load_checkpoint(checkpoint, key)
        title = f"{trial.data.name} {trial.backbone.name}: pre-training"
        with trial.numerics.applied(), reporter.stage(title, settings.iterations, start) as step:
            return pretrain(
                trial.problem,
                settings,
                images_of(streams["train"], trial.bench.name),
                streams["validation"],
                validation_tasks=trial.plan.validation_tasks,
                metrics=trial.family.validation_metrics,
                checkpoint=checkpoint,
                key=key,
                environment={"build": engine_code()},
                step=step,
            )

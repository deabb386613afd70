"""From a record back to its trial, and to the model that it measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mlpip_bench import registry
from mlpip_bench.benches.added import family_named
from mlpip_bench.benches.family import TaskFamily
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.execution.fingerprint import plugin_code
from mlpip_bench.execution.trial import TestedOn, Trial, Tuning
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.nn.backbone import BackboneSpec, NoBackbone
from mlpip_bench.nn.weights import Outside
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.training.checkpoints import TrainingState, load_checkpoint
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.naming import bench_of, family_of
from mlpip_bench.utils.numerics import Numerics
from mlpip_bench.utils.settings import checked_value, field_types, with_values

_OTHER_FIELDS = (KeyError, RuntimeError, TypeError, ValueError)
"""What records lead to that a version wrote with other fields or values."""


@dataclass(frozen=True)
class RecordedData:
    """What a record says of its data, which need not be at hand.

    Attributes:
        name, source, fingerprint, options: as of the data set.
    """

    name: str
    source: Any
    fingerprint: str
    options: dict[str, Any]


class Trained(NamedTuple):
    """A trained model, as it was kept.

    Attributes:
        record: what says how it was made.
        trial: what it was trained on, and how, on a device that need not be the one of its training.
        state: of its training.
    """

    record: Record
    trial: Trial
    state: TrainingState


def restored(path: Path, device: torch.device, *, trust_code: bool = False) -> Trained:
    """The trained model behind a record.

    Args:
        path: the record's file.
        device: where the model is to be.
        trust_code: whether code of somebody's own, whose file or module the record names, may be run.

    Raises:
        UserError: no such record or checkpoint, or a method that is not installed or has changed since.
    """
    record = store.load(path)
    if "scores" in record.environment:
        raise UserError(
            f"a model is behind records of run alone; {path} has scores that import-scores brought from elsewhere. "
            "Name a record of a run, an exported model, or one of list models."
        )
    if "recalibrated" in record.config:
        raise UserError(
            f"a model is loaded as it was trained; {path} is of its recalibrated predictions. Name the record of the "
            "same run that has no temperature; rescore --temperature says what that is."
        )
    parents = path.resolve().parents
    if len(parents) < 4 or parents[2].name != "records":
        raise UserError(f"a record lies in its results folder, as FOLDER/records/BENCH/METHOD/NAME.json; got {path}.")
    folder = parents[3]
    trial = checked(
        record,
        path,
        lambda trial: _as_planned(trial, record).record_key(record.protocol),
        advice="Run its command again.",
        trust_code=trust_code,
    )
    checkpoint = trial.checkpoint(folder)
    if not checkpoint.exists():
        raise UserError(
            f"a model needs its checkpoint in the folder of its records; {checkpoint} is not there. Run the record's "
            f"command again with --results {folder} --overwrite always."
        )
    state = load_checkpoint(checkpoint, trial.training_key)
    return Trained(record, replace(trial, device=device, tested_on=None), state)


def records_of(record: Record, path: Path) -> list[Record]:
    """All records of a record's trial that lie next to it: one a protocol; the record's own code may be run."""
    key, others = _trial_key(record), sorted(path.parent.glob(f"*-seed{record.seed}-*.json"))
    found = [other for other in map(store.load, others) if other.own_code == record.own_code]
    return [other for other in found if _trial_key(other) == key]


def _trial_key(record: Record) -> str | None:
    """What the records of a trial have in common; None where that is no trial of this version."""
    try:
        return _as_planned(trial_of(record), record).key
    except (UserError, *_OTHER_FIELDS):
        return None


def checked(record: Record, path: Path, key: Callable[[Trial], str], *, advice: str, trust_code: bool) -> Trial:
    """The trial of a record, whose key must be what the code of today makes of it.

    Args:
        record: what says which trial it is.
        path: where it was found.
        key: of the trial, of the kind that the record has.
        advice: what to do where it is another one.
        trust_code: whether code of somebody's own that it names may be run.

    Raises:
        UserError: the key is another one, a plugin is not installed, or it names code that is not trusted.
    """
    if record.own_code and not trust_code:
        raise UserError(
            "a record or an exported model may come from anybody, and runs no code that does not ship with a plugin "
            f"unless you say so; {path} names {record.own_code[0]}. If you know that file or module, pass --trust-code "
            "(trust_code=True in Python)."
        )
    other_code = UserError(
        f"a model is built by the code that trained it; {path} was made by another version of the suite, or of "
        f"{record.method}. {advice}"
    )
    try:
        trial = trial_of(record)
    except _OTHER_FIELDS as error:
        raise other_code from error
    if key(trial) != record.key:
        before, now = record.training.get("pretraining", {}), trial.outside
        if now.get("sha256") != before.get("sha256"):
            raise UserError(
                f"a model needs the parameters that it started from; {now.get('file')} has SHA-256 "
                f"{now.get('sha256', '')[:12]}, and had {before.get('sha256', '')[:12]} when {path} was made. Put that "
                "file back."
            )
        raise other_code
    return trial


def trial_of(record: Record) -> Trial:
    """The trial that a record was made of; its data is what the record says, and cannot give tasks.

    Raises:
        UserError: a plugin that is not installed, or a setting that it does not have.
    """
    bench, family_plugin = _bench_of(record)
    if "place" in (code := record.environment.get("code", {})):
        registry.method_at(code["place"])
    plugin = registry.method(record.method)
    family = _family_of(bench, family_plugin, record.data)
    backbone = NoBackbone if plugin.network_name else registry.backbone(record.backbone["name"])
    config = record.config
    types = field_types(TrainingPlan)
    plan = {name: checked_value(types, name, value, record.method) for name, value in config.items() if name in types}
    numerics = {field.name: config[field.name] for field in fields(Numerics) if field.name in config}
    spec = BackboneSpec(
        record.backbone["name"],
        backbone,
        with_values(backbone.Settings, _tuples(record.backbone["spec"]), record.backbone["name"]),
        tuple(record.backbone["input_shape"]),
    )
    data = record.data
    return Trial(
        bench=bench,
        family=family,
        method=record.method,
        plugin=plugin,
        seed=record.seed,
        swept={},
        plan=TrainingPlan(**plan),
        settings=with_values(plugin.Settings, _tuples(config["settings"]), record.method),
        norm=config["norm"],
        backbone=spec,
        preset=config["preset"],
        queries=config["queries"],
        protocols=(record.protocol,),
        code=_code_now(record),
        data=_recorded(data),
        device=torch.device(record.device),
        numerics=Numerics(**numerics),
        protocol_settings=_protocol_settings(record),
        query_concentration=config.get("query_concentration"),
        pretraining=Pretraining(**config["pretraining"]) if "pretraining" in config else None,
        init=Outside(**{**config["init"], "path": Path(config["init"]["path"])}) if "init" in config else None,
        recalibrated="recalibrated" in config,
        tested_on=_tested_on(bench, data["test_on"]) if "test_on" in data else None,
        training_classes=data.get("training_classes"),
    )


def _protocol_settings(record: Record) -> dict[str, Any]:
    if (found := record.config.get("protocol_settings")) is None:
        return {}
    return {record.protocol: with_values(registry.protocol(record.protocol).Settings, _tuples(found), record.protocol)}


def _recorded(data: Mapping[str, Any]) -> RecordedData:
    return RecordedData(data["name"], data["source"], data["fingerprint"], dict(data["options"]))


def _tested_on(bench: BenchSpec, data: Mapping[str, Any]) -> TestedOn:
    other = replace(bench, family=data["family"])
    return TestedOn(other, _family_of(other, _plugin_of(other.family), data), _recorded(data))


def _family_of(bench: BenchSpec, plugin: type[TaskFamily], data: Mapping[str, Any]) -> TaskFamily:
    """With the options that a record of tasks of this data has."""
    of_tasks = plugin(plugin.Options()).task_options
    chosen = {name: value for name, value in data["options"].items() if name in of_tasks}
    return plugin(with_values(plugin.Options, chosen, bench.family))


def _plugin_of(family: str) -> type[TaskFamily]:
    """A task family; a data set that was added need not be at hand."""
    return registry.family(family) if family in registry.names("bench") else family_named(family)


def _bench_of(record: Record) -> tuple[BenchSpec, type[TaskFamily]]:
    plugin = _plugin_of(family_of(record.bench))
    name = bench_of(record.bench)
    return plugin.read_name(name) or registry.bench(name), plugin


def _as_planned(trial: Trial, record: Record) -> Trial:
    """The trial that a record was planned as: of a tuned one, with the settings before any were chosen."""
    tuning = record.training.get("tuning")
    if tuning is None:
        return trial
    default = _tuples(tuning["default"])
    of_plan = {name: value for name, value in default.items() if hasattr(trial.plan, name)}
    of_method = {name: value for name, value in default.items() if name not in of_plan}
    space = {name: choice for name, choice in trial.plugin.search_space.items() if name in default}
    return replace(
        trial,
        plan=replace(trial.plan, **of_plan),
        settings=replace(trial.settings, **of_method),
        tuning=Tuning(tuning["draws"], tuning["select"], space),
    )


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they were before JSON made lists of their tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _code_now(record: Record) -> dict[str, str]:
    """Fingerprints, as they are now, of the plugins of other packages that made a record."""
    plugins: Any = (name.split(" ", 1) for name in record.environment.get("code", {}).get("plugins", {}))
    return {f"{kind} {name}": plugin_code(kind, name) or "" for kind, name in plugins}

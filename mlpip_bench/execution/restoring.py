"""From a record back to its trial, and to the model that it measured."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch

from mlpip_bench import registry
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.training.checkpoints import TrainingState, load_checkpoint
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.numerics import Numerics
from mlpip_bench.utils.settings import checked_value, with_values


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


def restored(path: Path, device: torch.device) -> tuple[Trial, TrainingState]:
    """The trial of a record, and its trained state.

    Raises:
        UserError: no such record or checkpoint, or a method that is not installed or has changed since.
    """
    record = store.load(path)
    folder = path.resolve().parents[3]
    trial = trial_of(record, device)
    if trial.record_key(record.protocol) != record.key:
        raise UserError(
            f"a model is built by the code that trained it; {path} was made by another version of the suite, or of "
            f"{record.method}. Run its command again."
        )
    checkpoint = trial.checkpoint(folder)
    if not checkpoint.exists():
        raise UserError(
            f"a model needs its checkpoint beside its records; {checkpoint} is not there. Run the record's command "
            f"again with --results {folder} --overwrite always."
        )
    return trial, load_checkpoint(checkpoint)


def trial_of(record: Record, device: torch.device) -> Trial:
    """The trial that a record was made of; its data is what the record says, and cannot give tasks.

    Raises:
        UserError: a plugin that is not installed, or a setting that it does not have.
    """
    bench = registry.bench(record.bench)
    family_plugin, plugin = registry.family(bench.family), registry.method(record.method)
    backbone = registry.backbone(record.backbone["name"])
    of_tasks = family_plugin(family_plugin.Options()).task_options
    chosen = {name: value for name, value in record.data["options"].items() if name in of_tasks}
    family = family_plugin(with_values(family_plugin.Options, chosen, bench.family))
    config = record.config
    types = get_type_hints(TrainingPlan)
    plan = {name: checked_value(types, name, value, record.method) for name, value in config.items() if name in types}
    numerics = {field.name: config[field.name] for field in fields(Numerics) if field.name in config}
    spec = BackboneSpec(
        record.backbone["name"],
        backbone,
        with_values(backbone.Settings, record.backbone["spec"], record.backbone["name"]),
        tuple(record.backbone["input_shape"]),
    )
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in config["settings"].items()}
    data = record.data
    return Trial(
        bench=bench,
        family=family,
        method=record.method,
        plugin=plugin,
        seed=record.seed,
        swept={},
        plan=TrainingPlan(**plan),
        settings=with_values(plugin.Settings, settings, record.method),
        norm=config["norm"],
        backbone=spec,
        preset=config["preset"],
        queries=config["queries"],
        protocols=(record.protocol,),
        code=record.environment.get("code", {}).get("plugins", {}),
        data=RecordedData(data["name"], data["source"], data["fingerprint"], dict(data["options"])),
        device=device,
        numerics=Numerics(**numerics),
    )

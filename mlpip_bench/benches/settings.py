"""Settings of a trial: what the bench, the method's preset and the user say, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlpip_bench.inference.method import Method, TrainingPlan
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.settings import checked_value, field_types

if TYPE_CHECKING:
    from mlpip_bench.benches.family import TaskFamily
    from mlpip_bench.benches.spec import BenchSpec


@dataclass(frozen=True)
class Resolved:
    """A method's plan and settings after preset and user overrides.

    Attributes:
        plan: the training plan.
        settings: an instance of the method's ``Settings``.
    """

    plan: TrainingPlan
    settings: Any


def scopes(family: TaskFamily, bench: BenchSpec) -> tuple[str, ...]:
    """What presets may be filed under for a bench, from the most general to the most specific; ``"*"`` is for all."""
    return (family.kind, bench.family, bench.name)


def resolve(
    method: type[Method[Any]],
    name: str,
    default: Mapping[str, Any],
    preset: str,
    scopes: tuple[str, ...],
    overrides: Mapping[str, Any],
) -> Resolved:
    """Layer a bench's default budget, the method's preset and the user's overrides.

    Args:
        method: the plugin.
        name: its registered name, for messages.
        default: fields of the plan that the bench sets for all methods.
        preset: budget name.
        scopes: keys of the preset from the most general to the most specific.
        overrides: what the user set; fields of the plan or of the settings.

    Raises:
        UserError: an override that names no field, or has a value of the wrong type.
    """
    merged: dict[str, Any] = dict(default)
    for scope in ("*", *scopes):
        merged |= method.presets.get(preset, {}).get(scope, {})
    merged |= overrides
    plan_types, setting_types = field_types(TrainingPlan), field_types(method.Settings)
    types = plan_types | setting_types
    merged = {key: checked_value(types, key, value, name) for key, value in merged.items()}
    try:
        return Resolved(
            TrainingPlan(**{k: v for k, v in merged.items() if k in plan_types}),
            method.Settings(**{k: v for k, v in merged.items() if k in setting_types}),
        )
    except ValueError as error:
        raise UserError(f"settings of {name} are not valid: {error}.") from error

"""Settings of a trial: what the bench, the method's preset and the user say, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from mlpip_bench.utils.errors import UserError, unknown_name

if TYPE_CHECKING:
    pass
from mlpip_bench.inference.method import Method, TrainingPlan


@dataclass(frozen=True)
class Resolved:
    """A method's plan and settings after preset and user overrides.

    Attributes:
        plan: the training plan.
        settings: an instance of the method's ``Settings``.
    """

    plan: TrainingPlan
    settings: Any


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
    plan_types, setting_types = get_type_hints(TrainingPlan), get_type_hints(method.Settings)
    types = plan_types | setting_types
    for key, value in list(merged.items()):
        if key not in types:
            raise unknown_name(f"setting of {name}", key, types)
        try:
            # The validated value: 1 for a setting that is a number becomes 1.0, and no trial of its own.
            merged[key] = TypeAdapter(types[key]).validate_python(value, strict=True)
        except ValidationError as error:
            raise UserError(f"{name}.{key} must be {_described(types[key])}; got {value!r}.") from error
    try:
        return Resolved(
            TrainingPlan(**{k: v for k, v in merged.items() if k in plan_types}),
            method.Settings(**{k: v for k, v in merged.items() if k in setting_types}),
        )
    except ValueError as error:
        raise UserError(f"settings of {name} are not valid: {error}.") from error


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _described(annotation: Any) -> str:
    """A type in words that say what to type."""
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, get_args(annotation)))}"
    if get_origin(annotation) is tuple:
        return f"several with commas between them, each {_described(get_args(annotation)[0])}"
    options = get_args(annotation) or (annotation,)
    return " or ".join(_described(o) if get_origin(o) else _WORDS.get(o, str(o)) for o in options)


PRESETS = ("quick", "paper")
TEST_QUERIES = 15
"""Queries per class at test, unless ``--queries`` says otherwise; the paper's protocol is the shot."""

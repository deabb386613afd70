"""What the command line's texts mean: lists of names, seeds, settings, and sweeps of settings."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from mlpip_bench.utils.errors import UserError


def names(text: str | None) -> tuple[str, ...]:
    """A comma-separated list, without repeats."""
    return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def seeds(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    try:
        return tuple(int(part) for part in names(text))
    except ValueError as error:
        raise UserError(
            f"--seeds takes whole numbers with commas between them, for example 0,1,2; got {text!r}."
        ) from error


def settings(assignments: Sequence[str], options: Mapping[str, int | None]) -> dict[str, dict[str, Any]]:
    """What ``--set`` gives, by method (``"*"`` for all), with options that have a name of their own.

    Raises:
        UserError: an assignment without a value, or something that is set twice.
    """
    found: dict[str, dict[str, Any]] = {"*": {}}
    for assignment in assignments:
        method, key, text = _assignment("--set", "learning_rate=0.001", assignment)
        found.setdefault(method, {})[key] = _value(text)
    for key, number in options.items():
        if number is None:
            continue
        if any(key in chosen for chosen in found.values()):
            raise UserError(f"{key} is set twice, by --{key.replace('_', '-')} and by --set. Leave one of them out.")
        found["*"][key] = number
    return found


def sweeps(assignments: Sequence[str], fixed: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What ``--sweep`` gives: by method, each combination of the values of its settings.

    Args:
        assignments: such as ``learning_rate=0.001,0.0003``.
        fixed: what is set already.

    Raises:
        UserError: an assignment without values, or something that is set twice.
    """
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for assignment in assignments:
        method, key, text = _assignment("--sweep", "learning_rate=0.001,0.0003", assignment)
        if any(key in chosen for chosen in (*found.values(), *fixed.values())):
            raise UserError(f"{key} is set twice, by --sweep and otherwise. Leave one of them out.")
        found.setdefault(method, {})[key] = _values(text)
    return {
        method: [dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())]
        for method, tried in found.items()
    }


def _assignment(option: str, example: str, assignment: str) -> tuple[str, str, str]:
    """Method (``"*"`` for all), name and value."""
    name, equals, text = assignment.partition("=")
    if not (equals and name.strip() and text.strip()):
        values = "VALUE" if option == "--set" else "VALUE,VALUE"
        raise UserError(f"{option} takes [METHOD.]NAME={values}, for example {example}; got {assignment!r}.")
    method, dot, key = name.strip().rpartition(".")
    if not key or (dot and not method):
        raise UserError(f"{option} names a setting, or METHOD.NAME, for example {example}; got {assignment!r}.")
    return method or "*", key, text.strip()


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _values(text: str) -> tuple[Any, ...]:
    """Values with commas between them; one that has commas itself is in parentheses."""
    value = _value(text)
    if isinstance(value, tuple):
        return value
    if not isinstance(value, str):
        return (value,)
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise UserError(f"--sweep takes values with commas between them, and none may be empty; got {text!r}.")
    return tuple(map(_value, parts))

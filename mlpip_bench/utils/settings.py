"""Settings of plugins: frozen dataclasses with defaults, checked when a user sets them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mlpip_bench.utils.errors import UserError, cut, unknown_name
from mlpip_bench.utils.files import given_path, open_file

NO_KEY = "no part of a key"
"""In the metadata of a field that changes how numbers come about, and not what they are."""


@dataclass(frozen=True)
class NoSettings:
    """Settings of a plugin that has none."""


def with_values(settings: type, values: Mapping[str, Any], owner: str) -> Any:
    """An instance of a settings class with some fields set, each checked against its type.

    Args:
        settings: a frozen dataclass with defaults.
        values: by field.
        owner: what the settings belong to, for messages.

    Raises:
        UserError: no such field, a value of another type, or one that the class refuses.
    """
    types = field_types(settings)
    checked = {name: checked_value(types, name, value, owner) for name, value in values.items()}
    try:
        return settings(**checked)
    except ValueError as error:
        raise UserError(f"settings of {owner} are not valid: {error}.") from error


def field_types(settings: type) -> dict[str, Any]:
    """The types of a dataclass's fields, by name; what else the class has is no setting."""
    hints = get_type_hints(settings)
    return {field.name: hints[field.name] for field in fields_of(settings)}


def fields_of(settings: type) -> list[dataclasses.Field[Any]]:
    """A dataclass's fields, those of its own before what it shares with others, which are named when they are given."""
    return sorted(dataclasses.fields(settings), key=lambda field: bool(field.kw_only))


def checked_value(types: Mapping[str, Any], name: str, value: Any, owner: str) -> Any:
    """A value as its field's type has it: 1 for a setting that is a number becomes 1.0.

    Raises:
        UserError: no such field, or a value of another type.
    """
    from pydantic import TypeAdapter, ValidationError  # a third of a second, which the start has not

    if name not in types:
        raise unknown_name(f"setting of {owner}", name, types)
    if Path in (types[name], *get_args(types[name])) and isinstance(value, str):
        value = given_path(value)
    if get_origin(types[name]) is tuple and not isinstance(value, tuple | list):
        value = (value,)  # one of what may be several
    try:
        return TypeAdapter(types[name]).validate_python(value, strict=True)
    except ValidationError as error:
        several = isinstance(value, tuple) and len(value) > 1 and get_origin(types[name]) is not tuple
        hint = f" Several to be tried in turn go to --sweep {name}=VALUE,VALUE." if several else ""
        raise UserError(f"{owner}.{name} must be {_in_words(types[name])}; got {cut(repr(value))}.{hint}") from error


_WORDS = {
    type(None): "none",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    tuple: "several in brackets, as (3, 4)",
}


def _in_words(annotation: Any) -> str:
    """A type in words that say what to type."""
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, get_args(annotation)))}"
    if get_origin(annotation) is tuple:
        return f"several with commas between them, each {_in_words(get_args(annotation)[0])}"
    options = get_args(annotation) or (annotation,)
    return " or ".join(_in_words(o) if get_origin(o) else _WORDS.get(o, str(o)) for o in options)


def as_json(settings: Any) -> dict[str, Any]:
    """All fields of an instance as JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings), default=str))
    return plain


def key_of(settings: Any) -> dict[str, Any]:
    """The fields that are not at their defaults, as JSON values; files by their contents.

    A setting at its default is no part of a key, so that a new setting leaves old keys as they are.
    """
    changed = {}
    plain = as_json(settings)
    for field in dataclasses.fields(settings):
        if NO_KEY in field.metadata:
            continue
        value = getattr(settings, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if default is dataclasses.MISSING or value != default:
            changed[field.name] = contents(value) if isinstance(value, Path) else plain[field.name]
    return changed


def contents(path: Path) -> str:
    """SHA-256 of a file; of a folder's files with their names.

    Raises:
        UserError: it cannot be read.
    """
    digest = hashlib.sha256()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    try:
        for file in files:
            digest.update(file.relative_to(path).as_posix().encode())
            with open_file(file) as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    except OSError as error:
        raise UserError(f"a file that is a setting must be readable; {path} is not: {error.strerror}.") from error
    return digest.hexdigest()

"""Records of older schemas, as the present one has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Raw = dict[str, Any]


def migrated(raw: Raw, schema: int) -> Raw:
    """A record's fields under another schema.

    Args:
        raw: the fields as they were written.
        schema: that is wanted.

    Raises:
        ValueError: there is no way from the record's schema to that one.
    """
    while raw.get("schema") != schema:
        step = _STEPS.get(raw.get("schema", 0))
        if step is None:
            raise ValueError(f"it is schema {raw.get('schema')}; this version reads schemas 1 to {schema}")
        raw = step(raw)
    return raw


_CONV4 = {"blocks": 4, "channels": 64, "ceil_mode": False, "dropout": 0.0, "last": None}
_BACKBONES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "omni": ("conv4", _CONV4 | {"ceil_mode": True, "dropout": 0.1}),
    "tiny": ("conv4", _CONV4 | {"dropout": 0.5}),
    "mini": ("conv4", _CONV4 | {"blocks": 5, "dropout": 0.5}),
    "context": ("conv4", _CONV4 | {"ceil_mode": True}),
    "views": ("view_encoder", {"blocks": 4, "channels": 64}),
}
"""What schema 1 did not say: each data set had one network."""


def _from_1(raw: Raw) -> Raw:
    family, number = re.match(r"([a-z]*)(\d*)", str(raw.get("bench"))).groups()  # type: ignore[union-attr]  # it matches
    name, spec = _BACKBONES.get(family, ("identity", {}))
    if family == "context":
        spec = {**spec, "last": int(number)}
    return {**raw, "schema": 2, "backbone": {"name": name, "spec": dict(spec)}}


_STEPS: Mapping[int, Callable[[Raw], Raw]] = {1: _from_1}

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
        step = _STEPS.get(str(raw.get("schema")))
        if step is None:
            found = raw.get("schema")
            newer = isinstance(found, int) and found > schema
            advice = ". A newer mlpip_bench wrote it: upgrade this one" if newer else ""
            raise ValueError(f"it is schema {found}; this version reads schemas 1 to {schema}{advice}")
        raw = step(raw)
    return raw


_CONV4 = {"blocks": 4, "channels": 64, "ceil_mode": False, "dropout": 0.0, "last": None}
_BACKBONES: Mapping[str, tuple[str, Mapping[str, Any], tuple[int, int, int]]] = {
    "omni": ("conv4", _CONV4 | {"ceil_mode": True, "dropout": 0.1}, (1, 28, 28)),
    "tiny": ("conv4", _CONV4 | {"dropout": 0.5}, (3, 32, 32)),
    "mini": ("conv4", _CONV4 | {"blocks": 5, "dropout": 0.5}, (3, 84, 84)),
    "context": ("conv4", _CONV4 | {"ceil_mode": True}, (1, 28, 28)),
    "views": ("view_encoder", {"blocks": 4, "channels": 64}, (1, 32, 32)),
    "linear": ("identity", {}, (3, 1, 1)),
}
"""What schema 1 did not say: each data set had one network."""


def _from_1(raw: Raw) -> Raw:
    family, number = re.match(r"([a-z]*)(\d*)", str(raw.get("bench"))).groups()  # type: ignore[union-attr]  # it matches
    name, spec, shape = _BACKBONES.get(family, ("identity", {}, (0, 1, 1)))
    if family == "context":
        spec = {**spec, "last": int(number)}
    return {**raw, "schema": 2, "backbone": {"name": name, "spec": dict(spec), "input_shape": list(shape)}}


_STEPS: Mapping[str, Callable[[Raw], Raw]] = {"1": _from_1}

"""What records leave out where it is at its default, so that a new option changes no key: which default that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "precision": "float32",
        "compile": "off",
        "optimizer": "Adam",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "clip_norm": 0.0,
        "schedule": "constant",
        "step_size": 0,
        "gamma": 0.1,
        "warmup": 0,
        "backbone.weights": None,
        "backbone.trained_on": "",
        "backbone.frozen": False,
        "data.rotations": "on",
        "query_concentration": "none",
        "recalibrated": "no",
    }
)
"""By the name of the fact. They stand here and do not follow the options: a record means what it meant when written."""


def left_out(facts: Iterable[tuple[str, Iterable[str]]]) -> dict[str, dict[str, object]]:
    """By bench, the defaults of what some facts name, so that those which leave it out can say it, too.

    An option of the data says nothing of the benches on which nobody names it: these may not have it.

    Args:
        facts: of each configuration the bench, and the names of its facts.
    """
    named: dict[str, set[str]] = {}
    for bench, names in facts:
        named.setdefault(bench, set()).update(DEFAULTS.keys() & names)
    of_all = {name for own in named.values() for name in own if not name.startswith("data.")}
    return {bench: {name: DEFAULTS[name] for name in DEFAULTS if name in own | of_all} for bench, own in named.items()}

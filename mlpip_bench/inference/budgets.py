"""How the paper trained its own model, for the presets of its methods."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

PAPER_BUDGETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "omni20w1s": {"iterations": 100_000},
        "omni20w5s": {"iterations": 60_000},
        "mini5w1s": {"learning_rate": 2.5e-4, "tasks_per_batch": 8, "iterations": 50_000},
    }
)
"""How the paper trained its own model where that differs from the data set's budget; for methods' presets."""

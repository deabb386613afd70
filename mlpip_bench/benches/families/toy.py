"""Toy: the paper's Gaussian with an unknown mean (section 5.1)."""

from __future__ import annotations

from typing import ClassVar

from mlpip_bench.benches.linear import BUDGET, LinearGaussianFamily

_METHODS = ("amortized_vi", "exact_linear", "nonamortized_vi", "versa")
_BUDGET = BUDGET | {
    "iterations": 8000,
    "tasks_per_batch": 125,
    "learning_rate": 5e-2,
    "halve_every": 2000,
    "validate_every": 2000,
}


class Toy(LinearGaussianFamily):
    """Trained on the paper's 250 tasks."""

    title = "Gaussian with an unknown mean (section 5.1), trained on 250 tasks"
    examples = ("toy5", "toy10")
    naming = "{shot}"
    default_methods = _METHODS
    dimension = 0
    noise_std = 1.0
    train_tasks = 250
    budgets: ClassVar = {"quick": _BUDGET, "paper": _BUDGET}


class FreshToy(LinearGaussianFamily):
    """Trained on new tasks at every step, so that only the method's own error is left."""

    title = "Gaussian with an unknown mean (section 5.1), trained on new tasks at every step"
    examples = ("toyfresh5", "toyfresh10")
    naming = "{shot}"
    default_methods = _METHODS
    dimension = 0
    noise_std = 1.0
    budgets: ClassVar = {"quick": _BUDGET, "paper": _BUDGET}

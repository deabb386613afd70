"""Linear regression: three inputs, and a posterior that is known."""

from __future__ import annotations

from typing import ClassVar

from mlpip_bench.benches.linear import BUDGET, LinearGaussianFamily


class Linear(LinearGaussianFamily):
    """Three inputs, and noise of half the prior's standard deviation."""

    title = "linear-Gaussian regression, 3 inputs"
    examples = ("linear5s", "linear20s")
    dimension = 3
    noise_std = 0.5
    default_methods = ("amortized_vi", "exact_linear", "nonamortized_vi", "versa")
    budgets: ClassVar = {"quick": BUDGET, "paper": BUDGET}

"""Sinusoid: sine curves of unknown amplitude and phase, the regression of MAML's paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mlpip_bench.benches.regression import CurveFamily

if TYPE_CHECKING:
    from mlpip_bench.tasks.sinusoids import Sinusoids

_PAPER = {
    "iterations": 70_000,
    "tasks_per_batch": 25,
    "train_queries": 10,
    "learning_rate": 1e-3,
    "validate_every": 5000,
    "validation_tasks": 600,
    "test_tasks": 1000,
}


class Sinusoid(CurveFamily):
    """Amplitude in [0.1, 5], phase in [0, pi], inputs in [-5, 5], and noise on the observations, which theirs lacks."""

    title = "sine curves of unknown amplitude and phase (Finn et al. 2017, section 5.1), observed with noise"
    examples = ("sinusoid5s", "sinusoid10s")
    default_methods = ("amortized_vi", "anil", "blind", "cnp", "exact_linear", "maml", "nonamortized_vi", "versa")
    backbone_settings: ClassVar = {"layers": 2, "features": 40, "activation": "relu"}
    budgets: ClassVar = {"quick": _PAPER | {"iterations": 10_000, "validate_every": 1000}, "paper": _PAPER}

    def model(self) -> Sinusoids:
        """The model."""
        from mlpip_bench.tasks.sinusoids import Sinusoids

        return Sinusoids(self.options.noise_std)

"""GP: curves from a Gaussian process, the bench of neural processes, whose exact predictive is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from mlpip_bench.benches.regression import CurveFamily, CurveOptions

if TYPE_CHECKING:
    from mlpip_bench.tasks.gaussian_process import GaussianProcess
    from mlpip_bench.tasks.kernels import RBF, Matern, Periodic

_PAPER = {
    "iterations": 50_000,
    "tasks_per_batch": 16,
    "train_queries": 15,
    "learning_rate": 1e-3,
    "validate_every": 5000,
    "validation_tasks": 600,
    "test_tasks": 1000,
}


@dataclass(frozen=True)
class GPOptions(CurveOptions):
    """Options of curves from a Gaussian process of variance 1.

    Attributes:
        kernel: ``rbf``; ``matern``, of order 5/2; ``periodic``, of period 1.
        length_scale: distance over which curves change.
    """

    kernel: Literal["rbf", "matern", "periodic"] = "rbf"
    length_scale: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.length_scale < math.inf:
            raise ValueError(f"length_scale must be positive and finite; got {self.length_scale}")


class GP(CurveFamily):
    """Curves over [-2, 2] with a kernel of length scale 0.25, as the bench of Gordon et al. (ICLR 2020) has them."""

    title = "curves from a Gaussian process; the kernel is an option, and the exact predictive is known"
    examples = ("gp10s", "gp30s")
    default_methods = (
        "amortized_vi", "anil", "blind", "cnp", "exact_gp", "exact_linear", "maml", "nonamortized_vi", "versa",
    )  # fmt: skip
    backbone_settings: ClassVar = {"layers": 2, "features": 128, "activation": "relu"}
    budgets: ClassVar = {"quick": _PAPER | {"iterations": 10_000, "validate_every": 1000}, "paper": _PAPER}
    Options = GPOptions
    options: GPOptions

    def model(self) -> GaussianProcess:
        """The model."""
        from mlpip_bench.tasks.gaussian_process import GaussianProcess

        return GaussianProcess(self.kernel, self.options.noise_std)

    @property
    def kernel(self) -> RBF | Matern | Periodic:
        """The covariance function of the curves."""
        from mlpip_bench.tasks.kernels import RBF, Matern, Periodic

        kernels: dict[str, type[RBF | Matern | Periodic]] = {"rbf": RBF, "matern": Matern, "periodic": Periodic}
        return kernels[self.options.kernel](self.options.length_scale)

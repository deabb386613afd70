"""Families of tasks from a linear-Gaussian model, whose posterior is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mlpip_bench.benches.regression import RegressionFamily

if TYPE_CHECKING:
    from mlpip_bench.tasks.kernels import Kernel
    from mlpip_bench.tasks.linear_gaussian import LinearGaussian

BUDGET = {
    "iterations": 2000,
    "tasks_per_batch": 16,
    "train_queries": 15,
    "learning_rate": 1e-2,
    "halve_every": 400,
    "validate_every": 400,
    "validation_tasks": 200,
    "test_tasks": 600,
}


class LinearGaussianFamily(RegressionFamily):
    """Bayesian linear regression under a model that is known.

    Attributes:
        dimension: of the inputs.
    """

    dimension: ClassVar[int]
    backbone = "identity"

    def model(self) -> LinearGaussian:
        """The model."""
        from mlpip_bench.tasks.linear_gaussian import LinearGaussian

        assert self.noise_std is not None
        return LinearGaussian(self.dimension, self.noise_std)

    @property
    def kernel(self) -> Kernel:
        """Of the Gaussian process that weights from N(0, I) make of a linear function."""
        from mlpip_bench.tasks.kernels import LinearKernel

        return LinearKernel()

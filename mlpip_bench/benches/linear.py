"""Families of tasks from a linear-Gaussian model, whose posterior is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mlpip_bench.benches.family import TEST_QUERIES, DataRequest, TaskFamily, TaskSource
from mlpip_bench.benches.spec import BenchSpec

if TYPE_CHECKING:
    import torch

    from mlpip_bench.inference.method import TrainingPlan
    from mlpip_bench.tasks.linear_gaussian import LinearGaussian
    from mlpip_bench.tasks.stream import Stream

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


class LinearGaussianFamily(TaskFamily):
    """Bayesian linear regression under a model that is known.

    Attributes:
        dimension: of the inputs.
        train_tasks: how many tasks there are to train on, met again and again; None for an endless stream.
    """

    dimension: ClassVar[int]
    train_tasks: ClassVar[int | None] = None
    needs = "nothing: tasks are drawn from the model"
    naming = "{shot}s"
    kind = "regression"
    backbone = "identity"

    def load(self, request: DataRequest) -> LinearGaussian:  # noqa: ARG002
        """The model itself."""
        from mlpip_bench.tasks.linear_gaussian import LinearGaussian

        assert self.noise_std is not None
        return LinearGaussian(self.dimension, self.noise_std)

    def input_shape(self, data: TaskSource) -> tuple[int, int, int]:  # noqa: ARG002
        """A vector's."""
        return self.dimension, 1, 1

    def streams(
        self,
        bench: BenchSpec,
        data: TaskSource,
        plan: TrainingPlan,
        *,
        queries: int,
        seed: int,
        device: torch.device,
    ) -> dict[str, Stream]:
        """Tasks from the model; a training set of a fixed size where there is one."""
        from mlpip_bench.tasks.batch import TaskShape
        from mlpip_bench.tasks.linear_gaussian import LinearGaussian, LinearGaussianStream
        from mlpip_bench.tasks.stream import Repeated

        assert isinstance(data, LinearGaussian)

        def stream(split: str, queries: int, *more: int) -> Stream:
            return LinearGaussianStream(data, TaskShape(1, bench.shot, queries), device, bench.name, split, *more)

        training = stream("train", plan.train_queries, seed)
        return {
            "train": Repeated(training, self.train_tasks) if self.train_tasks else training,
            "validation": stream("validation", TEST_QUERIES),
            "test": stream("test", queries),
        }

"""Families of regression whose tasks are drawn from a model of functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mlpip_bench.benches.family import TEST_QUERIES, DataRequest, TaskFamily, TaskSource
from mlpip_bench.benches.spec import BenchSpec

if TYPE_CHECKING:
    import torch

    from mlpip_bench.inference.method import TrainingPlan
    from mlpip_bench.tasks.regression import FunctionModel
    from mlpip_bench.tasks.stream import Stream


class RegressionFamily(TaskFamily):
    """Regression under a model that is known; a plugin writes ``model``.

    Attributes:
        train_tasks: how many tasks there are to train on, met again and again; None for an endless stream.
    """

    train_tasks: ClassVar[int | None] = None
    needs = "nothing: tasks are drawn from the model"
    naming = "{shot}s"
    kind = "regression"

    def model(self) -> FunctionModel:
        """What functions are drawn from."""
        raise NotImplementedError(f"{type(self).__name__} must have model")

    def load(self, request: DataRequest) -> FunctionModel:  # noqa: ARG002
        """The model itself."""
        return self.model()

    def input_shape(self, data: TaskSource) -> tuple[int, int, int]:
        """A vector's."""
        return _as_model(data).dimension, 1, 1

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
        from mlpip_bench.tasks.regression import RegressionStream
        from mlpip_bench.tasks.stream import Repeated

        model = _as_model(data)

        def stream(split: str, queries: int, *more: int) -> Stream:
            return RegressionStream(model, TaskShape(1, bench.shot, queries), device, bench.name, split, *more)

        training = stream("train", plan.train_queries, seed)
        return {
            "train": Repeated(training, self.train_tasks) if self.train_tasks else training,
            "validation": stream("validation", TEST_QUERIES),
            "test": stream("test", queries),
        }


def _as_model(data: TaskSource) -> FunctionModel:
    from mlpip_bench.tasks.regression import FunctionModel

    assert isinstance(data, FunctionModel)  # which load gives
    return data


@dataclass(frozen=True)
class CurveOptions:
    """Options of curves.

    Attributes:
        noise_std: standard deviation of an observation.
    """

    noise_std: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.noise_std < math.inf:
            raise ValueError(f"noise_std must be positive and finite, or there is no likelihood; got {self.noise_std}")


class CurveFamily(RegressionFamily):
    """Regression of functions of one number."""

    backbone = "mlp"
    Options = CurveOptions
    options: CurveOptions

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.noise_std = self.options.noise_std

    @property
    def task_options(self) -> Mapping[str, Any]:
        """All options, from which a record's family is made again."""
        return dataclasses.asdict(self.options)

"""The fixed test tasks of a bench as indices, for programs that are no part of the suite."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mlpip_bench import registry
from mlpip_bench.benches.images import as_images
from mlpip_bench.datasets.base import ClassImages
from mlpip_bench.execution import options, planning
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method
from mlpip_bench.tasks.images import TaskIndices, TaskStream
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.npz import write_npz
from mlpip_bench.utils.progress import Reporter

_NAME = "elsewhere"


class Elsewhere(Method[Any]):
    """What another program does: its trials have data and tasks, and nothing of it is computed here."""

    reference = "none: another program"
    psi = "not known"

    def amortize(self, support: object) -> NoReturn:
        """Not done here."""
        raise NotImplementedError

    def predictive(self, q: object, query_x: object) -> NoReturn:
        """Not done here."""
        raise NotImplementedError

    def loss(self, batch: object) -> NoReturn:
        """Not done here."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class FrozenTasks:
    """The test tasks of a bench.

    Attributes:
        trial: of :class:`Elsewhere`, with the bench, its data and what shapes its test tasks.
        stream: of the tasks.
        splits: the classes that training, validation and test tasks are cut out of.
    """

    trial: Trial
    stream: TaskStream
    splits: Mapping[str, ClassImages]

    @functools.cached_property
    def content(self) -> bytes:
        """The bytes of ``tasks.npz``, the same on every machine."""
        out = io.BytesIO()
        write_npz(out, self.arrays)
        return out.getvalue()

    @property
    def sha256(self) -> str:
        """Of the content: what tells these tasks from others."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Of every task the classes, and the images and labels of support set and queries, by name."""
        found: TaskIndices = self.stream.indices(0, self.trial.plan.test_tasks)
        return {name: tensor.numpy().astype("<i8") for name, tensor in vars(found).items()}


def frozen_tasks(bench: str, asked: Mapping[str, Any], reporter: Reporter) -> FrozenTasks:
    """The test tasks of a bench; no image is read for them.

    Args:
        bench: its name.
        asked: options of ``run`` that shape its data and its test tasks, by name; None for their defaults.
        reporter: shows what is read.

    Raises:
        UserError: what ``run`` would refuse; or tasks that are not cut out of classes which are new at test.
    """
    of_nothing = {"methods": _NAME, "protocols": "accuracy", "set": {"train_queries": 1}, "device": "cpu"}
    config = options.run_config(options.merged({**asked, "bench": bench, **of_nothing}))
    if len(config.benches) != 1:
        raise UserError(f"test tasks are those of one bench; got {bench!r}. Name one.")
    family = registry.family(registry.bench(bench, config.data_root).family, config.data_root)
    needed = (
        "tasks that other programs train and test for are of one way and shot, and of classes that are new at test, as "
        f"those of omni5w1s; those of {bench} are not. Choose another bench."
    )
    if family.kind != "classification":
        raise UserError(needed)
    (trial,) = planning.plan_trials(config, reporter, methods={_NAME: Elsewhere})
    stream = trial.streams()["test"]
    if not isinstance(stream, TaskStream):
        raise UserError(needed)
    return FrozenTasks(trial, stream, {**as_images(trial.data).splits, "test": stream.pool.data})

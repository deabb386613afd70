"""Benches and data sets from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch

from mlpip_bench import registry
from mlpip_bench.benches.family import TEST_QUERIES, DataRequest, TaskFamily, TaskSource
from mlpip_bench.benches.pictures import figure_of_task
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.datasets.added import Description
from mlpip_bench.datasets.adding.add import Choices, add
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.tasks.batch import TaskBatch
from mlpip_bench.tasks.stream import OfShapes
from mlpip_bench.utils.choices import SourceChoice
from mlpip_bench.utils.device import resolve_device
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.files import ROOT_VARIABLE, data_root_of, named_data_root
from mlpip_bench.utils.progress import Quiet, Reporter
from mlpip_bench.utils.settings import with_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Bench:
    """A bench with its data: tasks to look at, and what they are made of.

    Attributes:
        spec: what its name says.
        family: its task family, with its options.
        data: what its tasks are made of; ``source`` says whether that is real.
        device: where its tensors are.
    """

    spec: BenchSpec
    family: TaskFamily
    data: TaskSource
    device: torch.device

    @property
    def name(self) -> str:
        """For example ``omni5w1s``."""
        return self.spec.name

    def sample(
        self, tasks: int = 1, *, split: str = "train", first: int = 0, queries: int = TEST_QUERIES, seed: int = 0
    ) -> TaskBatch:
        """Tasks of a stream: the same numbers give the same tasks, on every machine.

        Args:
            tasks: how many.
            split: ``train``, ``validation`` or ``test``.
            first: number of the first one.
            queries: per class, in training and at test.
            seed: of the training stream.

        Returns:
            Support sets and queries, images ``[task, point, channel, height, width]`` in [0, 1].

        Raises:
            UserError: no such split, or tasks that the data cannot give.
        """
        if tasks < 1 or first < 0 or queries < 1:
            raise UserError(
                "tasks are counted from 0, and at least one, with at least one query; got "
                f"tasks={tasks}, first={first}, queries={queries}."
            )
        plan = TrainingPlan(**{**self.family.budgets["quick"], "train_queries": queries})
        plan = self.family.fitted(plan, self.spec, self.data)
        streams = self.family.streams(
            self.spec, self.data, plan, queries=self.family.queries_at_test(queries), seed=seed, device=self.device
        )
        if split not in streams:
            raise UserError(f"a split is one of {', '.join(streams)}; got {split!r}.")
        if tasks > 1 and isinstance(streams[split], OfShapes):
            raise UserError(
                f"tasks of {self.name} each have a way and shots of their own, and make no batch; got tasks={tasks}. "
                "Ask for one at a time."
            )
        return streams[split].batch(first, tasks)

    def figure(self, task: int = 0, *, split: str = "test", queries: int = 5, seed: int = 0) -> Figure:
        """A picture of one task, as methods get it: its support set and its queries, a row a class.

        Args:
            task: its number.
            split: ``train``, ``validation`` or ``test``.
            queries: per class.
            seed: of the training stream.

        Raises:
            UserError: no such split, a task that the data cannot give, or one without pictures.
        """
        batch = self.sample(1, split=split, first=task, queries=queries, seed=seed)
        figure = figure_of_task(batch, self.name, self.family, self.data, f"{split} task {task}")
        if figure is None:
            raise UserError(
                f"a figure of a task shows pictures; points of {self.name} have none. Use sample for their values."
            )
        return figure


def add_data(
    name: str,
    source: str | Path,
    *,
    data_root: str | Path | None = None,
    reporter: Reporter | None = None,
    **choices: Any,
) -> Description:
    """Make a data set of pictures or feature vectors of your own, and benches of it, as ``data add`` does.

    Args:
        name: of the data set, and in front of its benches: ``birds`` for ``birds5w1s``.
        source: a folder of class folders, a csv list or an npz file.
        data_root: folder of data sets, which is made where it is not there; by default what ``MLPIP_BENCH_DATA`` names.
        reporter: shows progress; None for none.
        choices: further options of ``data add``: ``image_size``, ``split``, ``seed``, ``license``, ``citation``,
            ``pretrained_on``, ``domains``, ``replace``.

    Returns:
        What the data set has: ``splits``, with the number of items of each class, ``left_out`` and ``fingerprint``.

    Raises:
        UserError: what is wrong with the data or the choices; nothing is written then.
    """
    known = [field.name for field in dataclasses.fields(Choices)]
    if unknown := [choice for choice in choices if choice not in known]:
        raise unknown_name("option of add_data", unknown[0], known)
    root = named_data_root(data_root)
    if root is None:
        raise UserError(f"add_data needs a folder for its data sets; pass data_root or set {ROOT_VARIABLE}.")
    registry.check_new_family(name)
    if isinstance(split := choices.get("split"), tuple | list):
        choices["split"] = "/".join(map(str, split))
    return add(name, Path(source).expanduser(), root, Choices(**choices), reporter or Quiet())


def load_bench(
    name: str,
    *,
    data_root: str | Path | None = None,
    source: SourceChoice = "auto",
    data: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Bench:
    """A bench, with its data.

    Args:
        name: for example ``omni5w1s``; any numbers work.
        data_root: folder below which real data is looked for; by default what ``MLPIP_BENCH_DATA`` names, if anything.
        source: ``auto`` (real data where found, else the stand-in), ``real`` or ``procedural``.
        data: options of its task family by name, for example ``{"split": "vinyals"}``.
        device: where its tensors are.

    Raises:
        UserError: an unknown name or option, or data that is missing or broken.
    """
    if source not in get_args(SourceChoice):
        raise unknown_name("source", source, get_args(SourceChoice))
    root = data_root_of(Path(data_root) if data_root else None)
    spec = registry.bench(name, root)
    plugin = registry.family(spec.family, root)
    family = plugin(with_values(plugin.Options, data or {}, spec.family))
    found = family.load(DataRequest(source, root))
    return Bench(spec, family, found, resolve_device(device))

"""Tasks of a family as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mlpip_bench.benches.family import TaskFamily, TaskSource
from mlpip_bench.tasks.batch import TaskBatch
from mlpip_bench.utils.provenance import STAND_INS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_of_task(batch: TaskBatch, bench: str, family: TaskFamily, data: TaskSource, place: str) -> Figure | None:
    """A figure of a batch's first task, as methods get it: its support set and its queries, a row a class.

    Args:
        batch: the task.
        bench: name of the bench that it is of.
        family: of that bench.
        data: what it is made of.
        place: where it is among the bench's tasks, for the title: ``test task 0``.

    Returns:
        The figure; None where the task's points are no pictures.
    """
    from matplotlib import style  # here, since it takes a second, and most only compute

    from mlpip_bench.reporting.figures.style import STYLE
    from mlpip_bench.reporting.figures.task import task as task_figure

    parts = {}
    for name, points in (("support", batch.support), ("queries", batch.query)):
        pictures = points.x if family.kind == "classification" else points.y
        if pictures.ndim != 5 or pictures.shape[-2:] == (1, 1):  # feature vectors are [dimension, 1, 1]
            return None
        classes = points.y if points.way > 1 else torch.zeros(pictures.shape[:2], dtype=torch.int64)
        parts[name] = (pictures[0].cpu().double().numpy(), classes[0].cpu().numpy())
    stand_in = ", stand-in data" if data.source in STAND_INS else ""
    with style.context(STYLE):
        return task_figure(f"{bench} on {data.name}{stand_in}: {place}", parts)

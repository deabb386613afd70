"""Whether the batches of a trial fit the memory, before anything is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from pathlib import Path
from typing import Any

import torch

from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method, Problem
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.timers import peak_bytes

_SMALL = 2**26  # bytes of a batch's images; with fewer no machine has trouble, and nothing is measured

_WITH_ALL_ELSE = 1.5  # what a process took of the bytes of its tensors, with what allocators hold: 4.6 GB for 2.7


def check_memory(trial: Trial) -> None:
    """Refuse a trial whose training step cannot fit, which the system would answer by killing the process.

    Raises:
        UserError: it needs more than this machine, or its GPU, has.
    """
    plan, bench, shape = trial.plan, trial.bench, trial.problem.backbone.input_shape
    images = plan.tasks_per_batch * bench.way * (bench.shot + plan.train_queries)
    if trial.family.kind != "classification" or images * math.prod(shape) * 4 <= _SMALL:
        return
    needed, there = _WITH_ALL_ELSE * bytes_of_a_step(trial), _memory(trial.device)
    if needed > there:
        raise UserError(
            f"a training step must fit the memory; one of {trial.title} has {images} images and takes about "
            f"{needed / 1e9:.0f} GB, and there are {there / 1e9:.0f} GB. Use fewer ways, --set tasks_per_batch=1, or "
            "a smaller --set train_queries."
        )


def bytes_of_a_step(trial: Trial) -> int:
    """Most bytes of tensors alive at once in a training step, as far as they grow with its images.

    By steps of the method on a few images: what one more of a support set takes, and one more query. 0 where the
    method fails at that, which its trial will report.
    """
    plan, bench = trial.plan, trial.bench
    with contextlib.suppress(Exception):
        of_support, of_query = _bytes_of_an_image(trial.plugin, trial.settings, trial.problem)
        per_class = bench.shot * of_support + plan.train_queries * of_query
        return plan.tasks_per_batch * bench.way * per_class
    return 0


@functools.lru_cache(maxsize=64)
def _bytes_of_an_image(plugin: type[Method[Any]], settings: Any, problem: Problem) -> tuple[int, int]:
    """Of a support set, and of a query."""
    way, more = min(problem.way, 5), 4
    device = torch.device("cpu")

    def images(per_class: int) -> Labeled:
        y = torch.arange(way).repeat_interleave(per_class).unsqueeze(0)
        return Labeled(torch.rand(*y.shape, *problem.backbone.input_shape), y, way)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = plugin(dataclasses.replace(problem, way=way), settings).train()

        def peak(shots: int, queries: int) -> int:
            batch = TaskBatch(images(shots), images(queries))
            return peak_bytes(lambda: method.loss(batch).backward(), device)

        peak(1, 1)  # gradients of parameters are made once
        few = peak(2, 2)
        of_support, of_query = (
            max(0, peak(2 + shots, 2 + queries) - few) // (way * more) for shots, queries in ((more, 0), (0, more))
        )
    return of_support, of_query


def _memory(device: torch.device) -> int:
    """Bytes of the GPU, or of this machine as far as this process may use it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    sizes = []
    with contextlib.suppress(ValueError, OSError, AttributeError):  # elsewhere than on Linux and macOS
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in _limits_of_cgroups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")):
        with contextlib.suppress(ValueError, OSError):  # "max", or no such limit
            sizes.append(int(limit.read_text()))
    return min(sizes, default=2**62)


def _limits_of_cgroups(mounted: Path, own: Path) -> list[Path]:
    """Where the limits of this process's control group and of those above it stand, in either version of them."""
    found = []
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            number, controllers, name = line.split(":", 2)
            unified = number == "0"
            if unified or "memory" in controllers.split(","):
                top = mounted if unified else mounted / "memory"
                group = top / name.strip("/")
                file = "memory.max" if unified else "memory.limit_in_bytes"
                # In a container its own group is mounted at the top, and the name is one of outside.
                found += [folder / file for folder in (group, *group.parents) if folder.is_relative_to(top)]
    return found

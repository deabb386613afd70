"""Whether the batches of a trial fit the memory, before anything is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method, Problem
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.device import give_back_freed_memory
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.timers import peak_bytes

_SMALL = 2**26  # bytes of a batch's images; with fewer no machine has trouble, and nothing is measured

_WITH_ALL_ELSE = 1.5  # what a process took of the bytes of its tensors, with what allocators hold: 4.6 GB for 2.7


def check_memory(trials: Sequence[Trial], at_once: int = 1) -> None:
    """Refuse trials whose training steps cannot fit, which the system would answer by killing the process.

    Args:
        trials: that are to be trained, on one device.
        at_once: how many of them share its memory.

    Raises:
        UserError: they need more than is available on this machine, or on its GPU.
    """
    large = [trial for trial in trials if trial.family.kind == "classification" and _bytes_of_images(trial) > _SMALL]
    if not large:
        return
    needed = sorted(((_WITH_ALL_ELSE * bytes_of_a_step(t), t) for t in large), key=lambda pair: pair[0], reverse=True)
    together = [number for number, _ in needed[:at_once]]
    (most, trial), there = needed[0], _memory(trials[0].device)
    if sum(together) > there.available:
        several = f"{len(together)} at once take {_gigabytes(sum(together))}, " if len(together) > 1 else ""
        raise UserError(
            f"a training step must fit the memory; one of {trial.title} has {_images(trial)} images and takes about "
            f"{_gigabytes(most)}, {several}and of the {_gigabytes(there.total)} of "
            f"{'the GPU' if trial.device.type == 'cuda' else 'this machine'} {_gigabytes(there.available)} are "
            f"available. Use {'fewer --jobs, ' if several else ''}fewer ways, --set tasks_per_batch=1, or a smaller "
            "--set train_queries; or end what else takes memory."
        )


def _images(trial: Trial) -> int:
    """Of a training step."""
    return trial.plan.tasks_per_batch * trial.bench.way * (trial.bench.shot + trial.plan.train_queries)


def _bytes_of_images(trial: Trial) -> int:
    return _images(trial) * math.prod(trial.problem.backbone.input_shape) * 4


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:.0f} GB" if number >= 1e10 else f"{number / 1e9:.1f} GB"


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
            batch = TaskBatch(images(shots), images(queries), classes=torch.arange(way).unsqueeze(0))
            return peak_bytes(lambda: method.loss(batch).backward(), device)

        peak(1, 1)  # gradients of parameters are made once
        few = peak(2, 2)
        of_support, of_query = (
            max(0, peak(2 + shots, 2 + queries) - few) // (way * more) for shots, queries in ((more, 0), (0, more))
        )
    return of_support, of_query


@dataclass(frozen=True)
class _Memory:
    """Bytes of a machine, of a GPU, or of a control group.

    Attributes:
        total: all of it.
        available: what is free, or held by caches that would be given back.
    """

    total: int
    available: int


def _memory(device: torch.device) -> _Memory:
    """Of the GPU, or of this machine as far as this process may use it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return _Memory(total, free + cached)
    give_back_freed_memory()
    found = [_of_machine(Path("/proc/meminfo"))]
    for folder, version in _control_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")):
        with contextlib.suppress(ValueError, OSError):  # "max", or no such limit
            found.append(_of_group(folder, version))
    return _Memory(min(m.total for m in found), min(m.available for m in found))


def _of_machine(meminfo: Path) -> _Memory:
    total = 2**62
    with contextlib.suppress(ValueError, OSError, AttributeError):  # elsewhere than on Linux and macOS
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(ValueError, OSError, KeyError):  # elsewhere than on Linux
        lines = (line.split(":") for line in meminfo.read_text().splitlines())
        kilobytes = {name: value.split()[0] for name, value in lines}["MemAvailable"]
        return _Memory(total, 1024 * int(kilobytes))
    return _Memory(total, total)


_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
    2: ("memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable")),
}
"""By version of control groups: the limit, what is used, and what of memory.stat would be given back."""


def _of_group(folder: Path, version: int) -> _Memory:
    """Of a control group that has a limit.

    Raises:
        OSError: it has none.
        ValueError: it has one in words.
    """
    limit_file, used_file, caches = _FILES[version]
    limit, used, cached = int((folder / limit_file).read_text()), 0, 0
    with contextlib.suppress(ValueError, OSError):
        used = int((folder / used_file).read_text())
        held = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = sum(int(held.get(name, 0)) for name in caches)
    return _Memory(limit, min(limit, max(0, limit - used + cached)))


def _control_groups(mounted: Path, own: Path) -> list[tuple[Path, int]]:
    """The folders of this process's control group and of those above it, each with its version."""
    found = []
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            number, controllers, name = line.split(":", 2)
            unified = number == "0"
            if unified or "memory" in controllers.split(","):
                top = mounted if unified else mounted / "memory"
                group = top / name.strip("/")
                # In a container its own group is mounted at the top, and the name is one of outside.
                folders = (folder for folder in (group, *group.parents) if folder.is_relative_to(top))
                found += [(folder, 2 if unified else 1) for folder in folders]
    return found

"""Whether the batches of a trial fit the memory, before anything is trained."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import torch
from torch import Tensor

from mlpip_bench.execution.trial import Trial
from mlpip_bench.utils.errors import UserError

_SMALL = 2**26  # bytes of a batch's images; with fewer no machine has trouble, and nothing is measured


def check_memory(trial: Trial) -> None:
    """Refuse a trial whose training batch cannot fit, which the system would answer by killing the process.

    What the backbone keeps of a query for its gradient is measured on a few images; of a support set it may keep more,
    for the gradient of its moments. That is the least that any method needs; those that differentiate through gradient
    steps need several times as much.

    Raises:
        UserError: it needs more than this machine, or its GPU, has.
    """
    plan, bench, shape = trial.plan, trial.bench, trial.problem.backbone.input_shape
    images = plan.tasks_per_batch * bench.way * (bench.shot + plan.train_queries)
    if trial.family.kind != "classification" or images * math.prod(shape) * 4 <= _SMALL:
        return
    needed, there = images * bytes_of_an_image(trial), _memory(trial.device)
    if needed > there:
        raise UserError(
            f"a batch must fit the memory; one of {trial.title} has {images} images, of which the backbone keeps "
            f"{needed / 1e9:.0f} GB, and there are {there / 1e9:.0f} GB. Use fewer ways, --set tasks_per_batch=1, or "
            "a smaller --set train_queries."
        )


def bytes_of_an_image(trial: Trial) -> int:
    """What the backbone keeps of each image until its gradient is computed, at least."""
    problem = trial.problem

    def kept(images: int) -> int:
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        x = torch.zeros(1, images, *problem.backbone.input_shape)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outcome = backbone(x, statistics)  # noqa: F841  # what is kept lives as long as it
        return sum(sizes.values())

    with torch.random.fork_rng(devices=[]):
        backbone = problem.build_backbone().train()
        with torch.no_grad():
            _, statistics = backbone(torch.zeros(1, 1, *problem.backbone.input_shape))
        return max(0, kept(12) - kept(4)) // 8


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

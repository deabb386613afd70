"""Seconds and bytes of work on a device."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


class Stopwatch:
    """Time between marks: CUDA events on a GPU, which works behind its queue; else a clock, which waits for MPS.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        """The present moment of the device's work."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._marks.append(event)
        else:
            self.wait()
            self._marks.append(time.perf_counter())

    def wait(self) -> None:
        """Until all work is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def laps(self) -> list[float]:
        """Seconds between each mark and the next; waits for the work."""
        self.wait()
        if self._device.type == "cuda":
            return [a.elapsed_time(b) / 1000 for a, b in pairwise(self._marks)]
        return [b - a for a, b in pairwise(self._marks)]


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Most bytes of tensors that were alive at once in the course of some work, beyond those alive before it.

    As torch's allocators count them: what a C library keeps for later, and scratch memory inside a kernel on a CPU,
    are not seen. MPS's keeps no count of the most; it gives nothing back by itself, and what it has taken meanwhile is
    somewhat more.
    """
    with _no_collection():
        if device.type == "mps":
            torch.mps.synchronize()
            torch.mps.empty_cache()
            taken = torch.mps.driver_allocated_memory()
            work()
            torch.mps.synchronize()
            return torch.mps.driver_allocated_memory() - taken
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            work()
            torch.cuda.synchronize(device)
            peak: int = torch.cuda.max_memory_allocated(device)
            return peak - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            work()
        events = profiler.profiler.kineto_results.events()
        changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
        alive: list[int] = list(accumulate((change for _, change in changes), initial=0))
        return max(alive)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage of earlier work is freed before, and none meanwhile, so that a peak is of this work alone."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

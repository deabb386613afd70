"""The machine: which device runs, how the CPU's memory is handled, and what a record says of both."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import mlpip_bench
from mlpip_bench.utils.errors import UserError


def resolve_device(name: str, *, here: bool = True) -> torch.device:
    """``auto``, ``cpu``, ``mps``, ``cuda`` or ``cuda:N`` to a device that is there; ``auto`` takes CUDA, else the CPU.

    Args:
        name: what the user wrote.
        here: whether it is this machine that must have it, rather than one that the work is sent to.

    Raises:
        UserError: any other name, or a GPU that this machine does not have.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "mps", "cuda"):
        raise UserError(f"device must be auto, cpu, mps, cuda or cuda:N; got {name!r}.")
    if here and device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"--device {name} needs a CUDA GPU; torch {torch.__version__} sees {torch.cuda.device_count()} here. "
            "Use --device cpu, or a torch build with CUDA on a machine that has one."
        )
    if here and device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(
            f"--device {name} needs the GPU of a Mac with Apple silicon; torch {torch.__version__} sees none here. "
            "Use --device cpu."
        )
    return device


def most_resident_bytes() -> int:
    """Most memory that this process has had at once."""
    if sys.platform == "win32":
        return _peak_working_set()
    import resource  # which Windows does not have

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _peak_working_set() -> int:
    """The same by Windows' own count."""

    class Counters(ctypes.Structure):  # PROCESS_MEMORY_COUNTERS of psapi.h
        _fields_ = (
            ("cb", ctypes.c_uint32),
            ("page_fault_count", ctypes.c_uint32),
            ("peak_working_set_size", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 7),
        )

    kernel32 = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]  # on Windows alone
    kernel32.GetCurrentProcess.restype = ctypes.c_void_p
    kernel32.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.POINTER(Counters), ctypes.c_uint32)
    counters = Counters(cb=ctypes.sizeof(Counters))
    if not kernel32.K32GetProcessMemoryInfo(kernel32.GetCurrentProcess(), ctypes.byref(counters), counters.cb):
        raise OSError("Windows does not say how much memory this process has had")
    peak: int = counters.peak_working_set_size
    return peak


def keep_freed_memory() -> None:
    """Tell glibc to keep large buffers instead of mapping them anew for every activation.

    Page faults on fresh maps take a third to a half of a convolution's time on a CPU. Elsewhere than
    on glibc this does nothing.
    """
    m_trim_threshold, m_mmap_max, never = -1, -4, -1
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, never)


def give_back_freed_memory() -> None:
    """Give the system back what this process has freed, and kept since :func:`keep_freed_memory`."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine and numeric settings, as JSON values."""
    cuda = device.type == "cuda"
    return {
        "mlpip_bench": mlpip_bench.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": version("numpy"),
        "numba": _numba(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "gpu": _gpu(device),
        "driver": _driver(device) if cuda else None,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "cudnn_benchmark": torch.backends.cudnn.benchmark if cuda else None,
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
        "tf32_convolutions": torch.backends.cudnn.allow_tf32 if cuda else None,
    }


def _numba() -> str | None:
    """Whose loops a CPU takes for what is behind a convolution, where it is installed."""
    with contextlib.suppress(PackageNotFoundError):
        return version("numba")
    return None


def _gpu(device: torch.device) -> str | None:
    if device.type == "mps":
        return torch.backends.mps.get_name()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def _driver(device: torch.device) -> str | None:
    """The GPU driver's version and the highest clock rate, as its own tool tells them; None where that is not there."""
    query = [
        "nvidia-smi",
        "--query-gpu=driver_version,clocks.max.sm",
        "--format=csv,noheader",
        f"--id={device.index or 0}",
    ]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()

"""Where the jobs of a run are done: in this process, in local processes, or on a Ray cluster.

All do a job by the same function, which writes its records itself; so the results folder must be one that all see.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import torch
from rich.console import Console

from mlpip_bench.cells import RunConfig
from mlpip_bench.utils.errors import UserError, one_line
from mlpip_bench.utils.progress import ConsoleReporter, Receiver, Relay, Reporter

Stamp: TypeAlias = tuple[int, int] | None
"""Which writing of a file it is: inode and time of change; None where there is no file."""


@dataclass(frozen=True, eq=False)
class Job:
    """A piece of work that one process does: a cell, or the measurement of several trained ones side by side.

    Attributes:
        title: for messages.
        config: what its cells are planned from, in any process.
        keys: of its cells.
        protocols: what is measured.
        side_by_side: whether that is one protocol for all cells at once, rather than some for one cell.
        stamps: the files of its records as they were when the run began, by path.
        lock: file of the lock that is held meanwhile.
    """

    title: str
    config: RunConfig
    keys: tuple[str, ...]
    protocols: tuple[str, ...]
    side_by_side: bool
    stamps: Mapping[Path, Stamp]
    lock: Path


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: ``done``; ``nothing``, since another run had made its records; ``failed``, which is its own affair;
            ``busy``, since another run is at work on it; ``killed``, with its process; ``stopped`` by something that
            stops the whole run.
        message: why, unless it is done.
    """

    status: Literal["done", "nothing", "failed", "busy", "killed", "stopped"]
    message: str = ""


class Executor(abc.ABC):
    """Does jobs, some at once; a context, at whose end none is left running.

    Attributes:
        slots: how many jobs may be under way.
    """

    slots: int = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @abc.abstractmethod
    def start(self, job: Job) -> None:
        """Begin a job."""

    @abc.abstractmethod
    def wait(self) -> tuple[Job, Outcome]:
        """Until one of the jobs that were started has ended."""

    @abc.abstractmethod
    def close(self) -> None:
        """End what is under way; what it has saved is kept."""


class InProcess(Executor):
    """One job after the other, in this process.

    Args:
        perform: does a job.
    """

    def __init__(self, perform: Callable[[Job], Outcome]) -> None:
        self._perform = perform
        self._jobs: list[Job] = []

    def start(self, job: Job) -> None:
        """Keep it until somebody waits for it."""
        self._jobs.append(job)

    def wait(self) -> tuple[Job, Outcome]:
        """Do the job."""
        job = self._jobs.pop(0)
        return job, self._perform(job)

    def close(self) -> None:
        """Nothing is under way between two calls."""


Perform: TypeAlias = Callable[[Job, Reporter], Outcome]
"""Does a job in a process that knows nothing of the run; importable by name."""


class LocalProcesses(Executor):
    """Some jobs at once on this machine, each in a process of its own, on GPUs by turns.

    A process that is killed takes no other job with it.

    Args:
        perform: does a job.
        reporter: shows the bars of all processes.
        processes: how many at once.
        threads: CPU threads of each.
    """

    def __init__(self, perform: Perform, reporter: Reporter, processes: int, threads: int) -> None:
        self.slots = processes
        self._perform, self._reporter, self._threads = perform, reporter, threads
        self._running: dict[Connection, tuple[Job, SpawnProcess, Receiver, int]] = {}
        # Spawned, not forked: a fork would have locked locks and no threads of CUDA and of torch.
        self._context = multiprocessing.get_context("spawn")

    def start(self, job: Job) -> None:
        """Start its process."""
        receiving, sending = self._context.Pipe(duplex=False)
        slot = min(set(range(self.slots)) - {slot for *_, slot in self._running.values()})
        arguments = (self._perform, _on_gpu(job, slot), self._threads, sending)
        process = self._context.Process(target=_child, args=arguments, daemon=True)
        process.start()
        sending.close()  # so that the other end's closing is seen
        self._running[receiving] = (job, process, Receiver(self._reporter), slot)

    def wait(self) -> tuple[Job, Outcome]:
        """Show what the processes report until one of them ends."""
        while True:
            for connection in wait(list(self._running)):
                assert isinstance(connection, Connection)
                job, process, receiver, _ = self._running[connection]
                try:
                    event = connection.recv()
                except (EOFError, OSError):  # closed without an outcome
                    process.join()
                    event = Outcome("killed", f"its process ended {_how(process.exitcode)}")
                if isinstance(event, Outcome):
                    receiver.close()
                    del self._running[connection]
                    connection.close()
                    process.join()
                    return job, event
                receiver.receive(event)

    def close(self) -> None:
        """Terminate the processes."""
        for _, process, receiver, _ in self._running.values():
            receiver.close()
            process.terminate()
        for connection, (_, process, *_) in self._running.items():
            process.join()
            connection.close()
        self._running.clear()


def _on_gpu(job: Job, slot: int) -> Job:
    """The job on one GPU of several, unless its user named one."""
    if job.config.device not in ("auto", "cuda") or not torch.cuda.is_available():
        return job
    device = f"cuda:{slot % torch.cuda.device_count()}"
    return dataclasses.replace(job, config=dataclasses.replace(job.config, device=device))


def _child(perform: Perform, job: Job, threads: int, connection: Connection) -> None:
    """What a local process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends them
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    torch.set_num_threads(threads)
    connection.send(perform(job, Relay(connection.send)))


def _end_with(sentinel: int) -> None:
    """End this process when its parent is no more, or it would hold its cell against the run that comes after."""
    wait([sentinel])
    os._exit(1)


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    return f"with status {exitcode}"


class RayCluster(Executor):
    """Jobs as Ray tasks, which the cluster's scheduler places by the CPUs and GPUs that they declare.

    Args:
        perform: does a job.
        reporter: is told where jobs will have to wait.
        address: ``local`` for a cluster of this machine's own, ``auto`` for the one that this machine belongs to, or
            the address of one.
        threads: CPUs of each job.
        gpus: GPUs of each job.

    Raises:
        UserError: Ray is not installed, there is no cluster, or this machine has not what a job needs.
    """

    slots = sys.maxsize  # Ray has a queue of its own, and clusters grow with what waits in it

    def __init__(self, perform: Perform, reporter: Reporter, address: str, threads: int, gpus: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError("--ray needs Ray; install the extra: pip install 'mlpip_bench[cluster]'.") from error
        self._ray: Any = ray
        self._jobs: dict[Any, Job] = {}
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        _check_listening(address)
        try:
            ray.init(address=address, runtime_env={"env_vars": environment}, include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_cluster(address, error) from error
        nodes = [node["Resources"] for node in self._ray.nodes()]
        most_cpus, most_gpus = (max(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
        if threads > most_cpus or gpus > most_gpus:
            told = (
                f"a cell takes {threads} CPUs and {gpus} GPUs of one node; those of {address} have at most "
                f"{most_cpus:.0f} and {most_gpus:.0f}"
            )
            if address == "local":
                self.close()
                raise UserError(f"{told}. Ask for fewer with --cpus, or use --device cpu.")
            reporter.say(f"{told}: cells wait until the cluster has grown")
        # Retries are the run's, which starts a killed job again whatever did it.
        self._task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_ray_task)
        self._arguments = (perform, threads)

    def start(self, job: Job) -> None:
        """Hand it to the scheduler."""
        self._jobs[self._task.remote(*self._arguments, job)] = job

    def wait(self) -> tuple[Job, Outcome]:
        """Until one has ended, wherever it was."""
        (ended,), _ = self._ray.wait(list(self._jobs), num_returns=1)
        job = self._jobs.pop(ended)
        try:
            outcome: Outcome = self._ray.get(ended)
        except self._ray.exceptions.RayTaskError as error:
            return job, Outcome(
                "stopped",
                f"every node of a cluster must have the suite and what it imports; {job.title} cannot be done on one: "
                f"{one_line(error.cause)}.",
            )
        except self._ray.exceptions.RayError as error:  # the worker, or its node
            return job, Outcome("killed", one_line(error))
        return job, outcome

    def close(self) -> None:
        """Leave the cluster, which ends what is under way."""
        with contextlib.suppress(Exception):
            self._ray.shutdown()


def _check_listening(address: str) -> None:
    """Ray itself would try for minutes."""
    if match := re.fullmatch(r"(?:ray://)?([^/]+):(\d+)", address):
        try:
            socket.create_connection((match[1], int(match[2])), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: BaseException) -> UserError:
    return UserError(
        f"--ray takes local, auto, or the address of a cluster that runs (ray start); {address} cannot be reached: "
        f"{one_line(error)}."
    )


_PASSED_ON = ("MLPIP_BENCH_CACHE", "TORCH_CPP_LOG_LEVEL", "KINETO_LOG_LEVEL")


def _ray_task(perform: Perform, threads: int, job: Job) -> Outcome:
    """What a Ray worker does; Ray shows its lines on the driver's screen."""
    torch.set_num_threads(threads)
    return perform(job, ConsoleReporter(Console(stderr=True, force_terminal=False)))

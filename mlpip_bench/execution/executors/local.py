"""Some jobs at once on this machine, each in a process of its own."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from mlpip_bench.execution.executors.base import Executor, Job, Outcome, Perform
from mlpip_bench.utils.progress import Receiver, Relay, Reporter


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
        self._running: dict[Any, tuple[Job, SpawnProcess, Receiver, int]] = {}
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
            connection: Any  # on Windows a PipeConnection
            for connection in wait(list(self._running)):
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
    """End this process when its parent is no more, or it would hold its trial against the run that comes after."""
    wait([sentinel])
    os._exit(1)


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    return f"with status {exitcode}"

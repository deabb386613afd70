"""Some jobs at once on this machine, each in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any

import torch

from mlpip_bench.execution.executors.base import Executor, Job, Outcome, Perform
from mlpip_bench.utils import interrupts, streams
from mlpip_bench.utils.errors import one_line
from mlpip_bench.utils.progress import Event, Receiver, Relay, Reporter


class LocalProcesses(Executor):
    """Some jobs at once on this machine, each in a process of its own, on GPUs by turns.

    A process does one job after the other, for starting one takes seconds; but none after one that is to be alone, or
    that has failed. One that is killed, or ends itself, takes no other job with it.

    Args:
        perform: does a job.
        reporter: shows the bars of all processes.
        processes: how many at once.
        threads: CPU threads of each.
        time_limit: seconds that a job may take; None for as long as it wants.
    """

    def __init__(
        self, perform: Perform, reporter: Reporter, processes: int, threads: int, time_limit: float | None = None
    ) -> None:
        self.slots = processes
        self._perform, self._reporter, self._threads, self._limit = perform, reporter, threads, time_limit
        self._running: dict[Any, _Running] = {}
        self._idle: dict[int, _Process] = {}  # by slot
        # Spawned, not forked: a fork would have locked locks and no threads of CUDA and of torch.
        self._context = multiprocessing.get_context("spawn")

    def start(self, job: Job) -> None:
        """Give it to a process."""
        slot = min(set(range(self.slots)) - {running.slot for running in self._running.values()})
        process, given = self._idle.pop(slot, None), _on_gpu(job, slot)
        if process is not None and (job.alone or not process.give(given)):
            process.end()
            process = None
        if process is None:
            process = self._start_process()
            process.give(given)
        self._running[process.connection] = _Running(job, process, Receiver(self._reporter), slot, time.monotonic())

    def _start_process(self) -> _Process:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_child, args=(self._perform, self._threads, theirs), daemon=True)
        with _without_script(), interrupts.not_for_children():
            process.start()
        theirs.close()  # so that the other end's closing is seen
        return _Process(process, ours)

    def wait(self) -> tuple[Job, Outcome]:
        """Show what the processes report until one of the jobs ends."""
        while True:
            connections: list[Any] = list(self._running)  # on Windows of another type
            # A process that is no more counts as well as a closed connection, which its own children may hold open.
            sentinels = [running.process.process.sentinel for running in self._running.values()]
            wait([*connections, *sentinels], _LOOK_SECONDS)
            for connection in connections:
                running = self._running[connection]
                event = self._next_event(running)
                if isinstance(event, Outcome):
                    del self._running[connection]
                    running.receiver.close()
                    if running.job.alone or event.status not in _LEAVES_IT_AS_IT_WAS:
                        running.process.end()
                    else:
                        self._idle[running.slot] = running.process
                    return running.job, event
                if event == _STARTED:
                    running.began = time.monotonic()
                elif event is not None:
                    running.receiver.receive(event)

    def _next_event(self, running: _Running) -> Outcome | Event | None:
        """What a process has sent, or how it ended; None where there is nothing new."""
        process, connection = running.process.process, running.process.connection
        over = not process.is_alive()  # before its connection is read, or what it sent last might be missed
        try:
            if connection.poll():
                event: Outcome | Event = connection.recv()
                return event
        except Exception:  # closed, or holds what only a plugin can have written
            over = True
        if over:
            process.join(_END_SECONDS)
            return _end_of(process.exitcode)
        if self._limit is not None and time.monotonic() - running.began > self._limit:
            process.terminate()
            return Outcome("crashed", f"it took longer than --time-limit, {self._limit:g} seconds, and was ended")
        return None

    def close(self) -> None:
        """Terminate the processes."""
        processes = [*self._idle.values(), *(running.process for running in self._running.values())]
        for process in processes:
            process.process.terminate()
        for running in self._running.values():
            running.receiver.close()
        for process in processes:
            process.end()
        self._idle.clear()
        self._running.clear()


_LEAVES_IT_AS_IT_WAS = ("done", "nothing", "busy")
"""How jobs end after which their process may do another."""


@dataclasses.dataclass
class _Process:
    """A process, and the connection by which it gets jobs and says what it does."""

    process: SpawnProcess
    connection: Connection

    def give(self, job: Job) -> bool:
        """Send it a job; False where it is no more, which a process that has just been started says later."""
        try:
            self.connection.send(job)
        except OSError:
            return False
        return self.process.is_alive()

    def end(self) -> None:
        """End it, whatever it does about that."""
        self.connection.close()
        self.process.join(_END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@dataclasses.dataclass
class _Running:
    """A job under way in a process, since when it or its work has begun."""

    job: Job
    process: _Process
    receiver: Receiver
    slot: int
    began: float


_STARTED: Event = ("started",)
"""Sent by a process that has imported what it needs, which its time limit does not count."""
_LOOK_SECONDS = 0.5
_END_SECONDS = 5.0
_KILLS = {-number for name in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT") if (number := getattr(signal, name, 0))}
"""Exit codes of processes that somebody else has ended, such as the system where memory is short."""


def _end_of(exitcode: int | None) -> Outcome:
    """The outcome of a process that ended without one."""
    return Outcome("killed" if exitcode in _KILLS else "crashed", f"its process ended {_how(exitcode)}")


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """A process that is started within does not import its parent's script, which may start this very run."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _on_gpu(job: Job, slot: int) -> Job:
    """The job on one GPU of several, unless its user named one."""
    if job.config.device not in ("auto", "cuda") or not torch.cuda.is_available():
        return job
    device = f"cuda:{slot % torch.cuda.device_count()}"
    return dataclasses.replace(job, config=dataclasses.replace(job.config, device=device))


def _child(perform: Perform, threads: int, connection: Connection) -> None:
    """What a local process does: jobs, until its connection is closed."""
    interrupts.as_child()
    streams.forgive()
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    torch.set_num_threads(threads)

    def report(event: Outcome | Event) -> None:
        with contextlib.suppress(OSError):  # a parent that ends has closed its side, and hears nothing more
            connection.send(event)

    try:
        while True:
            job = connection.recv()
            report(_STARTED)
            try:
                outcome = perform(job, Relay(report))
            except interrupts.Interrupted:
                raise
            except BaseException as error:  # whatever a plugin raises is its job's failure
                outcome = Outcome("crashed", one_line(error))
            report(outcome)
    except interrupts.Interrupted as error:  # by the parent, or with it
        interrupts.end_at_once(error.number)
        raise
    except (EOFError, OSError):  # closed by the parent: with OSError where something that was sent to it was not read
        pass


def _end_with(sentinel: int) -> None:
    """End this process when its parent is no more, or it would hold its trial against the run that comes after."""
    wait([sentinel])
    os._exit(1)


def _how(exitcode: int | None) -> str:
    if exitcode is None:
        return "by closing its connection"
    if exitcode < 0:
        return f"by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    return f"with status {exitcode}, before its work was done"

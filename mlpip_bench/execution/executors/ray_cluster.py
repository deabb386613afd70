"""Jobs on a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import Any

import torch
from rich.console import Console

from mlpip_bench.execution.executors.base import Executor, Job, Outcome, Perform
from mlpip_bench.utils.errors import UserError, one_line
from mlpip_bench.utils.progress import ConsoleReporter, Reporter


class RayCluster(Executor):
    """Jobs as Ray tasks, which the cluster's scheduler places by the CPUs and GPUs that they declare.

    Args:
        perform: does a job.
        reporter: shows where jobs will have to wait.
        address: ``local`` for a cluster of this machine's own, ``auto`` for the one that this machine belongs to, or
            the address of one.
        threads: CPUs of each job.
        gpus: GPUs of each job.

    Raises:
        UserError: Ray is not installed, there is no cluster, or this machine has not what a job needs.
    """

    slots = 20_000  # Ray has a queue of its own, and clusters grow with what waits in it; more would only take memory

    def __init__(self, perform: Perform, reporter: Reporter, address: str, threads: int, gpus: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError("--ray needs Ray; install the extra: pip install 'mlpip_bench[cluster]'.") from error
        self._ray: Any = ray
        self._jobs: dict[Any, Job] = {}
        self._ended: list[Any] = []
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        _check_listening(address)
        try:
            ray.init(address=address, runtime_env={"env_vars": environment}, include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_cluster(address, error) from error
        nodes = [node["Resources"] for node in self._ray.nodes()]
        most_cpus, most_gpus = (max(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
        if threads > most_cpus or gpus > most_gpus:
            message = (
                f"a trial takes {threads} CPUs and {gpus} GPUs of one node; those of {address} have at most "
                f"{most_cpus:.0f} and {most_gpus:.0f}"
            )
            if address == "local":
                self.close()
                raise UserError(f"{message}. Ask for fewer with --cpus, or use --device cpu.")
            reporter.say(f"{message}: trials wait until the cluster has grown")
        # Retries are the run's, which starts a killed job again whatever did it.
        self._task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_ray_task)
        self._arguments = (perform, threads)

    def start(self, job: Job) -> None:
        """Hand it to the scheduler."""
        self._jobs[self._task.remote(*self._arguments, job)] = job

    def wait(self) -> tuple[Job, Outcome]:
        """Until one has ended, wherever it was."""
        if not self._ended:  # all that have, since looking takes longer the more are under way
            refs = list(self._jobs)
            self._ray.wait(refs, num_returns=1)
            self._ended, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        ended = self._ended.pop()
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

"""One job after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable

from mlpip_bench.execution.executors.base import Executor, Job, Outcome


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

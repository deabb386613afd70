"""Jobs, and what does them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from mlpip_bench.execution.config import RunConfig
from mlpip_bench.utils.progress import Reporter

Stamp: TypeAlias = tuple[int, int] | None
"""Which writing of a file it is: inode and time of change; None where there is no file."""


@dataclass(frozen=True, eq=False)
class Job:
    """A piece of work that one process does: a trial, or the measurement of several trained ones side by side.

    Attributes:
        title: for messages.
        config: what its trials are planned from, in any process.
        keys: of its trials.
        protocols: what is measured.
        side_by_side: whether that is one protocol for all trials at once, rather than some for one trial.
        stamps: the files of its records as they were when the run began, by path.
        lock: file of the lock that is held meanwhile.
        alone: whether its process, if it has one of its own, is to do no other: a plugin of another package takes part.
    """

    title: str
    config: RunConfig
    keys: tuple[str, ...]
    protocols: tuple[str, ...]
    side_by_side: bool
    stamps: Mapping[Path, Stamp]
    lock: Path
    alone: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: ``done``; ``nothing``, since another run had made its records; ``failed``, which is its own affair;
            ``busy``, since another run is at work on it; ``killed``, with its process, by somebody else; ``crashed``,
            with its process, by its own doing; ``stopped`` by something that stops the whole run.
        message: why, unless it is done.
        failures: of a job of several trials that is done, why some of them have failed, by their keys.
    """

    status: Literal["done", "nothing", "failed", "busy", "killed", "crashed", "stopped"]
    message: str = ""
    failures: Mapping[str, str] = field(default_factory=dict)


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


Perform: TypeAlias = Callable[[Job, Reporter], Outcome]
"""Does a job in a process that knows nothing of the run; importable by name."""

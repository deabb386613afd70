"""Progress of long work: a bar with an estimate on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINE_SECONDS = 20.0


class Step(Protocol):
    """Told how far a stage is, and what to show beside the bar."""

    def __call__(self, completed: int, note: str = "") -> None:
        """So many units are complete."""


class Reporter(Protocol):
    """Where progress goes."""

    def stage(self, title: str, total: int, start: int = 0) -> contextlib.AbstractContextManager[Step]:
        """A stage of ``total`` units of which ``start`` were done before."""

    def say(self, message: str) -> None:
        """One line of text."""


class Quiet:
    """Reports nothing."""

    @contextlib.contextmanager
    def stage(self, title: str, total: int, start: int = 0) -> Iterator[Step]:  # noqa: ARG002
        """No bar."""
        yield _ignore

    def say(self, message: str) -> None:
        """Nothing."""


def _ignore(completed: int, note: str = "") -> None:
    """Report nothing."""


class ConsoleReporter:
    """Reports to a rich console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, message: str) -> None:
        """One line of text."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def stage(self, title: str, total: int, start: int = 0) -> Iterator[Step]:
        """A bar where the console is a terminal, else a line every 20 seconds and at the end."""
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=self.console) as bar:
                task = bar.add_task(title, total=total, completed=start, note="")
                yield lambda completed, note="": bar.update(task, completed=completed, note=note)
            return
        began = last = time.monotonic()

        def line(completed: int, note: str = "") -> None:
            nonlocal last
            now = time.monotonic()
            if completed >= total or now - last >= _LINE_SECONDS:
                last = now
                left = (now - began) / max(completed - start, 1) * (total - completed)
                self.say(f"{title}  {completed}/{total}  {note}  {now - began:.0f} s, about {left:.0f} s left")

        yield line

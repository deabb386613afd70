"""Progress of long work: a bar with an estimate on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mlpip_bench.utils.encoding import printable

_LINE_SECONDS = 20.0
_RELAY_SECONDS = 0.2

Event: TypeAlias = tuple[str | int, ...]
"""What a :class:`Relay` sends."""


class Step(Protocol):
    """Called with how far a stage is, and a note to show next to the bar."""

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
        self._bars: Progress | None = None  # of all stages under way, one below the other
        self._stages = 0

    def say(self, message: str) -> None:
        """One line of text."""
        self.console.print(printable(message), markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def stage(self, title: str, total: int, start: int = 0) -> Iterator[Step]:
        """A bar where the console is a terminal, else a line every 20 seconds and at the end."""
        with (self._bar if self.console.is_terminal else self._lines)(title, total, start) as step:
            yield step

    @contextlib.contextmanager
    def _bar(self, title: str, total: int, start: int) -> Iterator[Step]:
        if self._bars is None:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._bars.start()
        bars = self._bars
        self._stages += 1
        task = bars.add_task(title, total=total, completed=start, note="")
        try:
            yield lambda completed, note="": bars.update(task, completed=completed, note=note)
        finally:
            self._stages -= 1
            if self._stages:
                bars.remove_task(task)  # those of a hundred trials would fill the screen
            else:
                bars.stop()
                self._bars = None

    @contextlib.contextmanager
    def _lines(self, title: str, total: int, start: int) -> Iterator[Step]:
        began = last = time.monotonic()

        def line(completed: int, note: str = "") -> None:
            nonlocal last
            now = time.monotonic()
            if completed >= total or now - last >= _LINE_SECONDS:
                last = now
                left = (now - began) / max(completed - start, 1) * (total - completed)
                self.say(f"{title}  {completed}/{total}  {note}  {now - began:.0f} s, about {left:.0f} s left")

        yield line


class Relay:
    """Reports to another process.

    Args:
        send: takes events, which a :class:`Receiver` there understands.
    """

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send
        self._numbers = itertools.count()

    def say(self, message: str) -> None:
        """One line of text."""
        self._send(("say", message))

    @contextlib.contextmanager
    def stage(self, title: str, total: int, start: int = 0) -> Iterator[Step]:
        """A bar there."""
        number, last = next(self._numbers), 0.0
        self._send(("begin", number, title, total, start))

        def step(completed: int, note: str = "") -> None:
            nonlocal last
            now = time.monotonic()
            if completed >= total or now - last >= _RELAY_SECONDS:
                last = now
                self._send(("step", number, completed, note))

        yield step
        self._send(("end", number))


class Receiver:
    """Shows what a :class:`Relay` sends.

    Args:
        reporter: where.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._stages: dict[int, tuple[contextlib.ExitStack, Step]] = {}

    def receive(self, event: Event) -> None:
        """Do what an event says."""
        match event:
            case ("say", str(message)):
                self._reporter.say(message)
            case ("begin", int(number), str(title), int(total), int(start)):
                stack = contextlib.ExitStack()
                self._stages[number] = stack, stack.enter_context(self._reporter.stage(title, total, start))
            case ("step", int(number), int(completed), str(note)):
                self._stages[number][1](completed, note)
            case ("end", int(number)):
                self._stages.pop(number)[0].close()
            case _:
                raise ValueError(f"a relay sends no such event: {event!r}")

    def close(self) -> None:
        """End the stages of a sender that is no more."""
        while self._stages:
            self._stages.popitem()[1][0].close()

"""Signals that end a run: what is under way is saved first, and a second signal ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C, how clusters and init systems end jobs, and a terminal that is closed."""


class Interrupted(KeyboardInterrupt):
    """A signal has come that ends the run.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"by {signal.Signals(number).name}")
        self.number = number


class _State:
    """What has come so far."""

    seen: int = 0
    holding: bool = False


def install() -> None:
    """Let each of these signals raise :class:`Interrupted`; those that are ignored, as by nohup, stay so."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _come)


def status(error: KeyboardInterrupt) -> int:
    """The exit status of a process that an interrupt has ended, as a shell gives it."""
    return 128 + (error.number if isinstance(error, Interrupted) else int(signal.SIGINT))


def _come(number: int, _frame: FrameType | None) -> None:
    if _State.seen:
        end_at_once(number)
    _State.seen = number
    if not _State.holding:
        raise Interrupted(number)


def end_at_once(number: int) -> None:
    """End the process quietly; what runs at its end would be interrupted itself, and say so."""
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h")  # progress bars hide the cursor
            sys.stderr.flush()
    os._exit(128 + number)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Within, a first signal waits for :func:`check`, so that what is half done is done."""
    _State.holding = True
    try:
        yield
    finally:
        _State.holding = False
    check()


def pending() -> bool:
    """Whether a signal waits."""
    return bool(_State.seen)


def check() -> None:
    """Raise what waits.

    Raises:
        Interrupted: a signal has come.
    """
    if _State.seen:
        raise Interrupted(_State.seen)


@contextlib.contextmanager
def not_for_children() -> Iterator[None]:
    """Processes that are started within begin with Ctrl-C held back, until they have said what they do about it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def as_child() -> None:
    """In a process that a run has started: its parent decides about Ctrl-C, which reaches all of a terminal."""
    install()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

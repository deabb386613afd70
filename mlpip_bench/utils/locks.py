"""Locks of a results folder, so that several runs can share it; the system frees those of a process that is killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import cannot_write

_LOOK_SECONDS = 0.2


class HeldError(Exception):
    """Another process, or another thread, has the lock."""


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock within; its file stays, since a waiting process may have it open.

    Args:
        path: file of the lock.
        wait: whether to wait for one that is held.

    Raises:
        HeldError: it is held, unless that is waited for.
        UserError: its file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another command may look whether it is held, for which it takes it for a moment.
        lock = FileLock(path, timeout=-1 if wait else _LOOK_SECONDS, poll_interval=0.02)
        lock.acquire()
    except Timeout as error:
        raise HeldError(path) from error
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether somebody has the lock at this moment; nothing is written."""
    if not path.exists():
        return False
    try:
        with locked(path):
            return False
    except HeldError:
        return True
    except UserError:  # in a folder that cannot be written nobody is at work
        return False

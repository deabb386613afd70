"""Standard streams that may be lost, full, or unable to show a character: none of it touches the work."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any, TextIO


class Forgiving:
    """A text stream whose errors are kept instead of raised.

    Attributes:
        error: the first; None where there was none, or where the reader has had enough.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write what can be written."""
        with self._keeping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with self._keeping():
            self._stream.flush()

    @contextlib.contextmanager
    def _keeping(self) -> Any:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO) and self.error is None:
                self.error = error
        except ValueError:  # somebody has closed it
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def forgive() -> tuple[Forgiving, Forgiving]:
    """Make standard output and standard error forgiving; where one is closed, what goes there is lost."""
    made = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # it stays open until the end
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console may lack ± or ²
        made.append(Forgiving(stream))
        setattr(sys, name, made[-1])
    return made[0], made[1]

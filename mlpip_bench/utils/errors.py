"""Errors a user can put right: shown as one message, never as a traceback."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable

from mlpip_bench.utils.encoding import printable


class UserError(Exception):
    """Bad input: the message says the rule, what came, and what to do (exit status 2)."""


class TrialError(Exception):
    """One trial cannot go on, for example a loss that is not finite; the other trials do (exit status 1)."""


_LONGEST, _LONGEST_TRACE = 1000, 20_000


def cut(text: str, most: int = 200) -> str:
    """What a message quotes of a text."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def one_line(error: BaseException) -> str:
    """Type and message of an error in one line; what plugins raise may run over pages, or not even be a text."""
    text = message_in_one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def message_in_one_line(error: BaseException) -> str:
    """The message of an error: its lines one after the other, what cannot be shown spelled out, and at most so long."""
    try:
        text = str(error)
    except BaseException:  # whatever a plugin's __str__ raises
        return "its message cannot be shown"
    lines = " ".join(printable(line).strip() for line in text[: 20 * _LONGEST].splitlines() if line.strip())
    return lines if len(lines) <= _LONGEST else f"{lines[:_LONGEST]} ..."


def traceback_of(error: BaseException) -> str:
    """The traceback of an error as a text that can be written, its end where it is long."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # whatever a plugin's __str__ raises
        text = "".join(traceback.format_tb(error.__traceback__)) + one_line(error)
    return text[-_LONGEST_TRACE:].encode("utf-8", "backslashreplace").decode()


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not installed: suggests the nearest and lists the rest.

    Args:
        kind: what the name stands for, in the singular (``"method"``).
        name: what the user wrote.
        known: the names that would have worked.
    """
    names = sorted(known)
    name = cut(name)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(names) if names else "none"
    return UserError(f"unknown {kind} {name!r}.{hint} Known: {listed}.")

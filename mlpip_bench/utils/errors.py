"""Errors a user can put right: shown as one message, never as a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: the message says the rule, what came, and what to do (exit status 2)."""


class TrialError(Exception):
    """One trial cannot go on, for example a loss that is not finite; the other trials do (exit status 1)."""


def cut(text: str, most: int = 200) -> str:
    """What a message quotes of a text."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def one_line(error: BaseException) -> str:
    """Type and first line of an error; what plugins raise may run over pages."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


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

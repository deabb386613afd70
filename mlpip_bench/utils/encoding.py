"""Texts of strangers in what is written for others: none becomes a formula, a tag or a second row."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def printable(text: str) -> str:
    """The text with what a terminal would obey, or cannot be written, spelled out; lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def for_markdown(text: str) -> str:
    """A text as a cell of a Markdown table, whose HTML is text as well."""
    return " ".join(text.replace("<", "&lt;").replace("|", r"\|").splitlines())


@functools.lru_cache  # most texts of a table are in many of its rows
def for_csv(text: str) -> str:
    """A text as a cell of a CSV file; a spreadsheet would take some for a formula."""
    with contextlib.suppress(ValueError):
        float(text)
        return text
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def csv_text(frame: pd.DataFrame) -> str:
    """A frame as a CSV file; numbers are in full."""
    frame = frame.map(lambda value: for_csv(value) if isinstance(value, str) else value)
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text

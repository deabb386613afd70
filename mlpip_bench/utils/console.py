"""Consoles that show text as it is: nothing in a name, a path or a message is taken for markup or moves the cursor."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class PlainConsole(Console):
    """A console without markup, emoji and highlights; what is styled is a :class:`rich.text.Text`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text, in tables too, with its control characters spelled out."""
        return super().render_str(shown(text), **options)


def shown(text: str) -> str:
    """A text with control characters, and bytes of names that are not UTF-8, spelled out."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def labeled(label: str, message: str, style: str) -> Text:
    """A message with a styled word in front."""
    return Text.assemble((label, style), " ", shown(message))

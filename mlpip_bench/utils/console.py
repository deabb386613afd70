"""Consoles that show text as it is: nothing in a name, a path or a message is taken for markup or moves the cursor."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from mlpip_bench.utils.encoding import printable


class PlainConsole(Console):
    """A console without markup, emoji and highlights; what is styled is a :class:`rich.text.Text`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text, in tables too, with its control characters spelled out."""
        return super().render_str(printable(text), **options)


def labeled(label: str, message: str, style: str) -> Text:
    """A message with a styled word in front."""
    return Text.assemble((label, style), " ", printable(message))

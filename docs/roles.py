"""Sphinx roles in docstrings, which Markdown does not know, shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Roles(griffe.Extension):
    """``:class:`~module.Name``` becomes the name in code, before mkdocstrings renders it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the roles of an object's docstring."""
        if obj.docstring:
            obj.docstring.value = without_roles(obj.docstring.value)


def without_roles(text: str) -> str:
    """The same text with the name that each role is about as code; with ``~``, its last part."""
    return re.sub(r":\w+:`(~?)([^`]+)`", lambda role: f"`{role[2].rpartition('.')[2] if role[1] else role[2]}`", text)

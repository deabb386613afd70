"""Where data comes from, which is part of every result."""

from __future__ import annotations

from typing import Literal

Source = Literal["real", "procedural", "bundled", "synthetic"]
"""Where data comes from.

``real``: the data set that the bench names. ``procedural``: drawn by a program in its place. ``bundled``: a small
real data set that ships with a dependency, in its place. ``synthetic``: drawn from a known model, in no other's place.
"""

STAND_INS: frozenset[Source] = frozenset({"procedural", "bundled"})
"""The sources whose results are not results on the data set that the bench names."""

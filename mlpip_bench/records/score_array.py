"""Scores in one block of memory: 8 bytes each, where a tuple of numbers takes 32."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class ScoreArray(Sequence[float]):
    """A sequence of floats that numpy reads without a copy, and that equals any other sequence of the same numbers."""

    __slots__ = ("_digest", "_values")

    def __init__(self, values: Sequence[float] | NDArray[np.float64]) -> None:
        self._values = np.asarray(values, dtype=np.float64)
        self._digest = b""

    @property
    def digest(self) -> bytes:
        """Stands for the scores where something of them is looked up; computed once."""
        if not self._digest:
            self._digest = hashlib.blake2b(self._values.tobytes(), digest_size=16).digest()
        return self._digest

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self._values.astype(dtype or np.float64, copy=bool(copy))

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        return iter(self._values.tolist())

    @overload
    def __getitem__(self, place: int) -> float: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[float, ...]: ...

    def __getitem__(self, place: int | slice) -> float | tuple[float, ...]:
        if isinstance(place, slice):
            return tuple(self._values[place].tolist())
        return float(self._values[place])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

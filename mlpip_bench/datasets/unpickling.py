"""Pickles of plain data: numbers, text, containers and arrays of numbers. Anything else is refused unexecuted."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mlpip_bench.datasets.archives import broken
from mlpip_bench.utils.errors import UserError


class _RefusedError(Exception):
    """The pickle asks for something that plain data does not need."""


# Stand-ins for what a pickle of numpy arrays calls. numpy's own would not do: a pickle could hand them a dtype of
# objects, or a dtype whose flags it has changed, and make numpy follow forged pointers.


def _dtype(code: str, *_flags: object) -> np.dtype[Any]:
    # Without a copy, numpy's built-in dtype comes back, which no pickle can change. It takes no notice of a byte
    # order either: rows of a big-endian machine would be out of range; images are single bytes.
    dtype = np.dtype(str(code))
    if dtype.kind not in "biuf":
        raise _RefusedError(f"values of dtype {code}")
    return dtype


def _reconstruct(_kind: object, _shape: object, _code: object) -> np.ndarray[Any, Any]:
    return np.empty(0, dtype=np.uint8)  # an array's shape, dtype and bytes are set next


def _frombuffer(buffer: bytes, dtype: object, shape: tuple[int, ...], order: Literal["C", "F"]) -> np.ndarray[Any, Any]:
    if not isinstance(dtype, np.dtype):
        raise _RefusedError(f"values of dtype {dtype}")
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)


def _encode(text: str, codec: str) -> bytes:
    if codec not in ("latin1", "latin-1"):  # the one in which Python 3 writes bytes for protocols below 3
        raise _RefusedError(f"codec {codec}")
    return text.encode("latin1")


_ALLOWED: Mapping[str, Any] = {
    "numpy.ndarray": "ndarray",  # only ever an argument of _reconstruct
    "numpy.dtype": _dtype,
    **{
        f"numpy.{core}.{name}": function
        for core in ("core", "_core")  # numpy 1, numpy 2
        for name, function in (
            ("multiarray._reconstruct", _reconstruct),
            ("multiarray.scalar", np.uint8(0).__reduce__()[0]),
            ("numeric._frombuffer", _frombuffer),
        )
    },
    "_codecs.encode": _encode,
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": defaultdict,
    **{
        f"{module}.{kind.__name__}": kind for module in ("builtins", "__builtin__") for kind in (list, dict, set, bytes)
    },
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[f"{module}.{name}"]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None


def load_plain_pickle(path: Path) -> object:
    """Read a pickle, also one of Python 2, that holds plain data only.

    Raises:
        UserError: it asks for anything but plain data, or is not a whole pickle.
    """
    try:
        with path.open("rb") as file:
            # latin1 is what arrays and text of Python 2 need.
            return _PlainUnpickler(file, encoding="latin1").load()
    except _RefusedError as error:
        raise UserError(
            f"a data file may hold only numbers, text, containers and arrays of numbers, since anything else could run "
            f"code; {path} asks for {error}. It was not loaded: do not use this file."
        ) from error
    except Exception as error:  # bytes that are no pickle can raise nearly anything
        raise broken(path, "a pickle", error) from error

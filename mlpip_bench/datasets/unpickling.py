"""Pickles of plain data: numbers, text, containers and numpy arrays. Anything else is refused unexecuted."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlpip_bench.datasets.archives import broken
from mlpip_bench.errors import UserError


def _latin1_bytes(text: str, encoding: str) -> bytes:
    # Python 3 writes bytes this way for protocols below 3; any other codec is not needed by data.
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r}")
    return text.encode("latin1")


# Asked of numpy itself, since the functions moved from numpy.core to numpy._core in version 2.
_NUMPY_FUNCTIONS: Mapping[str, Any] = {
    "multiarray._reconstruct": np.zeros(1).__reduce__()[0],
    "multiarray.scalar": np.uint8(0).__reduce__()[0],
    "numeric._frombuffer": np.zeros(1).__reduce_ex__(5)[0],
}
_ALLOWED: Mapping[str, Any] = {
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    **{f"numpy.{core}.{name}": function for core in ("core", "_core") for name, function in _NUMPY_FUNCTIONS.items()},
    "_codecs.encode": _latin1_bytes,
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": defaultdict,
    **{
        f"{module}.{kind.__name__}": kind for module in ("builtins", "__builtin__") for kind in (list, dict, set, bytes)
    },
}


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, path: Path, file: Any) -> None:
        # latin1 is what arrays and text written by Python 2 need.
        super().__init__(file, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[f"{module}.{name}"]
        except KeyError:
            raise UserError(
                f"a data file may hold only numbers, text, containers and numpy arrays; {self._path} asks for "
                f"{module}.{name}, which could run code. It was not loaded: do not use this file."
            ) from None


def load_plain_pickle(path: Path) -> object:
    """Read a pickle, also one of Python 2, that holds plain data only.

    Raises:
        UserError: it asks for anything but plain data, or is not a whole pickle.
    """
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(path, file).load()
    except UserError:
        raise
    except Exception as error:  # bytes that are no pickle can raise nearly anything
        raise broken(path, "a pickle", error) from error

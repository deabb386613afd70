"""Pickles of plain data: numbers, text, containers and arrays of numbers. Anything else is refused unexecuted.

Python's own reader is not used: it calls what a pickle names, sets the state of what it called, and hashes keys of any
depth. Here an instruction either makes plain data or is refused, and what is made is no larger than the file.
"""

from __future__ import annotations

import os
import pickletools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from mlpip_bench.datasets.archives import broken
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import open_regular


class _RefusedError(Exception):
    """The pickle asks for something that plain data does not need."""


class _Global(NamedTuple):
    """A name of Python that a pickle may use, and what stands in for it."""

    name: str
    call: Callable[..., Any] | None


_LITERALS = {
    "INT", "LONG", "LONG1", "LONG4", "BININT",
    "BININT1", "BININT2", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_CONSTANTS: Mapping[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: Mapping[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_MOST_BITS = 1024  # of a whole number; thousands of digits cannot even be shown
_NATIVE = "<" if sys.byteorder == "little" else ">"


def load_plain_pickle(path: Path, most: int = 2**32) -> object:
    """Read a pickle, also one of Python 2, that holds plain data only.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        UserError: it asks for anything but plain data, or is not a whole pickle.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise ValueError(f"it has {size} bytes, and no data set here has more than {most}")
            return _Machine(size).run(file)
    except _RefusedError as error:
        raise UserError(
            f"a data file may hold only numbers, text, containers and arrays of numbers, since anything else could run "
            f"code; {path} asks for {error}. It was not loaded: do not use this file."
        ) from error
    except Exception as error:  # bytes that are no pickle can raise nearly anything
        raise broken(path, "a pickle", error) from error


class _Machine:
    """Follows the instructions of a pickle.

    Args:
        size: bytes of the pickle, and so the most that calls may make of what it holds.
    """

    def __init__(self, size: int) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._left = size
        # numpy's own functions would not do: a pickle could hand them a dtype of objects, or one whose flags it has
        # changed, and make numpy follow forged pointers.
        self._allowed: Mapping[str, Callable[..., Any] | None] = {
            "numpy.ndarray": None,  # only ever an argument of _reconstruct
            "numpy.dtype": _dtype,
            **{
                f"numpy.{core}.{name}": function
                for core in ("core", "_core")  # numpy 1, numpy 2
                for name, function in (
                    ("multiarray._reconstruct", _reconstruct),
                    ("multiarray.scalar", _scalar),
                    ("numeric._frombuffer", _frombuffer),
                )
            },
            "_codecs.encode": self._encode,
            "collections.OrderedDict": self._mapping,
            "collections.defaultdict": lambda *_factory: {},
            **{
                f"{module}.{name}": function
                for module in ("builtins", "__builtin__")
                for name, function in (("set", self._set), ("bytes", _no_bytes), ("list", None), ("dict", None))
            },
        }

    def run(self, file: BinaryIO) -> object:
        """What the pickle holds."""
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise ValueError("it does not end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _LITERALS:
            if isinstance(argument, int) and argument.bit_length() > _MOST_BITS:
                raise _RefusedError(f"a number of {argument.bit_length()} bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[argument])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        else:
            self._act(name, argument)

    def _act(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self._marks.append(len(stack))
            case "POP":
                stack.pop()
            case "POP_MARK":
                self._since_mark()
            case "DUP":
                stack.append(stack[-1])
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "LIST":
                stack.append(self._since_mark())
            case "FROZENSET":
                stack.append(frozenset(map(_key, self._since_mark())))
            case "DICT":
                stack.append(_pairs(self._since_mark()))
            case "APPEND" | "APPENDS":
                items = [stack.pop()] if name == "APPEND" else self._since_mark()
                _one_of(list, stack[-1]).extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _one_of(dict, stack[-1])[_key(key)] = value
            case "SETITEMS":
                pairs = _pairs(self._since_mark())
                _one_of(dict, stack[-1]).update(pairs)
            case "ADDITEMS":
                items = self._since_mark()
                _one_of(set, stack[-1]).update(map(_key, items))
            case "GLOBAL":
                self._global(argument.replace(" ", "."))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                self._global(f"{module}.{attribute}")
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                call = _one_of(_Global, function).call
                if call is None:
                    raise _RefusedError(f"a call of {function.name}")
                stack.append(call(*_one_of(tuple, arguments)))
            case "BUILD":
                state = stack.pop()
                self._build(stack[-1], state)
            case _:
                raise _RefusedError(f"the instruction {name}")

    def _since_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _global(self, name: str) -> None:
        if name not in self._allowed:
            raise _RefusedError(name)
        self._stack.append(_Global(name, self._allowed[name]))

    def _build(self, made: object, state: Any) -> None:
        if isinstance(made, np.dtype):
            # The state is not set: numpy's built-in dtypes are the same for the whole process.
            if made.itemsize > 1 and state[1] not in ("=", _NATIVE):
                raise _RefusedError("numbers in the byte order of another machine")
        elif isinstance(made, np.ndarray) and not made.size:
            version, shape, dtype, fortran, content = state
            if isinstance(content, str):  # of Python 2; numpy makes bytes of it
                self._claim(len(content))
            made.__setstate__((version, shape, _number_type(dtype), fortran, content))
        else:
            raise _RefusedError(f"a state of a {type(made).__name__}")

    def _claim(self, size: int) -> None:
        """Refuse what makes much of little, the same text a thousand times for example."""
        self._left -= size
        if self._left < 0:
            raise _RefusedError("more than it holds")

    def _encode(self, text: str, codec: str) -> bytes:
        if codec not in ("latin1", "latin-1"):  # the one in which Python 3 writes bytes for protocols below 3
            raise _RefusedError(f"codec {codec}")
        self._claim(len(text))
        return text.encode("latin1")

    def _mapping(self, pairs: Iterable[Any] = ()) -> dict[Any, Any]:
        self._claim(len(_one_of(list, pairs)) if pairs else 0)
        return {_key(key): value for key, value in pairs}

    def _set(self, items: Iterable[Any] = ()) -> set[Any]:
        self._claim(len(_one_of(list, items)) if items else 0)
        return set(map(_key, items))


def _one_of(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} stands where a {kind.__name__} must")
    return value


def _key(value: Any) -> Any:
    """A key of a dict or a set; one in which there are others could take for ever to hash."""
    if not (value is None or isinstance(value, str | bytes | int | float | np.generic)):
        raise _RefusedError(f"a {type(value).__name__} as a key")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return {_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _number_type(dtype: object) -> np.dtype[Any]:
    if not isinstance(dtype, np.dtype):
        raise _RefusedError(f"values of dtype {dtype}")
    return dtype


def _dtype(code: object, *_flags: object) -> np.dtype[Any]:
    """One of numpy's built-in dtypes, which no pickle can change; one of another byte order would be new."""
    match = re.fullmatch(r"([<>|=]?)(b1|[iu][1248]|f[248])", str(code)[:10])
    if match is None:
        raise _RefusedError(f"values of dtype {str(code)[:40]}")
    dtype = np.dtype(match[2])
    if match[1] in ("<", ">") and match[1] != _NATIVE and dtype.itemsize > 1:
        raise _RefusedError("numbers in the byte order of another machine")
    return dtype


def _reconstruct(_kind: object, _shape: object, _code: object) -> np.ndarray[Any, Any]:
    return np.empty(0, dtype=np.uint8)  # an array's shape, dtype and bytes are set next


def _scalar(dtype: object, content: bytes | str) -> Any:
    raw = content.encode("latin1") if isinstance(content, str) else content
    return np.frombuffer(raw, _number_type(dtype), count=1)[0]


def _frombuffer(buffer: bytes, dtype: object, shape: tuple[int, ...], order: Literal["C", "F"]) -> np.ndarray[Any, Any]:
    return np.frombuffer(buffer, dtype=_number_type(dtype)).reshape(shape, order=order)


def _no_bytes() -> bytes:
    return b""  # what Python 3 calls for empty bytes with protocols below 3

"""Arrays of NumPy's own files: a header is compared with the bytes that are there before any of them is read."""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.archives import broken
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import open_file

_LONGEST_HEADER = 10_000  # bytes, as NumPy's own limit
_ENTRY = r"""['"](\w+)['"]:(True|False|['"][<>|=]?(?:[biuf]\d|[US]\d{1,4})['"]|\([\dL,]*\))"""


class _UnknownTypeError(ValueError):
    """An array of complex numbers, or of objects, which could be code: ``what`` it holds."""

    def __init__(self, what: str) -> None:
        super().__init__(f"it holds {what}")
        self.what = what


class _Header:
    """What a header promises.

    Attributes:
        dtype: of the values: whole numbers, real ones, true and false, or texts.
        shape: of the array.
        order: in which the values stand, ``C`` or ``F``.
        size: bytes of all values.
    """

    def __init__(self, file: IO[bytes]) -> None:
        magic = file.read(8)
        if magic[:6] != b"\x93NUMPY" or magic[6:7] not in (b"\1", b"\2", b"\3"):
            raise ValueError("it does not begin as an npy file does")
        length = int.from_bytes(file.read(2 if magic[6] == 1 else 4), "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"its header has {length} bytes")
        # Parsed by its form alone, since a parser of expressions can be made to fail in many ways.
        text = re.sub(r"\s", "", file.read(length).decode("latin1"))
        entries = dict(re.findall(_ENTRY, text)) if re.fullmatch(rf"{{(?:{_ENTRY},?){{3}}}}", text) else {}
        if entries.keys() != {"descr", "fortran_order", "shape"}:
            if of_type := re.search(r"'descr':'[<>|=]?(O|c\d+)'", text):
                raise _UnknownTypeError("Python objects" if of_type[1] == "O" else "complex numbers")
            raise ValueError(f"its header says neither type nor shape: {text[:100]!r}")
        self.dtype: np.dtype[Any] = np.dtype(entries["descr"][1:-1])
        self.shape = tuple(int(part.rstrip("L")) for part in entries["shape"][1:-1].split(",") if part)
        self.order: Any = "F" if entries["fortran_order"] == "True" else "C"
        self.size = math.prod(self.shape) * self.dtype.itemsize


def read_npy(path: Path, most: int) -> NDArray[Any]:
    """The array of an npy file, mapped into memory.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        UserError: it is no npy file, or not a whole one.
    """
    try:
        with open_file(path) as file:
            header = _Header(file)
            _check_size(header, os.fstat(file.fileno()).st_size - file.tell(), most)
            if not header.size:
                return np.empty(header.shape, header.dtype)
            return np.memmap(file, header.dtype, "r", file.tell(), header.shape, header.order)
    except Exception as error:  # NumPy raises many kinds
        raise broken(path, "an npy file", error) from error


def read_npz(path: Path, names: Iterable[str], most: int) -> dict[str, NDArray[Any]]:
    """Arrays of an npz file; the others are not read.

    Args:
        path: the file.
        names: of the arrays.
        most: bytes that each may have.

    Raises:
        UserError: it is no npz file, not a whole one, or lacks one of the arrays.
    """
    names = tuple(names)
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if missing := [name for name in names if f"{name}.npy" not in members]:
                raise UserError(
                    f"{path} must have the arrays {', '.join(names)}; it lacks {', '.join(missing)}. "
                    "Fetch it again, or move it away."
                )
            return {name: _member(archive, members[f"{name}.npy"], most, f"{name} of {path}") for name in names}
    except UserError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy each raise their own on damaged input
        raise broken(path, f"an npz file with the arrays {', '.join(names)}", error) from error


def names_in(path: Path) -> list[str]:
    """Names of the arrays of an npz file.

    Raises:
        UserError: it is none, or not a whole one.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except Exception as error:  # as above
        raise broken(path, "an npz file", error) from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int, name: str) -> NDArray[Any]:
    with archive.open(info) as file:
        try:
            header = _Header(file)
        except _UnknownTypeError as error:
            raise UserError(
                f"arrays must hold real numbers or texts; {name} holds {error.what}. Save texts as array.astype(str), "
                "numbers as array.astype(float), and rows of equal length."
            ) from error
        _check_size(header, info.file_size - file.tell(), most)
        content = file.read()  # no more than is declared
    return np.frombuffer(content, header.dtype).reshape(header.shape, order=header.order)


def _check_size(header: _Header, there: int, most: int) -> None:
    if header.size != there:
        raise ValueError(f"its header promises {header.size} bytes of values and it has {there}")
    if header.size > most:
        raise ValueError(
            f"it has {header.size / 2**20:.0f} MiB of values; no data set here has more than {most / 2**20:.0f}"
        )

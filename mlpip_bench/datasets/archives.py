"""Archives are read in memory, member by member: nothing is ever unpacked to disk."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Self

from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import open_regular

SIZE_LIMIT = 2**30
"""Most bytes an archive may unpack to; the largest archive that is read, Tiny ImageNet's, has 0.03 GiB."""
MEMBERS_LIMIT = 500_000
"""Most members of an archive; the largest archive that is read has 0.03 million."""

_NAME_LIMIT = 2**16  # bytes of what a tar says of a member, its name for example
_NOTES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)

Keep = Callable[[PurePosixPath], bool]


def broken(path: Path, expected: str, error: Exception | str) -> UserError:
    """The error for a file that is not what its name says; it names the cause where that is a usual one.

    Args:
        path: the file.
        expected: what it should be, with an article (``"a zip archive"``).
        error: what its reader said.
    """
    try:
        with open_regular(path) as file:
            head = file.read(512).lstrip().lower()
    except OSError as problem:
        return UserError(f"{path} must be {expected}; it cannot be read: {problem.strerror or problem}.")
    if not path.stat().st_size:
        return UserError(f"{path} must be {expected}; it is empty (0 bytes). Fetch it again.")
    if head.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return UserError(
            f"{path} must be {expected}; it is a web page, which a download that asks for a login or has moved leaves "
            "behind. Open its address in a browser and save the file itself."
        )
    return UserError(f"{path} must be {expected}; it is damaged or cut short ({error}). Fetch it again.")


def read_zip(path: Path, keep: Keep) -> dict[PurePosixPath, bytes]:
    """The members of a zip archive that ``keep`` accepts, by name.

    Raises:
        UserError: it is not a whole zip archive, a member is a link or lies outside, or a folder is empty.
    """
    members = _Members(path, keep)
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise _refused(path, info.filename, "a link")
                members.add(info.filename, info.file_size, None if info.is_dir() else partial(archive.read, info))
    except UserError:
        raise
    except Exception as error:  # on damaged input zipfile raises its own, zlib's, struct's, EOF and Runtime errors
        raise broken(path, "a zip archive", error) from error
    return members.checked()


def read_tar(path: Path, keep: Keep) -> dict[PurePosixPath, bytes]:
    """The members of a tar archive, compressed or not, that ``keep`` accepts, by name.

    Raises:
        UserError: it is not a whole tar archive, a member is a link or lies outside, or a folder is empty.
    """
    members = _Members(path, keep)
    try:
        with open_regular(path) as opened, tarfile.open(fileobj=opened, tarinfo=_Member) as archive:
            for info in archive:
                if info.issparse() or not (info.isfile() or info.isdir()):
                    raise _refused(path, info.name, "a link, a device or a file with holes")
                file = archive.extractfile(info)
                members.add(info.name, info.size, None if file is None else file.read)
            # tarfile takes a cut or a damaged header for the end; the real end is a block of zeros.
            assert archive.fileobj is not None
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("no end of archive")
    except UserError:
        raise
    except Exception as error:  # on damaged input tarfile raises its own, zlib's, lzma's, EOF and Value errors
        raise broken(path, "a tar archive", error) from error
    return members.checked()


class _Member(tarfile.TarInfo):
    """A header of a tar archive; what stands before a member to name it is read at once, and so may not be long."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _NOTES and info.size > _NAME_LIMIT:
            raise ValueError(f"a name in it has {info.size} bytes")
        return info


class _Members:
    """Collects the members of one archive and refuses what no data set holds."""

    def __init__(self, path: Path, keep: Keep) -> None:
        self._path = path
        self._keep = keep
        self._size = self._count = 0
        self._kept: dict[PurePosixPath, bytes] = {}
        self._folders: set[PurePosixPath] = set()
        self._filled: set[PurePosixPath] = set()

    def add(self, text: str, size: int, read: Callable[[], bytes] | None) -> None:
        """Add a member; one without ``read`` is a folder."""
        name = PurePosixPath(text.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts or text[1:2] == ":":
            raise _refused(self._path, text, "which points outside it")
        self._size += size
        self._count += 1
        if self._count > MEMBERS_LIMIT:
            raise _refused(self._path, text, f"with which it has more than {MEMBERS_LIMIT} members")
        if self._size > SIZE_LIMIT:
            raise _refused(self._path, text, f"with which it unpacks to more than {SIZE_LIMIT // 2**30} GiB")
        if read is None:
            self._folders.add(name)
            return
        self._filled.update(name.parents)
        if self._keep(name):
            if name in self._kept:
                raise _refused(self._path, text, "twice")
            self._kept[name] = read()

    def checked(self) -> dict[PurePosixPath, bytes]:
        """The members, where no folder is empty."""
        empty = sorted(self._folders - self._filled - {PurePosixPath(".")})
        if empty:
            raise UserError(
                f"no folder in an archive may be empty; in {self._path} {str(empty[0])!r} is. Fetch it again."
            )
        return self._kept


def _refused(path: Path, member: str, what: str) -> UserError:
    return UserError(
        f"an archive may hold only files and folders of its own, each once; {path} has {member!r}, {what}. "
        "It is not the original: fetch it from its publisher."
    )

"""Files: read only where they are files, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
import tempfile
from io import BufferedReader
from pathlib import Path

from mlpip_bench.utils.errors import UserError

_LONGEST_NAME, _LONGEST_PATH = 255, 3500  # bytes; most systems allow 4,096, of which what is written below needs some


def given_path(text: str | Path) -> Path:
    """A path as a user typed it, with the home folder in place of ``~``.

    Raises:
        UserError: it is empty, no system would take it, or nobody knows that home folder.
    """
    name = str(text)
    if not name.strip():
        raise UserError("a path needs a name; got an empty one. Use . for the current folder.")
    if "\0" in name:
        raise UserError(f"a path may not have a zero byte; got {name[:200]!r}. Leave it out.")
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"~ stands for a home folder, and none is known for {Path(name).parts[0]!r}; got {name[:200]!r}. "
            "Write the whole path."
        ) from error
    longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
    if longest > _LONGEST_NAME or len(os.fsencode(path)) > _LONGEST_PATH:
        raise UserError(
            f"a path may have {_LONGEST_PATH} bytes, and each name in it {_LONGEST_NAME}; got "
            f"{len(os.fsencode(path))} bytes with a name of {longest}: {name[:60]!r} and so on. Choose a shorter one."
        )
    return path


def check_folder_can_be_made(folder: Path) -> None:
    """Refuse a folder that could not be written; nothing is made yet.

    Raises:
        UserError: it, or the folder that it would be made in, is no folder or cannot be written.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    code = errno.EACCES if there.is_dir() else errno.ENOTDIR
    if code == errno.ENOTDIR or not os.access(there, os.W_OK | os.X_OK):
        raise cannot_write(folder, OSError(code, os.strerror(code)))


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes.

    Raises:
        OSError: it cannot be opened, or is a pipe, which may never answer, or a device, which may never end.
    """
    # Without O_NONBLOCK it is the opening of a pipe that waits for somebody who writes.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: Path, most: int) -> bytes:
    """All bytes of a file.

    Raises:
        OSError: it cannot be read, is no file, or has more than ``most`` bytes.
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most / 2**20:.0f} MiB", str(path))
    return content


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or none of it: a temporary file in the same folder, fsync, rename.

    Raises:
        UserError: the folder cannot be written or the disk is full; no partial file is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:  # an interrupt, too
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise cannot_write(path, error) from error


_ADVICE = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
}


def cannot_write(path: Path, error: OSError) -> UserError:
    """What to tell of a file that could not be written."""
    advice = _ADVICE.get(error.errno or 0, "Choose a folder that can be written")
    return UserError(
        f"cannot write {path}: {error.strerror or error}. {advice}, then run the same command again: "
        "what is already there is kept."
    )


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of a writer of this file that was killed; for the only one who may write it now."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with contextlib.suppress(OSError):
            temporary.unlink()

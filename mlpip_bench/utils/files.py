"""Files that are written whole or not at all, and where real data is by default."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from mlpip_bench.utils.errors import UserError

ROOT_VARIABLE = "MLPIP_BENCH_DATA"
"""The environment variable that names the folder of real data, where nothing else does."""


def root_of_environment() -> Path | None:
    """The folder that :data:`ROOT_VARIABLE` names; None where it is not set."""
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named).expanduser() if named else None


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe would wait for its writer, and a device may never end.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(handle, "rb")


def mode_of_new_files() -> int:
    """What the umask leaves of reading and writing for all."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or none of it: a temporary file in the same folder, fsync, rename.

    Raises:
        UserError: the folder cannot be written or the disk is full; no partial file is left behind.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise OSError(errno.EINVAL, "it is a link, a folder, a pipe or a device")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
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


def check_no_link(folder: Path) -> None:
    """Refuse a folder in a results folder that leads out of it: results may come from strangers.

    Raises:
        UserError: it is a link.
    """
    if folder.is_symlink():
        raise UserError(f"what is made of records stays in their folder; {folder} is a link. Remove it.")


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of a writer of this file that was killed; for the only one who may write it now."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with contextlib.suppress(OSError):
            temporary.unlink()

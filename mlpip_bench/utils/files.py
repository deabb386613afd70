"""Files: read only where they are files, written whole or not at all; and where real data is by default."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import secrets
import stat
from io import BufferedReader
from pathlib import Path

from mlpip_bench.utils.errors import UserError

_LONGEST_NAME, _LONGEST_PATH = 255, 3500  # bytes; most systems allow 4,096, of which what is written below needs some

ROOT_VARIABLE = "MLPIP_BENCH_DATA"
"""The environment variable that names the folder of real data, where nothing else does."""


def named_data_root(given: str | Path | None) -> Path | None:
    """The folder of real data: the one that is given, or what the environment names; None where neither is."""
    named = given or os.environ.get(ROOT_VARIABLE)
    return given_path(named) if named else None


def data_root_of(given: str | Path | None) -> Path | None:
    """The same, which must be there.

    Raises:
        UserError: it is not.
    """
    root = named_data_root(given)
    return None if root is None else existing(root)


def existing(data_root: str | Path) -> Path:
    """A folder of real data, which must be there.

    Raises:
        UserError: it is not.
    """
    root = given_path(data_root)
    if not root.is_dir():
        raise UserError(
            f"the data folder must exist; {root} is not a folder. Correct --data-root (or {ROOT_VARIABLE})."
        )
    return root


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


def open_file(path: Path) -> BufferedReader:
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
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most / 2**20:.0f} MiB", str(path))
    return content


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as ``sha256sum`` prints it.

    Raises:
        OSError: it cannot be read, or is no file.
    """
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_own(status: os.stat_result) -> bool:
    """Whether a file is the user's; an administrator's is as good as one's own."""
    return not hasattr(os, "getuid") or status.st_uid in (os.getuid(), 0)


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

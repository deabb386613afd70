"""Objects of a user's own code, named by their place: ``module:name``, or ``path/to/file.py:name``."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mlpip_bench.utils.errors import UserError, one_line
from mlpip_bench.utils.files import given_path
from mlpip_bench.utils.process_state import no_end


def is_place(name: str) -> bool:
    """Whether a name is that of a place."""
    return ":" in name


def object_at(place: str, option: str) -> Any:
    """What is there.

    Args:
        place: ``module:name`` or ``path/to/file.py:name``.
        option: what takes it, for messages.

    Raises:
        UserError: it is no place, nothing is there, or its module cannot be imported.
    """
    where, _, name = place.rpartition(":")
    if not where or not name.isidentifier():
        raise UserError(
            f"{option} takes your own code as module:name or path/to/file.py:name; got {place!r}. The name is one that "
            "the module defines."
        )
    module = _imported(place, option)
    if not hasattr(module, name):
        raise UserError(f"{option} takes what a module defines; {where} has no {name}.")
    return getattr(module, name)


def code_at(place: str, option: str) -> str:
    """Twelve hexadecimal digits of the file that a place is in, or of the package.

    Raises:
        UserError: as of :func:`object_at`.
    """
    module = _imported(place, option)
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    folders = [Path(folder) for folder in getattr(top, "__path__", ())]
    paths = sorted(path for folder in folders for path in folder.rglob("*.py")) or [Path(str(module.__file__))]
    return digest_of(paths)


def digest_of(paths: Iterable[Path]) -> str:
    """Twelve hexadecimal digits of files of code, with their names."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _imported(place: str, option: str) -> ModuleType:
    where = place.rpartition(":")[0]
    try:
        with no_end(), _here_first():
            return _of_file(given_path(where), option) if where.endswith(".py") else importlib.import_module(where)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever somebody's code raises
        raise UserError(f"the module of {option} {place} cannot be imported: {one_line(error)}.") from error


def _of_file(path: Path, option: str) -> ModuleType:
    if not path.is_file():
        raise UserError(f"{option} takes a Python file that exists; {path} does not.")
    name = f"{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None  # of a .py file there is one
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@contextlib.contextmanager
def _here_first() -> Iterator[None]:
    """Modules of the working folder are found, as with ``python -m``."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)

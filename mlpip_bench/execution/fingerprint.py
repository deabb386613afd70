"""Fingerprints of code, so that a result is never taken for one of code that has changed since."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from mlpip_bench.evaluation.protocol import MeasurementRule
from mlpip_bench.inference.method import Method

_DIGITS = 12
_PLUGINS = (Method, MeasurementRule)


@functools.cache
def plugin_code(plugin: type) -> str:
    """Fingerprint of the code that a method or a protocol brings along.

    It covers the modules of the plugin and of the plugins it inherits from, and what these use of their own packages.
    Comments, docstrings and layout do not count. The engine's code is not in it: the version stands for that.

    Returns:
        Twelve hexadecimal digits.
    """
    found: dict[str, ModuleType] = {}
    for base in plugin.__mro__:
        if issubclass(base, _PLUGINS) and _package(base.__module__) != _package(__name__):
            _collect(sys.modules[base.__module__], found)
    return _digest(_bare(_source(found[name])).encode() for name in sorted(found))


@functools.cache
def engine_code() -> str:
    """Fingerprint of all modules of the engine: tells builds of one version apart, and is no part of any key."""
    return _digest(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))


def _collect(module: ModuleType, found: dict[str, ModuleType]) -> None:
    """Add a module, and those of its package that it uses."""
    if module.__name__ in found:
        return
    found[module.__name__] = module
    for value in list(vars(module).values()):
        used = value if inspect.ismodule(value) else sys.modules.get(str(getattr(value, "__module__", "")))
        if used is not None and _package(used.__name__) == _package(module.__name__):
            _collect(used, found)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _source(module: ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):  # made by a program, or built in C
        return module.__name__


def _digest(sources: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source)
    return digest.hexdigest()[:_DIGITS]


def _bare(source: str) -> str:
    """Source without comments, docstrings and layout."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # no source, see _source
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)

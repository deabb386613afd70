"""What code made a result, so that a result is never taken for one of code that has changed since.

The suite's own code stands in keys as one number, which is raised when numbers move; other packages' code as a hash
of all that they bring along.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import mlpip_bench
from mlpip_bench import registry
from mlpip_bench.utils.places import code_at, digest_of, is_place

NUMBERS_VERSION = 2
"""Raised by whoever moves the numbers of any method, bench or protocol of the suite; a part of every key.

``tests/execution/test_stored_scores.py`` fails for whoever forgets.
"""


def plugin_code(kind: registry.Kind, name: str) -> str | None:
    """Fingerprint of the code of a plugin that does not ship with the suite; None for one that does.

    It covers all modules of the distribution that owns the plugin's entry point.

    Returns:
        Twelve hexadecimal digits.
    """
    if kind == "backbone" and is_place(name):
        return code_at(name, "--backbone")
    if kind == "method" and is_place(place := registry.place_of(name)):
        return code_at(place, "--methods")
    entry = registry.origin(kind, name)
    if entry is None or entry.dist is None or registry.is_own(entry):
        return None
    return digest_of(_modules(entry))


def requirements(kind: registry.Kind, name: str) -> dict[str, str]:
    """Versions of the package that a plugin comes from, and of what it depends on; empty for the suite's own."""
    entry = registry.origin(kind, name)
    if entry is None or entry.dist is None or registry.is_own(entry):
        return {}
    found = {entry.dist.name: entry.dist.version}
    for requirement in entry.dist.requires or ():
        match = re.match(r"[\w.-]+", requirement)
        if match and "extra ==" not in requirement:
            try:
                found[match[0]] = version(match[0])
            except PackageNotFoundError:
                found[match[0]] = "not installed"
    return found


@functools.cache
def engine_code() -> str:
    """Fingerprint of all modules of the suite: tells builds of one version from each other, and is part of no key."""
    folders = {Path(mlpip_bench.__file__).parent}
    for plugins in ("mlpip_bench.methods", "mlpip_bench.protocols"):
        spec = importlib.util.find_spec(plugins)
        folders |= set(map(Path, (spec and spec.submodule_search_locations) or ()))
    return digest_of(sorted({path for folder in folders for path in folder.rglob("*.py")}))


def _modules(entry: EntryPoint) -> list[Path]:
    """Files of Python code of the distribution that owns an entry point, and of the module that it names."""
    assert entry.dist is not None
    found = {Path(str(entry.dist.locate_file(file))) for file in entry.dist.files or () if file.suffix == ".py"}
    if project := _editable_project(entry.dist):
        found |= {path for path in project.rglob("*.py") if not any(part.startswith(".") for part in path.parts)}
    spec = importlib.util.find_spec(entry.module)
    if spec is not None and spec.origin:
        found.add(Path(spec.origin))
    return sorted(path for path in found if path.is_file())


def _editable_project(distribution: Distribution) -> Path | None:
    """The folder of a distribution that is installed for editing, whose metadata list none of its modules."""
    metadata = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not metadata.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(metadata["url"]).path))

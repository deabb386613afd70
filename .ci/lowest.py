"""Write constraints.txt with the lowest versions that pyproject.toml allows; ``tox -e lowest`` runs it.

What pyproject.toml does not name stays as it is, and so does torch, of which every other build is several GB to download.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def canonical(name: str) -> str:
    """The name of a package as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lower_bounds(pyproject: str) -> dict[str, str]:
    """Canonical name to lowest version, of the requirements that have one."""
    content = tomllib.loads(pyproject)
    project = content["project"]
    lists = [content["build-system"]["requires"], project["dependencies"], *project["optional-dependencies"].values()]
    found = (re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement) for lines in lists for requirement in lines)
    return {canonical(match[1]): match[2] for match in found if match}


def lowest(pyproject: str, constraints: str) -> str:
    """The constraints, each with its lower bound where there is one."""
    bounds = lower_bounds(pyproject) | {"torch": None}
    lines = []
    for line in constraints.splitlines():
        name, equals, version = line.partition("==")
        lines.append(name + equals + (bounds.get(canonical(name)) or version))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    texts = ((ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints.txt"))
    Path(sys.argv[1]).write_text(lowest(*texts), encoding="utf-8")

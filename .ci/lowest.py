"""Write constraints to the lowest versions that pyproject.toml allows; ``tox -e lowest`` runs it.

torch stays as in constraints.txt, since every other build of it is several GB to download. What pyproject.toml does
not name is for pip to choose: old versions ask for old dependencies.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lowest(pyproject: str, constraints: str) -> str:
    """Lines of a constraints file.

    Args:
        pyproject: the text of pyproject.toml.
        constraints: the text of constraints.txt.
    """
    content = tomllib.loads(pyproject)
    project = content["project"]
    lists = [content["build-system"]["requires"], project["dependencies"], *project["optional-dependencies"].values()]
    bounded = (
        re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+)", requirement) for lines in lists for requirement in lines
    )
    lines = {f"{match[1]}=={match[2]}" for match in bounded if match and match[1] != "torch"}
    lines |= {line for line in constraints.splitlines() if line.startswith("torch==")}
    return "".join(f"{line}\n" for line in sorted(lines))


if __name__ == "__main__":
    texts = ((ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints.txt"))
    Path(sys.argv[1]).write_text(lowest(*texts), encoding="utf-8")

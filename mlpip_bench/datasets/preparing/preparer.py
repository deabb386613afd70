"""What ``data prepare`` looks up by name: a recipe that makes a data set, and the facts that are kept next to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically
from mlpip_bench.utils.locks import HeldError, locked
from mlpip_bench.utils.progress import Reporter

FACTS = "facts.yaml"
ATTRIBUTION = "ATTRIBUTION.md"


@dataclass(frozen=True)
class Preparer:
    """A recipe.

    Attributes:
        what: it makes, in a line.
        source: what ``--from`` must be, as in "the folder of ...".
        folder: the folder below the data root that it fills by default.
        prepare: takes source, target, reporter and how many processes may be at work (None: one a core), and returns
            how many things failed; the others are there.
        default_source: where ``--from`` is left out; None where it is needed.
    """

    what: str
    source: str
    folder: str
    prepare: Callable[[Path, Path, Reporter, int | None], int]
    default_source: Path | None = None


@contextlib.contextmanager
def folder_errors(target: Path) -> Iterator[None]:
    """Say what is wrong with folders, as a ``UserError``."""
    try:
        yield
    except HeldError as error:
        raise UserError(
            f"one `data prepare` at a time may write to a folder; another is at work on {target}. Wait for it."
        ) from error
    except OSError as error:
        raise UserError(
            f"--from must be readable and --to writable; {error.filename or 'a file'} is not: "
            f"{error.strerror or error}. Put that right, then run the same command again: what is made is kept."
        ) from error


@contextlib.contextmanager
def writing_to(target: Path, source: Path) -> Iterator[None]:
    """Make a folder and hold its lock while it is filled.

    Raises:
        UserError: it lies in the source, another preparation is at work there, or the system refuses something.
    """
    with folder_errors(target):
        if target.resolve().is_relative_to(source.resolve()):
            raise UserError(f"--to must lie outside --from; {target} is in {source}. Choose another folder.")
        target.mkdir(parents=True, exist_ok=True)
        with locked(target / ".lock"):
            yield


def write_facts(target: Path, facts: Mapping[str, Any], attribution: str) -> None:
    """Write what a data set is and whom it is owed to, next to it."""
    write_atomically(target / ATTRIBUTION, attribution.encode())
    text = yaml.safe_dump(dict(facts), sort_keys=False, allow_unicode=True, width=120)
    write_atomically(target / FACTS, text.encode())


def read_facts(target: Path) -> Mapping[str, Any]:
    """The facts of a folder; none where they are not there, or are no facts."""
    try:
        facts = yaml.safe_load((target / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return facts if isinstance(facts, dict) else {}


def cell(text: str) -> str:
    """A text in a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", r"\|")

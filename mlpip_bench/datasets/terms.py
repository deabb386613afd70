"""On which terms a data set may be used, and whom it is owed to, as far as it is stated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mlpip_bench.datasets import added
from mlpip_bench.datasets.preparing.preparer import ATTRIBUTION, read_facts
from mlpip_bench.datasets.sources import DataSource, folders_of


class Terms(NamedTuple):
    """Empty where nothing states them.

    Attributes:
        license, citation: of the data.
        attribution: Markdown that names the authors.
    """

    license: str = ""
    citation: str = ""
    attribution: str = ""


def terms_of(source: DataSource, data_root: Path | None, fingerprint: str, options: Mapping[str, Any]) -> Terms:
    """Those that the files of a data set state, if they are at hand; else those of the data set as everybody has it.

    Args:
        source: where the data set is looked for.
        data_root: folder below which it is.
        fingerprint: of the data set that is meant; another one of that name has other terms.
        options: the settings that made it.
    """
    for folder in folders_of(source, data_root):
        if (folder / added.DESCRIPTION).is_file():
            described = added.describe(folder)
            if described.fingerprint == fingerprint:
                return Terms(described.license, described.citation)
        facts = read_facts(folder)
        if facts and facts.get("made_from") == options.get("made_from"):
            return Terms(_in_words(facts.get("license")), str(facts.get("citation", "")), _attribution(folder))
    return Terms(source.license, source.citation)


def _in_words(license_name: Any) -> str:
    """A license, or several with how many works each is of."""
    if isinstance(license_name, Mapping):
        return ", ".join(f"{name} ({count})" for name, count in license_name.items())
    return "" if license_name is None else str(license_name)


def _attribution(folder: Path) -> str:
    """The text of its file below the title."""
    try:
        text = (folder / ATTRIBUTION).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
    return text.partition("\n")[2].strip() if text.startswith("# ") else text.strip()

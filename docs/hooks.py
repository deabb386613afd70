"""What the site has that is no file in docs/: pages of plugins, CONTRIBUTING, and links to files of the repository.

Pages of plugins are made by ``pages.py``; where the navigation has ``methods/*``, all of that kind come. Links to
files of the repository, which GitHub shows and the site does not have, become their paths. Every other link is left to
MkDocs, which a strict build holds to pages and headings that are there.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import pages
from mkdocs.structure.files import File

_DOCS = Path(__file__).resolve().parent
_ROOT = _DOCS.parent
_ADDED = {"contributing.md": _ROOT / "CONTRIBUTING.md"}
"""Pages of the site that are files of the repository beyond docs/."""

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>(?!\w+:|#)[^)\s]+)\)")
_GENERATED = re.compile(r"<!-- generated: (.+) -->")

_log = logging.getLogger("mkdocs.hooks.links")


def on_config(config: Any) -> Any:
    """Put the pages of a kind into the navigation, for ``KIND/*``."""
    config.nav = _expanded(config.nav)
    return config


def _expanded(nav: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in nav:
        if isinstance(item, str) and item.endswith("/*"):
            found += pages.kind_pages(item.removesuffix("/*"))
        elif isinstance(item, dict):
            found += [{title: _expanded(below) if isinstance(below, list) else below} for title, below in item.items()]
        else:
            found.append(item)
    return found


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are no files in docs/."""
    made = {path: text for folder in pages.KINDS for path, text in pages.kind_pages(folder).items()}
    made |= {path: source.read_text(encoding="utf-8") for path, source in _ADDED.items()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in tables, and replace links to files beyond docs/; a strict build fails where there is no such file."""
    uri = page.file.src_uri
    source = _ADDED.get(uri, _DOCS / uri)

    def shown(link: re.Match[str]) -> str:
        target, hash_sign, anchor = link["target"].partition("#")
        path = (source.parent / target).resolve()
        inside = path.relative_to(_DOCS).as_posix() if path.is_relative_to(_DOCS) else None
        for added, file in _ADDED.items():
            if path == file:
                inside = added
        if inside:
            return f"[{link['text']}]({posixpath.relpath(inside, posixpath.dirname(uri) or '.')}{hash_sign}{anchor})"
        if not path.exists():
            _log.warning("%s links to %s, which is not there", uri, link["target"])
        name, text = path.relative_to(_ROOT).as_posix(), link["text"].strip("`")
        return f"`{name}`" if text in (name, path.name) else f"{link['text']} (`{name}`)"

    return _LINK.sub(shown, _GENERATED.sub(lambda marker: pages.TABLES[marker[1]](), markdown))

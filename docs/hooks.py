"""Links from docs/ to files of the repository, which GitHub shows and the site does not have, become their paths.

Every other link is left to MkDocs, which a strict build holds to pages and headings that are there. To switch its check
of links off instead would hide the broken ones among them.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).resolve().parent
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>\.\.?/[^)\s]+)\)")

_log = logging.getLogger("mkdocs.hooks.links")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace a page's links to files beyond docs/; a strict build fails where there is no such file."""
    folder = Path(page.file.abs_src_path).parent

    def shown(link: re.Match[str]) -> str:
        path = (folder / link["target"].partition("#")[0]).resolve()
        if path.is_relative_to(_DOCS):
            return link[0]
        if not path.exists():
            _log.warning("%s links to %s, which is not there", page.file.src_uri, link["target"])
        name, text = path.relative_to(_DOCS.parent).as_posix(), link["text"].strip("`")
        return f"`{name}`" if text in (name, path.name) else f"{link['text']} (`{name}`)"

    return _LINK.sub(shown, markdown)

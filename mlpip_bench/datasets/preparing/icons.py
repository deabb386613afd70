"""Icons: what many icon sets draw of the same thing, made of the npm package ``@iconify/json``.

A class is a concept, such as ``anchor``, and its drawings are the icons of that name, one a set, drawn in black on a
square of 28x28. Names that stand for one concept are one class (``CONCEPTS``), names that stand for several, or for a
company, are none (``NO_CONCEPTS``). Of the package's sets those are used that are monochrome, have a permissive license
(``LICENSES``) and are no set of logos or file types.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.archives import broken
from mlpip_bench.datasets.drawings import LEAST, SIDE
from mlpip_bench.datasets.preparing import drawings
from mlpip_bench.datasets.preparing.drawings import Drawer, Drawn
from mlpip_bench.datasets.preparing.preparer import Preparer, writing_to
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import read_file
from mlpip_bench.utils.progress import Reporter

VERSION = 1
"""Of what is drawn: change it whenever the drawings change."""

PACKAGE = "@iconify/json"
LICENSES = (
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-3.0", "CC-BY-4.0", "CC0-1.0", "ISC", "MIT", "MPL-2.0",
    "OFL-1.1", "Unlicense",
)  # fmt: skip
OTHER_CATEGORIES = ("Logos", "Programming")

CONCEPTS = (
    "airplane plane", "award medal", "basket shopping-basket", "bell notification notifications", "bell-off bell-slash",
    "bicycle bike", "bolt flash lightning lightning-bolt zap", "brush paintbrush paint-brush", "bullhorn megaphone",
    "bullseye target", "cart shopping-cart", "chart-bar bar-chart", "chart-line line-chart", "chart-pie pie-chart",
    "check checkmark tick", "chevron-down angle-down", "chevron-left angle-left", "chevron-right angle-right",
    "chevron-up angle-up", "circle-alert alert-circle exclamation-circle error",
    "circle-arrow-down arrow-circle-down arrow-down-circle", "circle-arrow-left arrow-circle-left arrow-left-circle",
    "circle-arrow-right arrow-circle-right arrow-right-circle", "circle-arrow-up arrow-circle-up arrow-up-circle",
    "circle-check check-circle tick-circle", "circle-minus minus-circle", "circle-pause pause-circle",
    "circle-play play-circle", "circle-plus plus-circle add-circle", "circle-stop stop-circle",
    "circle-user user-circle account-circle", "circle-x x-circle close-circle times-circle", "clipboard paste",
    "clock time", "close x times xmark", "cloud-rain rain", "coins coin", "copy duplicate",
    "cpu chip microchip processor", "desktop monitor computer", "divide division", "document file",
    "droplet drop", "edit pencil pen", "exclamation exclamation-mark", "expand maximize fullscreen full-screen",
    "eye-off eye-slash", "fast-forward forward", "film movie", "filter funnel", "fire flame", "flask beaker",
    "floppy-disk save floppy disk", "folder-plus folder-add", "gear cog settings setting", "globe earth world",
    "graduation-cap academic-cap", "hashtag hash", "headphones headphone", "heartbeat heart-pulse", "home house",
    "image picture photo", "info info-circle information circle-info", "language translate",
    "lightbulb bulb light-bulb", "link chain", "list view-list", "lock-open unlock", "log-in login sign-in enter",
    "log-out logout sign-out exit", "mail envelope email", "mail-open envelope-open",
    "map-pin pin-location map-marker location-pin place", "mic microphone", "mobile smartphone mobile-phone",
    "music-note music", "mute volume-mute volume-off volume-x", "note sticky-note", "paper-clip paperclip attachment",
    "paper-plane send", "plus add", "printer print", "pulse activity", "puzzle puzzle-piece", "qr-code qrcode",
    "question help question-circle question-mark help-circle circle-help circle-question", "refresh reload sync",
    "rewind backward", "scissors cut", "ship boat", "shop store storefront", "shopping-bag bag", "snowflake snow",
    "sort-up sort-ascending", "sparkles stars", "square-check check-square", "square-minus minus-square",
    "square-plus plus-square", "stopwatch timer", "sun brightness", "tag label", "thumbs-down thumb-down dislike",
    "thumbs-up thumb-up", "train subway metro", "trash bin trash-can", "user person", "user-plus user-add",
    "users group people", "video video-camera", "volume-down volume-low", "volume-up volume-high volume",
    "warning alert exclamation-triangle alert-triangle triangle-alert",
)  # fmt: skip
"""Names of one thing, the class's first."""

_COMPANIES = """
    airplay amazon android apple behance bitcoin bluesky chrome codepen discord dribbble dropbox facebook
    figma firefox github gitlab google instagram line linkedin linux mastodon medium messenger microsoft npm
    paypal pinterest podcast reddit skype slack snapchat spotify steam telegram threads tiktok tumblr twitch
    twitter vimeo visa whatsapp windows wordpress yahoo youtube
"""
_SEVERAL = """
    accessibility alarm apps archive badge ban battery blank block box cancel cast chart cloudy command
    comment contrast cross cup dashboard delete devices dots-horizontal dots-vertical down ear equalizer
    exchange export expand-alt external font frame hamburger history import left library like location
    lock-alt memo menu-open merge message minimize more more-horizontal more-vertical navigation network next
    none open option options other package panel phone pin power-off previous product record remove right
    school scale server shapes signal skip-forward smile sort speaker square-x star-outline suitcase support
    switch tool tools up update view water
"""
NO_CONCEPTS = frozenset((_COMPANIES + _SEVERAL).split())
"""Names of companies and their products, and names under which sets draw several things."""


def _files(source: Path) -> Path:
    """The package's folder, or one below it where a package manager has laid it."""
    candidates = [source, source / "package", source / "node_modules" / PACKAGE]
    for folder in candidates:
        if (folder / "collections.json").is_file() and (folder / "json").is_dir():
            return folder
    raise UserError(
        f"--from must be the folder of the npm package {PACKAGE}, with collections.json and json/; {source} is not. "
        f"Get it by `npm pack {PACKAGE}` and unpack it, or by `npm install {PACKAGE}`."
    )


def prepare(source: Path, target: Path, reporter: Reporter, _jobs: int | None = None) -> int:
    """Draw the icons of all sets that are used.

    Args:
        source: the package's folder.
        target: gets ``drawings.npz`` and its facts.
        reporter: shows the progress.

    Returns:
        0: there is nothing that may fail alone.

    Raises:
        UserError: another folder, no resvg-py, or too few icons.
    """
    if importlib.util.find_spec("resvg_py") is None:
        raise UserError("drawing icons needs resvg-py, which is not installed: pip install 'mlpip_bench[drawings]'.")
    package = _files(source)
    with writing_to(target, package):
        version = str(_json(package / "package.json").get("version", "unknown"))
        try:
            sets = used_sets(_json(package / "collections.json"))
            names = {prefix: icons_of(_json(package / "json" / f"{prefix}.json")) for prefix in sets}
            counts = Counter(itertools.chain.from_iterable(names.values()))
            icons = {
                prefix: {concept: name for concept, name in sorted(found.items()) if counts[concept] >= LEAST}
                for prefix, found in names.items()
            }
            drawers = [_drawer(prefix, sets[prefix], [version, wanted]) for prefix, wanted in icons.items() if wanted]
        except (AttributeError, KeyError, TypeError) as error:
            raise broken(package / "collections.json", f"the list of sets of {PACKAGE}", error) from error
        rasterizer = f"resvg-py {importlib.metadata.version('resvg-py')}"
        facts = {
            "title": "Icons: the same things as many icon sets draw them",
            "source": f"npm package {PACKAGE} {version}",
            "made_by": f"data prepare icons, version {VERSION}.{drawings.VERSION}; {rasterizer}",
            "citation": f"Iconify icon sets, {PACKAGE} {version}; ATTRIBUTION.md names the authors of each set.",
        }
        drawings.prepare(
            "icons",
            target,
            drawers,
            lambda drawer: _drawn(package / "json" / f"{drawer.name}.json", icons[drawer.name]),
            reporter,
            facts,
            lambda concept: concept.partition("-")[0],
        )
    return 0


def used_sets(collections: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The sets of icons that are used, sorted by name, with what ``collections.json`` says of each."""
    return {
        prefix: info
        for prefix, info in sorted(collections.items())
        if info["license"].get("spdx") in LICENSES
        and not info.get("palette")
        and info.get("category") not in OTHER_CATEGORIES
    }


def icons_of(icon_set: Mapping[str, Any]) -> dict[str, str]:
    """For each concept that a set has, the name of its icon.

    Of several, the one of the first name in ``CONCEPTS``, and of that the plain one, an outline, or a filled one.
    """
    ranked: dict[str, list[tuple[int, int, str]]] = {}
    for name in icon_set["icons"]:
        match = None if name in _CONCEPT_OF else _STYLED.fullmatch(name)
        plain = name if match is None else match["name"]
        style = 0 if match is None or plain == name else 2 if match["filled"] else 1
        if plain not in NO_CONCEPTS:
            concept, place = _CONCEPT_OF.get(plain, (plain, 0))
            ranked.setdefault(concept, []).append((place, style, name))
    return {concept: min(names)[2] for concept, names in ranked.items()}


_CONCEPT_OF = {name: (names.split()[0], place) for names in CONCEPTS for place, name in enumerate(names.split())}
_STYLED = re.compile(
    r"(baseline-)?(?P<name>.+?)(-(16|20|24))?"
    r"(-(outline|outlined|line|linear|stroke)|(?P<filled>-(fill|filled|solid)))?(-(16|20|24|regular|0?1))?"
)
"""A name with the styles that sets append to it, or ``baseline-``, which one puts in front."""


def svg_of(icon_set: Mapping[str, Any], name: str) -> str:
    """An icon as an SVG file of its own, black, in a square."""
    icon = icon_set["icons"][name]
    left, top, width, height = (
        float(icon.get(key, icon_set.get(key, default)))
        for key, default in (("left", 0), ("top", 0), ("width", 16), ("height", 16))
    )
    side = max(width, height)
    box = f"{left - (side - width) / 2:g} {top - (side - height) / 2:g} {side:g} {side:g}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{SIDE}" height="{SIDE}" viewBox="{box}" color="black">{icon["body"]}</svg>'
    )


def drawing(svg: str) -> NDArray[np.uint8]:
    """An SVG file as uint8 ``[28, 28]``, ink at 255.

    Raises:
        ValueError: it cannot be drawn.
    """
    resvg: Any = importlib.import_module("resvg_py")  # an extra: its types need not be there either
    png = bytes(resvg.svg_to_bytes(svg_string=svg, width=SIDE, height=SIDE, background="white", skip_system_fonts=True))
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        return 255 - np.asarray(image.convert("L"))


def _drawn(path: Path, icons: Mapping[str, str]) -> Drawn:
    icon_set = _json(path)
    found = {}
    for concept, name in icons.items():
        try:
            found[concept] = drawing(svg_of(icon_set, name))
        except (ValueError, KeyError, TypeError):  # an icon that is no drawing is as one that is missing
            continue
    return found


def _drawer(prefix: str, info: Mapping[str, Any], state: Any) -> Drawer:
    author, license_ = info["author"], info["license"]
    name = author["name"]
    return Drawer(prefix, name, [VERSION, state], info["name"], name, license_["spdx"], author.get("url", ""))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path, 2**28))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError) as error:
        raise broken(path, f"a JSON file of {PACKAGE}", error) from error
    return found


PREPARER = Preparer("icons of many sets, 28x28", f"the folder of the npm package {PACKAGE}", "icons", prepare)

"""The data sets that benches name: where each is looked for, what stands in for it, and whether it is whole."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import PIL

from mlpip_bench.datasets import coil100, mini_imagenet, mnist, omniglot, shapenet, tiny_imagenet
from mlpip_bench.datasets.base import SPLITS, ImageDataset, Source
from mlpip_bench.datasets.cache import cached
from mlpip_bench.datasets.reading import Found, listed, shortfall
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.progress import Quiet, Reporter

SourceChoice = Literal["auto", "real", "procedural"]
Views = Literal["auto", "shapenet", "coil100"]

CHECKSUMS = "SHA256SUMS"

_log = logging.getLogger("mlpip_bench")


@dataclass(frozen=True)
class DataOptions:
    """Settings of real data; each is of one key of ``SOURCES``, and the others are not touched by it.

    Attributes:
        split: of Omniglot: ``random``, by character, or ``vinyals``, by alphabet.
        resize: of Omniglot: ``nearest``, which most published results saw, or ``antialias``.
        views: which data set of views: ``shapenet``, ``coil100``, or ``auto``, the first of these that is found.
    """

    split: omniglot.Split = "random"
    resize: omniglot.Resize = "nearest"
    views: Views = "auto"


@dataclass(frozen=True)
class StandIn:
    """A data set that is used where the real one is missing."""

    name: str
    source: Source
    make: Callable[[Reporter], ImageDataset]


@dataclass(frozen=True)
class DataSource:
    """A data set that benches can name.

    Attributes:
        key: the name that benches use.
        title: what it is.
        folders: the names that its folder may have, in lower case; the first comes first.
        layouts: what its folder may hold.
        version: version of its reader.
        find: finds it in a folder.
        stand_in: what is used where it is missing.
    """

    key: str
    title: str
    folders: tuple[str, ...]
    layouts: tuple[str, ...]
    version: int
    find: Callable[[Path, DataOptions], Found | None]
    stand_in: StandIn | None


@dataclass(frozen=True)
class SourceStatus:
    """A row of ``list data``.

    Attributes:
        source: the data set.
        status: ``found``, ``not found``, or ``broken``.
        detail: layout and folder, what is missing, or what is wrong.
    """

    source: DataSource
    status: Literal["found", "not found", "broken"]
    detail: str


@dataclass(frozen=True)
class Check:
    """A row of ``verify``: what was checked, how it came out, and why."""

    what: str
    status: Literal["ok", "incomplete", "skipped", "failed"]
    detail: str


def _glyphs(_reporter: Reporter) -> ImageDataset:
    from mlpip_bench.datasets.procedural import glyphs

    return cached("glyphs", {"generator": "glyphs", "version": glyphs.VERSION}, glyphs.build_glyphs)


def _patches(_reporter: Reporter) -> ImageDataset:
    from mlpip_bench.datasets.procedural import patches

    return cached("patches", {"generator": "patches", "version": patches.VERSION}, patches.build_patches)


def _solids(reporter: Reporter) -> ImageDataset:
    from mlpip_bench.datasets.procedural import solids

    def build() -> ImageDataset:  # it takes more than a minute, once
        with reporter.stage("drawing the stand-in solids", solids.OBJECTS) as step:
            return solids.build_solids(lambda done, _all: step(done))

    return cached("solids", {"generator": "solids", "version": solids.VERSION}, build)


def _digits(_reporter: Reporter) -> ImageDataset:
    made_from = {"generator": "digits", "version": mnist.VERSION, "pillow": PIL.__version__}
    return cached("digits", made_from, mnist.build_digits)


def _views(
    title: str, folders: tuple[str, ...], layouts: tuple[str, ...], find: Callable[[Path], Found | None]
) -> DataSource:
    """A source for ``views``; all have one version, so that what one has cached serves the others."""
    return DataSource(
        "views",
        f"{title}: views all around objects, one every 10 degrees, 32x32 gray",
        folders,
        layouts,
        100 * shapenet.VERSION + coil100.VERSION,
        lambda folder, _options: find(folder),
        StandIn("solids", "procedural", _solids),
    )


_VIEWS: dict[Views, DataSource] = {
    "auto": _views(
        "ShapeNet or COIL-100",
        shapenet.FOLDERS + coil100.FOLDERS,
        shapenet.LAYOUTS + coil100.LAYOUTS,
        lambda folder: shapenet.find(folder) or coil100.find(folder),
    ),
    "shapenet": _views("ShapeNet", shapenet.FOLDERS, shapenet.LAYOUTS, shapenet.find),
    "coil100": _views("COIL-100", coil100.FOLDERS, coil100.LAYOUTS, coil100.find),
}

SOURCES = {
    source.key: source
    for source in (
        DataSource(
            "omni",
            "Omniglot: 1623 handwritten characters, 20 drawings each, 28x28",
            omniglot.FOLDERS,
            omniglot.LAYOUTS,
            omniglot.VERSION,
            lambda folder, options: omniglot.find(folder, options.split, options.resize),
            StandIn("glyphs", "procedural", _glyphs),
        ),
        DataSource(
            "tiny",
            "Tiny-ImageNet-32: 100 classes of natural images, 300 each, 32x32 RGB",
            tiny_imagenet.FOLDERS,
            tiny_imagenet.LAYOUTS,
            tiny_imagenet.VERSION,
            lambda folder, _options: tiny_imagenet.find(folder),
            None,
        ),
        DataSource(
            "mini",
            "miniImageNet: 100 classes of natural images, 600 each, 84x84 RGB",
            mini_imagenet.FOLDERS,
            mini_imagenet.LAYOUTS,
            mini_imagenet.VERSION,
            lambda folder, _options: mini_imagenet.find(folder),
            StandIn("patches", "procedural", _patches),
        ),
        _VIEWS["auto"],
        DataSource(
            "context",
            "MNIST: 10,000 handwritten digits (its test images), 28x28",
            mnist.FOLDERS,
            mnist.LAYOUTS,
            mnist.VERSION,
            lambda folder, _options: mnist.find(folder),
            StandIn("digits", "bundled", _digits),
        ),
    )
}


def load(
    dataset: str,
    *,
    source: SourceChoice,
    data_root: Path | None,
    options: DataOptions | None = None,
    reporter: Reporter | None = None,
) -> ImageDataset:
    """Load a data set, from the cache where it was read before.

    Args:
        dataset: a key of ``SOURCES``.
        source: ``real``; ``procedural``, the stand-in; or ``auto``, the real one where it is found, else, with a
            warning in the log, the stand-in. The result's ``source`` says which it is.
        data_root: folder below which real data is looked for.
        options: settings of real data; None for the default.
        reporter: shows a bar where a stand-in takes long to draw.

    Raises:
        UserError: it is not there, or is there but broken: broken data never makes way for the stand-in.
    """
    options, reporter = options or DataOptions(), reporter or Quiet()
    entry = _entry(dataset, options)
    if source == "procedural":
        if entry.stand_in is None:
            raise UserError(f"{dataset} has no stand-in: it needs the real data. {_needed(entry)}")
        _check_options(entry.stand_in, options)
        return entry.stand_in.make(reporter)
    found = _locate(entry, data_root, options)
    if found is not None:
        return cached("-".join([dataset, *found.settings.values()]), _made_from(entry, found), found.read)
    absence = _absence(entry, data_root)
    if source == "real" or entry.stand_in is None:
        raise UserError(f"{absence} {_needed(entry)}")
    _check_options(entry.stand_in, options)
    _log.warning("%s Its stand-in %s (%s) is used instead.", absence, entry.stand_in.name, entry.stand_in.source)
    return entry.stand_in.make(reporter)


def describe(data_root: Path | None, options: DataOptions | None = None) -> list[SourceStatus]:
    """What ``list data`` shows: each data set, and whether it is found; nothing is decoded."""
    rows = []
    options = options or DataOptions()
    for entry in (_entry(dataset, options) for dataset in SOURCES):
        try:
            found = _locate(entry, data_root, options)
        except UserError as error:
            rows.append(SourceStatus(entry, "broken", str(error)))
        else:
            if found is None:
                rows.append(SourceStatus(entry, "not found", _absence(entry, data_root)))
            else:
                rows.append(SourceStatus(entry, "found", f"{found.layout} in {found.folder}"))
    return rows


def verify(dataset: str, data_root: Path | None, options: DataOptions | None = None) -> list[Check]:
    """Read a real data set from its files, past the cache, and say whether it is whole.

    Raises:
        UserError: the name is unknown or the data is not there; what is there but broken is a row that ``failed``.
    """
    options = options or DataOptions()
    entry = _entry(dataset, options)
    _folders(entry, data_root)  # a data folder that does not exist is an error, not a finding
    try:
        found = _locate(entry, data_root, options)
    except UserError as error:
        return [Check("files", "failed", str(error))]
    if found is None or data_root is None:
        raise UserError(f"{_absence(entry, data_root)} {_needed(entry)}")
    checks = [Check("files", "ok", f"{found.layout} in {found.folder}, {len(found.files)} files")]
    checks += _checksums(found, data_root.expanduser())
    try:
        data = found.read()
    except UserError as error:
        return [*checks, Check("content", "failed", str(error))]
    for split in SPLITS:
        # No sizes: a reader that takes nothing but the complete set.
        lacking = shortfall(data.splits[split], *found.complete[split]) if found.complete else ""
        whole = f"{data.splits[split].num_classes} classes, {len(data.splits[split].images)} images"
        checks.append(Check(split, "incomplete" if lacking else "ok", lacking or whole))
    return [*checks, Check("fingerprint", "ok", f"{data.name} {data.fingerprint}")]


def _entry(dataset: str, options: DataOptions) -> DataSource:
    if dataset not in SOURCES:
        raise unknown_name("data set", dataset, SOURCES)
    return _VIEWS[options.views] if dataset == "views" else SOURCES[dataset]


def _check_options(stand_in: StandIn, options: DataOptions) -> None:
    """Refuse settings that choose among real data where the stand-in would be used."""
    default = DataOptions()
    if stand_in.name == "glyphs" and (options.split, options.resize) != (default.split, default.resize):
        raise UserError(
            f"split {options.split!r} and resize {options.resize!r} are settings of the real Omniglot; its stand-in "
            "has neither. Leave the settings out, or point --data-root to Omniglot."
        )
    if stand_in.name == "solids" and options.views != default.views:
        raise UserError(
            f"views {options.views!r} chooses among the real data sets of views; their stand-in is none of them. "
            f"Leave the setting out, or point --data-root to a folder that has {options.views}/."
        )


def _folders(entry: DataSource, data_root: Path | None) -> list[Path]:
    """The folders that may hold the data set: by name, so that no other data set passes for it."""
    if data_root is None:
        return []
    root = data_root.expanduser()
    if not root.is_dir():
        raise UserError(
            f"the data folder must exist; {root} is not a folder. Correct --data-root (or MLPIP_BENCH_DATA)."
        )
    below = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name.lower() in entry.folders]
    below.sort(key=lambda path: entry.folders.index(path.name.lower()))
    return [*below, root] if root.resolve().name.lower() in entry.folders else below


def _locate(entry: DataSource, data_root: Path | None, options: DataOptions) -> Found | None:
    try:
        for folder in _folders(entry, data_root):
            found = entry.find(folder, options)
            if found is not None:
                return found
    except OSError as error:
        raise UserError(f"the data folder must be readable; {error.filename} is not: {error.strerror}.") from error
    return None


def _absence(entry: DataSource, data_root: Path | None) -> str:
    name = entry.title.split(":")[0]
    if data_root is None:
        return f"{name} is not known to be anywhere: no data folder is set (--data-root or MLPIP_BENCH_DATA)."
    for folder in _folders(entry, data_root):
        # A split list alone is a fact about the data set, not the data set.
        content = sorted(
            p.name for p in folder.iterdir() if not p.name.startswith(".") and p.name != mini_imagenet.SPLIT_LIST
        )
        if content:
            return f"{name} is not in {folder} in a known layout: it holds {listed(content)}."
    return f"{name} is not in {data_root.expanduser()}."


def _needed(entry: DataSource) -> str:
    folders = " or ".join(f"{name}/" for name in entry.folders)
    return f"Point --data-root (or MLPIP_BENCH_DATA) to a folder that has {folders} with one of:" + "".join(
        f"\n  - {layout}" for layout in entry.layouts
    )


def _made_from(entry: DataSource, found: Found) -> dict[str, object]:
    try:
        states = [(path, path.stat()) for path in found.files]
    except OSError as error:
        raise UserError(f"the data must be readable; {error.filename} is not: {error.strerror}.") from error
    return {
        "reader": [entry.key, entry.version, found.layout],
        "settings": dict(found.settings),
        "pillow": PIL.__version__,
        "files": [[p.relative_to(found.folder).as_posix(), s.st_size, s.st_mtime_ns] for p, s in states],
    }


def _checksums(found: Found, data_root: Path) -> Iterator[Check]:
    """A row for each file of the data set that a checksum list names, or one that says there is none."""
    files = {path.resolve() for path in found.files}
    rows = 0
    for folder in sorted({data_root, found.folder}):
        for wanted, name in _checksum_list(folder / CHECKSUMS):
            path = (folder / name).resolve()
            if path in files:
                rows += 1
                with path.open("rb") as file:
                    equal = hashlib.file_digest(file, "sha256").hexdigest() == wanted
                yield Check(
                    name, "ok" if equal else "failed", "checksum " + ("agrees" if equal else "differs: fetch it again")
                )
    if not rows:
        yield Check("checksums", "skipped", f"no {CHECKSUMS} in {data_root} names a file of this data set")


def _checksum_list(path: Path) -> list[tuple[str, str]]:
    """Checksum and name of each line of a list that ``sha256sum`` wrote; empty where there is no list."""
    if not path.is_file():
        return []
    lines = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return [(line[0].lower(), line[1].lstrip("*").removeprefix("./")) for line in lines if len(line) == 2]

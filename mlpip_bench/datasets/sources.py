"""Where a data set is looked for, what stands in for it, and whether it is whole."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import PIL

from mlpip_bench.datasets.base import SPLITS, ImageDataset
from mlpip_bench.datasets.cache import cached
from mlpip_bench.datasets.preparing.preparer import Preparer
from mlpip_bench.datasets.reading import Found, listed, shortfall
from mlpip_bench.utils.choices import SourceChoice
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import ROOT_VARIABLE, existing
from mlpip_bench.utils.progress import Quiet, Reporter
from mlpip_bench.utils.provenance import Source

CHECKSUMS = "SHA256SUMS"

_log = logging.getLogger("mlpip_bench")


@dataclass(frozen=True)
class StandIn:
    """A data set that is used where the real one is missing.

    Attributes:
        name: of the data set, and of its cache file.
        source: what kind of stand-in it is.
        made_from: all that decides its arrays, as JSON values.
        build: makes it, and says how far it is.
        steps: how far that counts; 0 where it takes no time.
        fingerprint: of its arrays, where they are the same on every machine; empty where they are not.
    """

    name: str
    source: Source
    made_from: Mapping[str, object]
    build: Callable[[Callable[[int], None]], ImageDataset]
    steps: int = 0
    fingerprint: str = ""

    def load(self, reporter: Reporter) -> ImageDataset:
        """The data set, from the cache where it was made before."""

        def build() -> ImageDataset:
            if not self.steps:
                return self.build(lambda _done: None)
            with reporter.stage(f"drawing the stand-in {self.name}", self.steps) as step:
                return self.build(step)

        expected = {"name": self.name, "source": self.source}
        if self.fingerprint:
            expected["fingerprint"] = self.fingerprint
        return cached(self.name, self.made_from, build, expected=expected)


@dataclass(frozen=True)
class DataSource:
    """A data set on a user's disk.

    Attributes:
        key: the name that benches use.
        title: what it is, its name before the first colon.
        folders: the names that its folder may have, in lower case; the first comes first.
        layouts: what its folder may hold.
        version: version of its reader.
        find: finds it in a folder.
        stand_in: what is used where it is missing.
        chosen: options that choose among real data and are not at their defaults; a stand-in has none of them.
        facts: names of files that say something of the data set, but are not the data set.
        decoded: whether its files are arrays already, of which the cache would be a mere copy.
        preparers: what makes it on the user's machine, by the names that ``data prepare`` knows them under.
        license, citation: of the data, where all copies have the same and no file of theirs says it.
    """

    key: str
    title: str
    folders: tuple[str, ...]
    layouts: tuple[str, ...]
    version: int
    find: Callable[[Path], Found | None]
    stand_in: StandIn | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)
    facts: tuple[str, ...] = ()
    decoded: bool = False
    preparers: Mapping[str, Preparer] = field(default_factory=dict)
    license: str = ""
    citation: str = ""


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


def load(
    source: DataSource,
    *,
    choice: SourceChoice,
    data_root: Path | None,
    reporter: Reporter | None = None,
) -> ImageDataset:
    """Load a data set, from the cache where it was read before.

    Args:
        source: which data set.
        choice: ``real``; ``procedural``, the stand-in; or ``auto``, the real one where it is found, else, with a
            warning in the log, the stand-in. The result's ``source`` says which it is.
        data_root: folder below which real data is looked for.
        reporter: shows a bar where a stand-in takes long to draw.

    Raises:
        UserError: it is not there, or is there but broken: broken data never makes way for the stand-in.
    """
    reporter = reporter or Quiet()
    stand_in = source.stand_in
    if choice == "procedural":
        if stand_in is None:
            raise UserError(f"{source.key} has no stand-in: it needs the real data. {_needed(source)}")
        _check_options(source, stand_in)
        return stand_in.load(reporter)
    found = _locate(source, data_root)
    if found is not None and source.decoded:
        data = found.read()
        if choice == "real" and data.source != "real":
            raise UserError(
                f"{source.key} is {data.source}, made of a stand-in, and real data is asked for. Leave --source out."
            )
        return data
    if found is not None:
        name = "-".join([source.key, *found.settings.values()])
        return cached(name, _made_from(source, found), found.read, expected={"source": "real"})
    absence = _absence(source, data_root)
    if choice == "real" or stand_in is None:
        raise UserError(f"{absence} {_needed(source)}")
    _check_options(source, stand_in)
    _log.warning("%s Its stand-in %s (%s) is used instead.", absence, stand_in.name, stand_in.source)
    return stand_in.load(reporter)


def status(source: DataSource, data_root: Path | None) -> SourceStatus:
    """Whether a data set is found; nothing is decoded."""
    try:
        found = _locate(source, data_root)
    except UserError as error:
        return SourceStatus(source, "broken", str(error))
    if found is None:
        return SourceStatus(source, "not found", _absence(source, data_root))
    return SourceStatus(source, "found", f"{found.layout} in {found.folder}")


def verify(source: DataSource, data_root: Path | None) -> list[Check]:
    """Read a real data set from its files, past the cache, and say whether it is whole.

    Raises:
        UserError: the data is not there; what is there but broken is a row that ``failed``.
    """
    folders_of(source, data_root)  # a data folder that does not exist is an error, not a finding
    try:
        found = _locate(source, data_root)
    except UserError as error:
        return [Check("files", "failed", str(error))]
    if found is None or data_root is None:
        raise UserError(f"{_absence(source, data_root)} {_needed(source)}")
    checks = [Check("files", "ok", f"{found.layout} in {found.folder}, {len(found.files)} files")]
    checks += _checksums(found, data_root.expanduser())
    try:
        data = found.read()
        images = {split: len(part.images) for split, part in data.splits.items()}  # all of them are read now
    except UserError as error:
        return [*checks, Check("content", "failed", str(error))]
    for split in SPLITS:
        # No sizes: a reader that takes nothing but the complete set.
        lacking = shortfall(data.splits[split], *found.complete[split]) if found.complete else ""
        whole = f"{data.splits[split].num_classes} classes, {images[split]} images"
        checks.append(Check(split, "incomplete" if lacking else "ok", lacking or whole))
    return [*checks, Check("fingerprint", "ok", f"{data.name} {data.fingerprint}")]


def _check_options(source: DataSource, stand_in: StandIn) -> None:
    """Refuse settings that choose among real data where the stand-in would be used."""
    if source.chosen:
        chosen = " and ".join(f"{source.key}.{name}={value}" for name, value in source.chosen.items())
        name = source.title.split(":")[0]
        raise UserError(
            f"{chosen} chooses among real data; the stand-in {stand_in.name} has no such choice. Leave it out, or "
            f"point --data-root to a folder that has {name} as {' or '.join(f'{f}/' for f in source.folders)}."
        )


def folders_of(source: DataSource, data_root: Path | None) -> list[Path]:
    """The folders that may hold the data set: by name, so that no other data set passes for it."""
    if data_root is None:
        return []
    root = existing(data_root)
    below = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name.lower() in source.folders]
    below.sort(key=lambda path: source.folders.index(path.name.lower()))
    return [*below, root] if root.resolve().name.lower() in source.folders else below


def _locate(source: DataSource, data_root: Path | None) -> Found | None:
    try:
        for folder in folders_of(source, data_root):
            found = source.find(folder)
            if found is not None:
                return found
    except OSError as error:
        raise UserError(f"the data folder must be readable; {error.filename} is not: {error.strerror}.") from error
    return None


def _absence(source: DataSource, data_root: Path | None) -> str:
    name = source.title.split(":")[0]
    if data_root is None:
        return f"{name} is not known to be anywhere: no data folder is set (--data-root or {ROOT_VARIABLE})."
    for folder in folders_of(source, data_root):
        # A split list alone is a fact about the data set, not the data set.
        content = sorted(p.name for p in folder.iterdir() if not p.name.startswith(".") and p.name not in source.facts)
        if content:
            return f"{name} is not in {folder} in a known layout: it holds {listed(content)}."
    return f"{name} is not in {data_root.expanduser()}."


def _needed(source: DataSource) -> str:
    folders = " or ".join(f"{name}/" for name in source.folders)
    return f"Point --data-root (or {ROOT_VARIABLE}) to a folder that has {folders} with one of:" + "".join(
        f"\n  - {layout}" for layout in source.layouts
    )


def _made_from(source: DataSource, found: Found) -> dict[str, object]:
    try:
        states = [(path, path.stat()) for path in found.files]
    except OSError as error:
        raise UserError(f"the data must be readable; {error.filename} is not: {error.strerror}.") from error
    return {
        "reader": [source.key, source.version, found.layout],
        "settings": dict(found.settings),
        "pillow": PIL.__version__,
        # A file that is copied over another with its size and time has another change time, or another inode.
        "files": [
            [p.relative_to(found.folder).as_posix(), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino]
            for p, s in states
        ],
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

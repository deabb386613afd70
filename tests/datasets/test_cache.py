import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from mlpip_bench.datasets.base import ClassImages, ImageDataset
from mlpip_bench.datasets.cache import cache_folder, cached
from mlpip_bench.datasets.reading import Found
from mlpip_bench.datasets.sources import DataSource, _made_from
from mlpip_bench.utils.errors import UserError


class Builder:
    """Makes a small data set and counts how often it had to."""

    def __init__(self, value: int = 7) -> None:
        self.calls = 0
        self.value = value

    def __call__(self) -> ImageDataset:
        self.calls += 1
        splits = {
            split: ClassImages(
                np.full((3, 1, 4, 4), self.value + i, np.uint8), np.array([1, 2]), (f"{split}/a", f"{split}/ü b")
            )
            for i, split in enumerate(("train", "validation", "test"))
        }
        return ImageDataset("made", "procedural", splits, {"version": self.value, "rule": "x"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my cache"
    monkeypatch.setenv("MLPIP_BENCH_CACHE", str(path))
    return path


def same(a: ImageDataset, b: ImageDataset) -> bool:
    return (a.name, a.source, dict(a.options), a.fingerprint) == (
        b.name,
        b.source,
        dict(b.options),
        b.fingerprint,
    ) and all(
        np.array_equal(a.splits[s].images, b.splits[s].images)
        and np.array_equal(a.splits[s].counts, b.splits[s].counts)
        and a.splits[s].class_names == b.splits[s].class_names
        for s in a.splits
    )


def test_second_time_is_read_not_built(folder: Path) -> None:
    build = Builder()
    first = cached("made", {"version": 1}, build)
    second = cached("made", {"version": 1}, build)
    assert build.calls == 1
    assert same(first, second)
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["made.npz"]


def test_what_it_was_made_from_decides(folder: Path) -> None:
    cached("made", {"version": 1, "files": [["a", 1, 2]]}, Builder())
    for made_from in ({"version": 2, "files": [["a", 1, 2]]}, {"version": 2, "files": [["a", 1, 3]]}):
        build = Builder(value=9)
        assert same(cached("made", made_from, build), Builder(value=9)())
        assert build.calls == 1


def test_order_of_what_it_was_made_from_does_not(folder: Path) -> None:
    build = Builder()
    cached("made", {"a": 1, "b": 2}, build)
    cached("made", {"b": 2, "a": 1}, build)
    assert build.calls == 1


def test_any_damage_is_noticed_and_repaired(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = cached("made", {}, Builder())
    path = folder / "made.npz"
    content = path.read_bytes()
    damaged = [content[:n] for n in (0, 10, len(content) // 2, len(content) - 1)]
    for at in range(0, len(content), 41):
        flipped = bytearray(content)
        flipped[at] ^= 0x55
        damaged.append(bytes(flipped))
    rebuilt = 0
    with caplog.at_level(logging.INFO, logger="mlpip_bench"):
        for bad in damaged:
            path.write_bytes(bad)
            build = Builder()
            assert same(cached("made", {}, build), wanted)
            rebuilt += build.calls
    # Flips in parts of a zip that carry no meaning, such as its times, change nothing.
    assert rebuilt > len(damaged) / 2
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert [p.name for p in folder.iterdir() if p.is_file()] == ["made.npz"]


def test_arrays_with_a_wrong_fingerprint_are_not_trusted(folder: Path) -> None:
    wanted = cached("made", {}, Builder())
    path = folder / "made.npz"
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file}
    arrays["test"][0, 0, 0, 0] ^= 1
    np.savez(path, **arrays)
    build = Builder()
    assert same(cached("made", {}, build), wanted)
    assert build.calls == 1


def test_without_a_writable_folder_it_works_uncached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setenv("MLPIP_BENCH_CACHE", str(file / "cache"))
    build = Builder()
    assert same(cached("made", {}, build), Builder()())
    assert same(cached("made", {}, build), Builder()())
    assert build.calls == 2
    assert "cannot be cached" in caplog.text


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_arrays: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert same(cached("made", {}, Builder()), Builder()())
    assert not [path for path in folder.iterdir() if path.is_file()]


def test_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLPIP_BENCH_CACHE", "~/c")
    assert cache_folder() == tmp_path / "c"


def rewritten(path: Path, **changes: object) -> None:
    """Plant a file that says something else of itself, and is whole."""
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file}
    about = json.loads(arrays["about"].tobytes()) | changes
    np.savez(path, **{**arrays, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)})


@pytest.mark.parametrize(
    "says", [{"source": "real"}, {"source": "alien"}, {"name": "mnist"}, {"fingerprint": "f" * 64}]
)
def test_a_file_that_is_not_what_was_asked_for_is_not_believed(folder: Path, says: dict[str, str]) -> None:
    wanted = Builder()()
    expected = {"name": "made", "source": "procedural", "fingerprint": wanted.fingerprint}
    cached("made", {}, Builder(), expected=expected)
    rewritten(folder / "made.npz", **says)
    build = Builder()
    assert same(cached("made", {}, build, expected=expected), wanted)
    assert build.calls == 1


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(folder: Path) -> None:
    cached("made", {}, Builder())
    os.chown(folder / "made.npz", 12345, -1)
    with pytest.raises(UserError, match=r"belongs to user 12345.*MLPIP_BENCH_CACHE"):
        cached("made", {}, Builder())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_in_the_place_of_a_file_does_not_hang(folder: Path) -> None:
    cached("made", {}, Builder())
    (folder / "made.npz").unlink()
    os.mkfifo(folder / "made.npz")
    assert same(cached("made", {}, Builder()), Builder()())


def test_a_source_file_replaced_by_one_of_its_size_and_time_is_seen(tmp_path: Path) -> None:
    picture = tmp_path / "1.png"
    picture.write_bytes(b"one")
    source = DataSource("made", "Made", ("made",), (), 1, lambda _folder: None)
    found = Found("flat", tmp_path, (picture,), {}, {}, Builder())
    before, times = _made_from(source, found), picture.stat()
    assert _made_from(source, found) == before
    picture.write_bytes(b"two")
    os.utime(picture, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert _made_from(source, found) != before


def test_where_no_home_folder_is_known_nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPIP_BENCH_CACHE", "")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _name: "~nosuchuser/.cache")  # what it then comes to
    build = Builder()
    assert same(cached("made", {}, build), cached("made", {}, build))
    assert build.calls == 2
    monkeypatch.setenv("MLPIP_BENCH_CACHE", "~nosuchuser/cache")
    with pytest.raises(UserError, match="none is known for '~nosuchuser'"):
        cache_folder()

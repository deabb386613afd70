"""A disk that is full, and a folder that cannot be written: one message, and nothing that was there is lost."""

import contextlib
import ctypes
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

CAP_DAC_OVERRIDE, CAPABILITY_VERSION_3 = 1, 0x20080522


@contextlib.contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes. (Python ignores the signal that would end it.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stopped_until_it_fits(folder: Path, run, numbers, whole, one_message) -> list[str]:
    """Run again and again under a limit that doubles; says what each run could not write."""
    stopped, limit, before = [], 256, files(folder / "records")
    while True:
        with largest_file(limit):
            result = run(folder)
        if result.exit_code == 0:
            return stopped
        one_message(result, f"cannot write {folder}", "File too large", "ulimit -f", "same command again")
        stopped += [k for k in ("checkpoints", "records", "tables") if f"cannot write {folder}/{k}" in result.output]
        after = files(folder / "records")
        assert after.items() >= before.items()
        assert numbers(folder).items() <= whole.items()
        assert not [path for path in folder.rglob(".*.*") if path.is_file()]  # no half-written file
        limit, before = 2 * limit, after


def test_a_limit_of_file_size_that_doubles_until_all_fits(tmp_path, run, numbers, whole, one_message, tell):
    stopped = stopped_until_it_fits(tmp_path, run, numbers, whole, one_message)
    assert "checkpoints" in stopped
    assert numbers(tmp_path) == whole
    for kinds in (("records", "tables"), ("tables",)):  # each smaller than those before
        for kind in kinds:
            shutil.rmtree(tmp_path / kind)
        stopped += stopped_until_it_fits(tmp_path, run, numbers, whole, one_message)
    assert {"records", "tables"} <= set(stopped)
    assert numbers(tmp_path) == whole
    tell("full disks", len(stopped))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 512 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_with_a_little_more_each_time_until_all_fits(small_disk, run, numbers, whole, one_message, tell):
    ballast = small_disk / "ballast"
    page = os.statvfs(small_disk).f_bsize
    ballast.write_bytes(bytes(os.statvfs(small_disk).f_bavail * page))
    results, full = small_disk / "results", 0
    while (result := run(results)).exit_code:
        one_message(result, f"cannot write {results}", "No space left on device", "Free some space")
        assert numbers(results).items() <= whole.items()
        full += 1
        os.truncate(ballast, ballast.stat().st_size - min(8 * page, ballast.stat().st_size))
    assert full > 2
    assert numbers(results) == whole
    tell("full disks", full)


@contextlib.contextmanager
def held_to_permissions() -> Iterator[None]:
    """Permissions of files hold for this thread also where it is root's."""
    libc, header, sets = (
        ctypes.CDLL(None, use_errno=True),
        (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3),
        (ctypes.c_uint32 * 6)(),
    )
    assert libc.capget(header, sets) == 0
    effective = sets[0]
    sets[0] &= ~(1 << CAP_DAC_OVERRIDE)
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = effective
        assert libc.capset(header, sets) == 0


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    below = [folder, *folder.rglob("*")]
    modes = [path.stat().st_mode for path in below]
    for path, mode in zip(below, modes, strict=True):
        path.chmod(mode & ~0o222)
    try:
        with held_to_permissions():
            yield
    finally:
        for path, mode in zip(below, modes, strict=True):
            path.chmod(mode)


def test_a_read_only_results_folder(tmp_path, run, call, numbers, whole, one_message, tell):
    assert run(tmp_path).exit_code == 0
    before = files(tmp_path)
    commands = {
        "run of what is there": lambda: run(tmp_path),
        "run of something new": lambda: run(tmp_path, "--seeds", 1),
        "run again": lambda: run(tmp_path, "--overwrite", "always"),
        "table": lambda: call("table", "--results", tmp_path),
        "figures": lambda: call("figures", "--results", tmp_path),
    }
    with read_only(tmp_path):
        for command in commands.values():
            one_message(
                command(), f"cannot write {tmp_path}", "Permission denied", "Choose a folder that can be written"
            )
    assert files(tmp_path) == before
    assert run(tmp_path, "--seeds", "0,1").exit_code == 0
    assert {name: numbers(tmp_path)[name] for name in whole} == whole
    tell("commands on a read-only folder", len(commands))


def test_a_results_folder_that_is_a_file(tmp_path, run, one_message):
    (tmp_path / "file").write_text("")
    one_message(run(tmp_path / "file"), "cannot write", "Not a directory")

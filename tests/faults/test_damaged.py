"""Damaged files: each of a results folder and of the cache in turn, and never a wrong number.

A command either refuses a damaged file with one message that names it, and works once the file is gone, or makes it
anew.
"""

import contextlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from mlpip_bench import registry
from mlpip_bench.records import store
from mlpip_bench.training.checkpoints import load_checkpoint
from mlpip_bench.utils.errors import UserError

FLIPS = 2  # a file


def truncated(content: bytes, _random: random.Random) -> bytes:
    return content[: len(content) // 2]


def emptied(_content: bytes, _random: random.Random) -> bytes:
    return b""


def flipped(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [truncated, emptied, *[flipped] * FLIPS]


@pytest.fixture(scope="module")
def finished(run, numbers, whole, tmp_path_factory) -> Path:
    """A finished run, and the failure of another one."""
    folder = tmp_path_factory.mktemp("finished") / "results"
    assert run(folder).exit_code == 0
    plugin = registry.method("versa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin, "loss", lambda self, batch: {}["missing"])
        assert run(folder, "--seeds", 1, "--methods", "versa").exit_code == 1
    assert numbers(folder) == whole
    return folder


@contextlib.contextmanager
def damages(path: Path, chance: random.Random) -> Iterator[Iterator[None]]:
    """Damages a file in each way in turn; it is whole again at the end."""
    content = path.read_bytes()

    def each() -> Iterator[None]:
        for damage in DAMAGES:
            path.write_bytes(damage(content, chance))
            yield

    try:
        yield each()
    finally:
        path.write_bytes(content)


def paths(folder: Path, kind: str) -> list[Path]:
    return sorted(path for path in (folder / kind).rglob("*") if path.is_file())


def test_every_record(finished, run, call, numbers, whole, one_message, tell):
    chance = random.Random(0)
    records = [path for path in paths(finished, "records") if path.suffix == ".json"]
    assert len(records) == 4
    for path in records:
        with damages(path, chance) as each:
            for _ in each:
                tell("files damaged", 1)
                for command in (run(finished), call("table", "--results", finished)):
                    if command.exit_code or path.stat().st_size == 0:
                        one_message(command, path, "Restore it, or move it away")
                    else:  # a flip between two words
                        assert numbers(finished) == whole
            path.unlink()
            assert run(finished).exit_code == 0
            assert numbers(finished) == whole


def test_every_checkpoint(finished, run, numbers, whole, one_message, tell):
    chance = random.Random(0)
    assert len(paths(finished, "checkpoints")) == 2
    for path in paths(finished, "checkpoints"):
        with damages(path, chance) as each:
            for _ in each:
                tell("files damaged", 1)
                result = run(finished, "--overwrite", "always")
                if result.exit_code or path.stat().st_size == 0:
                    one_message(result, path, "Delete it to train that model again")
                assert numbers(finished) == whole
            path.unlink()
            assert run(finished, "--overwrite", "always").exit_code == 0
            assert numbers(finished) == whole


@pytest.mark.parametrize(("kind", "command"), [("tables", "table"), ("figures", "figures")])
def test_tables_and_figures_are_made_anew(kind, command, finished, call, tell):
    chance = random.Random(0)
    assert call(command, "--results", finished).exit_code == 0
    before = {path: path.read_bytes() for path in paths(finished, kind)}
    assert before
    for damage in (truncated, emptied, flipped) if kind == "tables" else (truncated,):
        for path, content in before.items():
            path.write_bytes(damage(content, chance))
            tell("files damaged", 1)
        assert call(command, "--results", finished).exit_code == 0
        assert {path: path.read_bytes() for path in paths(finished, kind)} == before


def test_every_bit_of_a_score_counts(finished, tell):
    path = next((finished / "records").rglob("nll-*.json"))
    content, before = path.read_bytes(), store.load(path)
    (best, *_) = before.scores
    damaged = finished / "damaged.json"
    for score in best.per_task:
        place = content.index(repr(score).encode())
        for byte in range(place, place + len(repr(score))):
            for bit in (0, 2):  # another digit, or none
                changed = content[:byte] + bytes([content[byte] ^ 1 << bit]) + content[byte + 1 :]
                with contextlib.suppress(ValueError):
                    if float(changed[place : place + len(repr(score))]) == score:
                        continue  # another text of the same number
                damaged.write_bytes(changed)
                with pytest.raises(UserError, match="must be readable and whole"):
                    store.load(damaged)
                tell("bits flipped in scores", 1)
    damaged.unlink()


def test_a_bit_anywhere_in_a_checkpoint(finished, tmp_path):
    path = next((finished / "checkpoints").rglob("*.pt"))
    content, before = path.read_bytes(), load_checkpoint(path)
    chance, damaged, refused = random.Random(0), tmp_path / "damaged.pt", 0
    for _ in range(100):
        damaged.write_bytes(flipped(content, chance))
        try:
            state = load_checkpoint(damaged)
        except UserError:
            refused += 1
            continue
        # A flip in parts of a zip that carry no meaning, such as its padding, changes nothing.
        assert torch.equal(
            torch.cat([v.flatten() for v in state.best_model.values()]),
            torch.cat([v.flatten() for v in before.best_model.values()]),
        )
        assert (state.iteration, state.history, state.best_iteration) == (
            before.iteration,
            before.history,
            before.best_iteration,
        )
    assert refused > 10


@pytest.mark.parametrize("kind", ["record", "checkpoint"])
def test_another_version_of_a_format(kind, finished, tmp_path, run, numbers, whole, one_message, tell):
    shutil.copytree(finished, tmp_path / "results")
    path = next((tmp_path / "results" / f"{kind}s").rglob("*seed0*"))
    if kind == "record":
        path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    else:
        torch.save({**torch.load(path, weights_only=True), "version": 2}, path)
    result = run(tmp_path / "results", "--overwrite", "always")
    one_message(result, path, "schema 99" if kind == "record" else "version")
    path.unlink()
    assert run(tmp_path / "results").exit_code == 0
    assert numbers(tmp_path / "results") == whole
    tell("files damaged", 1)


def test_the_cache(run, call, numbers, tmp_path, monkeypatch, tell):
    monkeypatch.setenv("MLPIP_BENCH_CACHE", str(tmp_path / "cache"))

    def scores() -> object:
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        small = ["--iterations", 1, "--test-tasks", 2, "--set", "tasks_per_batch=1", "--set", "validation_tasks=1"]
        trial = ["--bench", "context2", "--methods", "protonets", "--protocols", "nll", "--source", "procedural"]
        assert call("run", *trial, *small, "--results", tmp_path / "results").exit_code == 0
        return numbers(tmp_path / "results")

    expected = scores()
    (path,) = (tmp_path / "cache").glob("*.npz")
    content, chance = path.read_bytes(), random.Random(0)
    with np.load(path) as file:
        arrays = dict(file)
    for damage in [*DAMAGES, "version"]:
        if damage == "version":
            about = json.loads(arrays["about"].tobytes()) | {"key": "of another version"}
            np.savez(path, **{**arrays, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
        else:
            path.write_bytes(damage(content, chance))
        assert scores() == expected
        tell("files damaged", 1)
    assert [p.name for p in (tmp_path / "cache").iterdir() if p.is_file()] == [path.name]


def test_a_damaged_note_of_a_failure_counts_as_one(finished, run, numbers, whole, tell):
    (path,) = paths(finished, "failures")
    path.write_bytes(path.read_bytes()[:50])
    trial = ("--seeds", 1, "--methods", "versa")
    result = run(finished, *trial, "--overwrite", "never")
    assert result.exit_code == 0
    assert "failed before" in result.output
    assert run(finished, *trial).exit_code == 0
    assert {name: numbers(finished)[name] for name in whole} == whole
    assert not path.exists()
    tell("files damaged", 1)

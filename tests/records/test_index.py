"""The index of records: it never decides what a record is, whatever becomes of its file."""

import json
import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import REPOSITORY, invoke, make_record, make_scores
from mlpip_bench.records import index, store
from mlpip_bench.records.score_array import ScoreArray
from mlpip_bench.utils.errors import UserError

COMMITTED = sorted(folder.parent for folder in (REPOSITORY / "results").glob("*/records"))
RECORDS = [make_record(make_scores((seed / 7, 1 / 3)), seed=seed, settings={"rate": 0.4}) for seed in range(5)]


@pytest.fixture(autouse=True)
def _of_few_records_and_files_that_are_new(monkeypatch):
    monkeypatch.setattr(index, "LEAST", 1)
    monkeypatch.setattr(index, "_SETTLED_SECONDS", -60.0)


@pytest.fixture
def results(tmp_path):
    for record in RECORDS:
        store.save(record, tmp_path)
    assert store.load_all(tmp_path) == RECORDS
    assert (tmp_path / index.NAME).is_file()
    return tmp_path


def parsed(monkeypatch, folder: Path) -> tuple[list, list[Path]]:
    """The records of a folder, and which of their files were read for it."""
    files = []
    read = store.load

    def load(path):
        files.append(path)
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(store, "load", load)
        return store.load_all(folder), files


def changed_in_place(path: Path, accuracy: float) -> None:
    """Another score, in a file of the same name and size."""
    record = store.load(path)
    path.unlink()
    scores = (replace(record.scores[0], per_task=(accuracy, 1 / 3)),)
    store.save(replace(record, scores=scores), path.parents[3])


def path_of(results: Path, seed: int) -> Path:
    return results / "records" / RECORDS[seed].filename


@pytest.mark.skipif(not COMMITTED, reason="needs a checkout")
@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_committed_records_are_the_same_from_the_index(tmp_path, monkeypatch, folder):
    shutil.copytree(folder / "records", tmp_path / "records")
    first, files = parsed(monkeypatch, tmp_path)
    assert len(files) == len(first)
    again, files = parsed(monkeypatch, tmp_path)
    assert not files
    assert again == first
    assert [repr(record) for record in again] == [repr(record) for record in first]  # kinds of numbers, too


def test_only_what_has_changed_is_read_again(results, monkeypatch):
    changed_in_place(path_of(results, 2), 0.125)
    path_of(results, 0).unlink()
    found, files = parsed(monkeypatch, results)
    assert files == [path_of(results, 2)]
    assert [(r.seed, r.scores[0].per_task[0]) for r in found] == [(1, 1 / 7), (2, 0.125), (3, 3 / 7), (4, 4 / 7)]
    with sqlite3.connect(results / index.NAME) as database:
        assert database.execute("SELECT COUNT(*) FROM records").fetchone() == (4,)


def test_a_record_that_is_damaged_later_is_an_error_though_the_index_has_it(results):
    path = path_of(results, 3)
    path.write_text(path.read_text().replace("0.4", "0.5"))
    with pytest.raises(UserError, match="changed after it was written"):
        store.load_all(results)


def test_a_file_that_may_still_change_is_not_in_the_index(results, monkeypatch):
    monkeypatch.setattr(index, "_SETTLED_SECONDS", 60.0)
    assert len(parsed(monkeypatch, results)[1]) == len(RECORDS)


def test_the_index_of_a_copied_folder_does_not_count(results, tmp_path_factory, monkeypatch):
    copy = tmp_path_factory.mktemp("copy") / "results"
    shutil.copytree(results, copy)  # with the times of the files
    found, files = parsed(monkeypatch, copy)
    assert (found, len(files)) == (RECORDS, len(RECORDS))


def as_text(file: Path) -> None:
    file.write_text("no database")


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def with_another_score(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("UPDATE records SET scores = ?", (np.array([1.0, 1.0]).tobytes(),))


def of_another_version(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("UPDATE about SET version = '0'")
        database.execute("UPDATE records SET scores = x''")


def with_other_tables(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE records")
        database.execute("CREATE TABLE records (stamp TEXT)")


def with_rows_of_another_kind(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("UPDATE records SET config = 3, checksum = NULL")


@pytest.mark.parametrize(
    "damage",
    [
        as_text, truncated, empty, zeros, with_another_score, of_another_version, with_other_tables,
        with_rows_of_another_kind,
    ],
)  # fmt: skip
def test_an_index_that_is_damaged_or_foreign_is_made_anew(results, monkeypatch, damage):
    damage(results / index.NAME)
    assert store.load_all(results) == RECORDS
    assert parsed(monkeypatch, results) == (RECORDS, [])


def test_an_index_with_damage_anywhere_gives_the_same_records(results):
    file = results / index.NAME
    whole = file.read_bytes()
    for place in np.random.default_rng(0).integers(len(whole), size=60):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        assert store.load_all(results) == RECORDS, f"byte {place}"


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_is_left_alone(tmp_path, kind):
    for record in RECORDS:
        store.save(record, tmp_path)
    place, elsewhere = tmp_path / index.NAME, tmp_path / "elsewhere"
    if kind == "folder":
        place.mkdir()
    elif kind == "link":
        place.symlink_to(elsewhere)
    else:
        os.mkfifo(place)
    assert store.load_all(tmp_path) == RECORDS
    assert not elsewhere.exists()


def test_a_full_disk_or_a_folder_that_cannot_be_written_costs_time_alone(results, monkeypatch):
    (results / index.NAME).unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert parsed(monkeypatch, results)[0] == RECORDS
    assert not (results / index.NAME).exists()

    def full(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.undo()
    monkeypatch.setattr(index, "LEAST", 1)
    monkeypatch.setattr(sqlite3, "connect", full)
    assert store.load_all(results) == RECORDS


def test_an_index_that_somebody_writes_is_not_waited_for_long(results, monkeypatch):
    monkeypatch.setattr(index, "_WAIT_SECONDS", 0.01)
    changed_in_place(path_of(results, 2), 0.125)
    with sqlite3.connect(results / index.NAME) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert [r.scores[0].per_task[0] for r in store.load_all(results)][2] == 0.125
    assert (results / index.NAME).exists()


def test_a_small_folder_has_no_index(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "LEAST", 50)
    for record in RECORDS:
        store.save(record, tmp_path)
    assert store.load_all(tmp_path) == RECORDS
    assert not (tmp_path / index.NAME).exists()


def test_tables_are_the_same_with_and_without_an_index(results):
    shown = []
    for _ in range(2):
        shown.append(invoke("table", "--results", results).output)
        (results / index.NAME).unlink()
    again = invoke("table", "--results", results).output
    assert shown == [again, again]


def test_a_score_array_is_a_sequence_of_floats():
    values = (0.1, 1 / 3, 2.0)
    array = ScoreArray(values)
    assert array == values
    assert values == array
    assert array != (0.1, 1 / 3)
    assert array != "text"
    assert (array[0], array[-1], array[1:], len(array), list(array)) == (0.1, 2.0, values[1:], 3, list(values))
    assert isinstance(array[0], float)
    assert np.asarray(array).tolist() == list(values)
    assert repr(array) == repr(values)
    assert hash(array) == hash(values)
    assert json.dumps(list(array)) == json.dumps(values)
    assert ScoreArray(values).digest == array.digest != ScoreArray(values[:2]).digest

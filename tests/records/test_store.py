"""Records: intervals against scipy, and files that are whole or not there."""

import errno
import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from builders import invoke, make_record, make_scores, write_record
from mlpip_bench.records import store
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically

SCORES = make_scores((0.1 + 0.2, 1 / 3, 1.0))
RECORD = make_record(
    SCORES, replace(SCORES, model="last"),
    key="0123456789abcdef", seed=3, settings={"rate": 0.4},
    training={"history": [{"iteration": 1, "loss": 1.5}, {"iteration": 2, "loss": 0.5}]},
)  # fmt: skip
finite = st.floats(-1e6, 1e6)


# ------------------------------------------------------------------------------------------------------ intervals


@given(st.lists(finite, min_size=2, max_size=50))
def test_mean_ci95_is_scipys_t_interval(values: list[float]) -> None:
    mean, ci95 = mean_ci95(values)
    scale = float(stats.sem(values))
    assert mean == pytest.approx(sum(values) / len(values), rel=1e-9, abs=1e-9)
    if scale > 1e-9:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=scale)
        assert ci95 == pytest.approx((high - low) / 2, rel=1e-6)
    else:
        assert ci95 == pytest.approx(0.0, abs=1e-6)


@given(st.lists(finite, min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_mean_ci95_does_not_depend_on_the_order(values: list[float], random: Any) -> None:
    shuffled = random.sample(values, len(values))
    assert mean_ci95(shuffled) == mean_ci95(values)


def test_mean_ci95_by_hand() -> None:
    # t(0.975, 2) = 4.302653 (any table), standard deviation 1, n 3.
    mean, ci95 = mean_ci95([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert ci95 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


def test_one_task_says_nothing_of_the_spread() -> None:
    assert mean_ci95([0.5]) == (0.5, math.inf)
    assert mean_ci95([0.5, 0.5]) == (0.5, 0.0)


@pytest.mark.parametrize("per_task", [(), (0.5, math.nan), (math.inf,)])
def test_scores_are_finite_and_at_least_one(per_task: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="accuracy: scores must be finite and at least one"):
        replace(SCORES, per_task=per_task)


@pytest.mark.parametrize("change", [{"better": "bigger"}, {"model": "final"}, {"over": "seeds"}])
def test_scores_know_their_words(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        replace(SCORES, **change)


# ---------------------------------------------------------------------------------------------------------- files


def test_round_trip_is_exact(tmp_path: Path) -> None:
    path = store.save(RECORD, tmp_path)
    assert path == tmp_path / "records" / "omni5w1s" / "alpha" / "accuracy-seed3-0123456789ab.json"
    assert store.load(path) == RECORD
    assert store.load_all(tmp_path) == [RECORD]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@given(st.lists(finite, min_size=1, max_size=5).map(tuple))
def test_round_trip_keeps_every_bit(per_task: tuple[float, ...]) -> None:
    raw = json.loads(json.dumps(asdict(replace(SCORES, per_task=per_task))))
    assert tuple(raw["per_task"]) == per_task


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    first = store.save(RECORD, tmp_path / "one").read_bytes()
    again = replace(RECORD, config=dict(reversed(RECORD.config.items())))
    assert store.save(again, tmp_path / "two").read_bytes() == first


def test_records_come_sorted_and_without_what_a_killed_writer_left(tmp_path: Path) -> None:
    records = [replace(RECORD, method=m, seed=s, key=f"{m}{s}") for m in ("beta", "alpha") for s in (10, 2)]
    folder = store.save(records[0], tmp_path).parent
    for record in records[1:]:
        store.save(record, tmp_path)
    (folder / ".accuracy-seed0-0123.json.abcd").write_text('{"half')
    (folder / ".accuracy.json").write_text('{"half')
    assert [(r.method, r.seed) for r in store.load_all(tmp_path)] == [
        ("alpha", 2), ("alpha", 10), ("beta", 2), ("beta", 10),
    ]  # fmt: skip


def test_no_records_is_an_empty_list(tmp_path: Path) -> None:
    assert store.load_all(tmp_path / "nowhere") == []


def spoil(content: str, how: str) -> str:
    raw = json.loads(content)
    if how == "empty":
        return ""
    if how == "truncated":
        return content[: len(content) // 2]
    if how == "another schema":
        return json.dumps(raw | {"schema": 99})
    if how == "no schema":
        return json.dumps({k: v for k, v in raw.items() if k != "schema"})
    if how == "a field missing":
        return json.dumps({k: v for k, v in raw.items() if k != "device"})
    if how == "a field too many":
        return json.dumps(raw | {"surprise": 1})
    if how == "a list":
        return "[1, 2]"
    if how == "no scores a task":
        return json.dumps(raw | {"scores": [{k: v for k, v in raw["scores"][0].items() if k != "per_task"}]})
    if how == "nan":
        return content.replace("1.0", "NaN")
    return content.replace("1.0", '"1.0"')


@pytest.mark.parametrize(
    "how",
    [
        "empty",
        "truncated",
        "another schema",
        "no schema",
        "a field missing",
        "a field too many",
        "a list",
        "no scores a task",
        "nan",
        "words for numbers",
    ],
)
def test_an_unreadable_record_is_an_error_that_names_it(tmp_path: Path, how: str) -> None:
    path = store.save(RECORD, tmp_path)
    path.write_text(spoil(path.read_text(), how))
    with pytest.raises(UserError, match="must be readable and whole") as error:
        store.load_all(tmp_path)
    assert str(path) in str(error.value)
    assert "run its command again" in str(error.value)


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    path = store.save(RECORD, tmp_path)
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match="must be readable and whole"):
        store.load(path)


def test_a_record_that_is_a_folder_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "records" / "omni5w1s" / "alpha" / "x.json"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match=r"x\.json is not"):
        store.load_all(tmp_path)


@pytest.mark.parametrize("command", ["table", "report", "figures", "compare"])
def test_a_folder_of_records_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch, command: str) -> None:
    denied = store.save(RECORD, tmp_path).parent
    store.save(replace(RECORD, method="beta"), tmp_path)
    listed = Path.iterdir

    def iterdir(folder: Path) -> Any:
        if folder == denied:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    result = invoke(command, *([tmp_path, tmp_path] if command == "compare" else ["--results", tmp_path]))
    assert result.exit_code == 2
    assert "must be readable" in result.output
    assert denied.name in result.output


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    old = store.save(RECORD, tmp_path)
    before = old.read_bytes()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    for seed in (3, 4):  # over a file that is there, and a new one
        with pytest.raises(UserError, match=r"cannot write .*No space left on device.*Free some space"):
            store.save(replace(RECORD, seed=seed, seconds=9.0), tmp_path)
    assert [p.name for p in old.parent.iterdir()] == [old.name]
    assert old.read_bytes() == before


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"x")
    assert not list(tmp_path.iterdir())


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        store.save(RECORD, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["records"]


# ---------------------------------------------------------------------------------------- records of strangers


def raw_record() -> dict[str, Any]:
    environment = {"code": {"numbers": 1, "build": "x"}, "processor": "p", "threads": 1, "gpu": None}
    training = {"seconds": 1.0, "iterations": 4, "best_iteration": 2, "history": [{"iteration": 2, "nll": 0.5}]}
    raw: dict[str, Any] = json.loads(json.dumps(asdict(replace(RECORD, environment=environment, training=training))))
    return raw


def changed(raw: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    """The record with another value at a place; with none there where the value is ``...``."""
    *parents, last = [int(part) if part.isdigit() else part for part in place.split("/")]
    owner: Any = raw
    for parent in parents:
        owner = owner[parent]
    if value is ...:
        del owner[last]
    else:
        owner[last] = value
    return raw


NESTED: Any = []
for _ in range(50):
    NESTED = [NESTED]

STRANGE: list[tuple[str, object]] = [
    ("config/tasks_per_batch", ...), ("training/history", [{"nll": 0.5}]), ("config", {}),
    ("config/norm", ...), ("config/preset", ...), ("config/iterations", ...),
    ("config/iterations", "4"), ("config/iterations", -1), ("config/settings", []), ("config/x", NESTED),
    ("config/settings", {"a": {"b": {"c": 1}}}), ("config/norm", "x" * 200), ("data/source", ...),
    ("data/source", "alien"), ("data/fingerprint", ...),
    ("data/fingerprint", 3), ("data/options", []), ("data/name", "../x"), ("environment/code", "text"),
    ("environment/code", {"plugins": []}), ("environment/processor", {"a": {"b": {"c": 1}}}),
    ("environment/session", 3), ("training/seconds", "1"), ("training/seconds", -1.0), ("training/iterations", "4"),
    ("training/history", ["a"]), ("training/history", [{"nll": "a"}]), ("training/history", 3), ("scores", []),
    ("scores/0/detail", {"a": ["b"]}), ("scores/0/condition", {"steps": 10**30}), ("scores/0/condition", {"a": []}),
    ("scores/0/way", 10**30), ("scores/0/way", 0), ("scores/0/per_task", [1e308]), ("scores/0/metric", "a/b"),
    ("scores/0/metric", "\x1b[31m"), ("scores/0/unit", "u" * 10**6), ("bench", "omni" + "9" * 5000 + "w1s"),
    ("bench", ".."), ("method", "../../../../x"), ("method", "m" * 300), ("method", ""), ("method", "a\x1b]0;b"),
    ("protocol", "a\nb"), ("seed", -1), ("seed", True), ("seconds", -1.0), ("parameters", -1), ("parameters", 1.5),
    ("backbone", {}), ("backbone/spec", []), ("backbone/input_shape", ["a"]),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value"), STRANGE, ids=lambda part: str(part)[:40])
def test_what_is_missing_mistyped_or_out_of_bounds_is_one_message_that_names_the_file(
    tmp_path: Path, place: str, value: object
) -> None:
    path = tmp_path / "records" / "omni5w1s" / "alpha" / "x.json"
    path.parent.mkdir(parents=True)
    write_record(path, raw_record())
    assert store.load(path).seed == 3
    write_record(path, changed(raw_record(), place, value))
    with pytest.raises(UserError, match="must be readable and whole") as error:
        store.load_all(tmp_path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 3000
    assert str(error.value).isprintable()


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_a_record_is_whole_however_it_is_formatted(indent: int | None, tmp_path: Path) -> None:
    record = make_record(training={"a,  b": [], "checksum": "c", "history": [{"iteration": 1, "nll": 1e-7}]})
    path = store.save(record, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=indent))
    assert store.load(path) == record


def test_a_record_that_was_edited_or_has_no_checksum_is_refused(tmp_path: Path) -> None:
    path = store.save(RECORD, tmp_path)
    raw = json.loads(path.read_text())
    raw["scores"][0]["per_task"][0] = 0.99
    path.write_text(json.dumps(raw))
    with pytest.raises(UserError, match="changed after it was written"):
        store.load(path)
    path.write_text(json.dumps({name: value for name, value in raw.items() if name != "checksum"}))
    with pytest.raises(UserError, match="has no checksum"):
        store.load(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda text: text.replace('"seed"', '"seed": 4, "seed"').encode(), "'seed' is there twice"),
        (lambda text: text.replace('"seconds": 1.0', '"seconds": NaN').encode(), "NaN is no number"),
        (lambda text: text.replace('"seconds": 1.0', '"seconds": Infinity').encode(), "Infinity is no number"),
        (lambda text: text.encode("utf-16"), "is not: 'utf-8' codec"),
        (lambda text: b"[" * 100_000, "recursion"),
        (lambda text: b'{"seed": ' + b"9" * 5000 + b"}", "5000 digits"),
    ],
)
def test_a_file_that_means_more_than_one_thing_is_refused(tmp_path: Path, content: Any, says: str) -> None:
    path = store.save(RECORD, tmp_path)
    path.write_bytes(content(path.read_text()))
    with pytest.raises(UserError, match="must be readable and whole") as error:
        store.load(path)
    assert says in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_or_a_device_in_the_place_of_a_record_or_a_note_does_not_hang(tmp_path: Path) -> None:
    for folder in ("records", "failures"):
        (tmp_path / folder / "omni5w1s" / "alpha").mkdir(parents=True)
    os.mkfifo(tmp_path / "failures" / "omni5w1s" / "alpha" / "x.json")
    assert store.load_failures(tmp_path) == [("omni5w1s/alpha/x.json", "its file cannot be read")]
    place = tmp_path / "records" / "omni5w1s" / "alpha" / "x.json"
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(place)
        with pytest.raises(UserError, match="not a file"):
            store.load_all(tmp_path)
        place.unlink()


def test_a_note_of_a_failure_cannot_break_what_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "failures" / "toy5" / "wild" / "x.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"trial": "toy5\x1b[31m", "error": "\ud800" + "x" * 5_000_000}))
    ((trial, error),) = store.load_failures(tmp_path)
    assert trial.isprintable()
    assert len(error) < 3000
    error.encode("utf-8")


def test_files_have_the_mode_that_the_umask_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "private", b"x")
        os.umask(0o022)
        write_atomically(tmp_path / "public", b"x")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("private", "public")] == [0o600, 0o644]


@pytest.mark.parametrize("copied", ["omni5w1s/alpha/copy.json", "omni5w1s/Alpha/{name}", "other/alpha/{name}"])
@pytest.mark.parametrize("command", ["table", "figures", "report", "compare", "run"])
def test_a_copy_of_a_record_is_an_error_that_names_both_files(copied, command, tmp_path):
    path = store.save(make_record(), tmp_path)
    copy = tmp_path / "records" / copied.format(name=path.name)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes())
    given = {
        "compare": (tmp_path, tmp_path),
        "run": ("--bench", "toy5", "--dry-run", "--results", tmp_path),
    }.get(command, ("--results", tmp_path))
    result = invoke(command, *given, COLUMNS="500")
    assert result.exit_code == 2
    assert str(path) in result.output
    assert str(copy) in result.output
    assert "Move the copy away" in result.output

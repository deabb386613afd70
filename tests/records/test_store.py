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

from mlpip_bench.records import store
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically

SCORES = Scores("accuracy", "fraction", "higher", 5, 1, 15, "best", (0.1 + 0.2, 1 / 3, 1.0))
RECORD = Record(
    key="0123456789abcdef",
    bench="omni5w1s",
    method="alpha",
    protocol="accuracy",
    seed=3,
    device="cpu",
    inductive=True,
    config={"norm": "running", "settings": {"rate": 0.4}},
    data={"name": "omniglot", "source": "real", "fingerprint": "ab"},
    scores=(SCORES, replace(SCORES, model="last")),
    parameters=10,
    training={"history": [1.5, 0.5]},
    seconds=1.25,
    environment={},
)
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

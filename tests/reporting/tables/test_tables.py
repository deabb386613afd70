"""Tables against numbers computed without the engine (scipy, statistics, or by hand)."""

import dataclasses
import io
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from builders import SCORES, invoke, make_record, make_scores
from mlpip_bench.records import published, store
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.records.statistics import difference, estimate
from mlpip_bench.reporting import wording
from mlpip_bench.reporting.decisions import parse_margins
from mlpip_bench.reporting.latex import escaped, to_latex
from mlpip_bench.reporting.table import Cell, Row, WideTable, to_markdown, to_rich
from mlpip_bench.reporting.tables.long import long_csv, long_form
from mlpip_bench.reporting.tables.norms import norm_tables
from mlpip_bench.reporting.tables.paired import (
    Configuration,
    method_differences,
    nothing_to_pair,
    paired_csv,
    paired_tables,
)
from mlpip_bench.reporting.tables.scores import wide_tables
from mlpip_bench.reporting.tables.writing import write_tables
from mlpip_bench.utils.errors import UserError

BENCHES = ("omni5w1s", "omni5w5s", "omni20w1s", "omni20w5s", "mini5w1s", "mini5w5s")


def record(*per_task: float, bench: str = "omni5w1s", scores: tuple[Scores, ...] = (), **changes: Any) -> Record:
    scores = scores or (make_scores(per_task or SCORES, bench=bench),)
    return make_record(*scores, bench=bench, **({"norm": "running", "queries": 15} | changes))


def wide(*records: Record, metric: str = "accuracy") -> WideTable:
    return {t.name: t for t in wide_tables(records, published.load())}[metric]


def ours(*records: Record) -> list[tuple[str, dict[str, str]]]:
    return [(row.label, {b: cell.text for b, cell in row.cells.items()}) for row in wide(*records).rows]


def terminal(table: WideTable, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False, color_system=None)
    console.print(to_rich(table, width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# ------------------------------------------------------------------------------------------------------ long form


def test_long_form_has_a_row_a_score_and_a_column_a_setting() -> None:
    nll = make_scores((0.3, 0.2), metric="nll")
    records = [
        record(scores=(make_scores(), nll), seed=3, settings={"steps": 5}, parameters=7),
        record(bench="mini5w5s", source="procedural", options={"split": "random"}, inductive=False),
    ]
    frame = long_form(records)
    assert frame["bench"].tolist() == ["omni5w1s", "omni5w1s", "mini5w5s"]
    assert frame["settings.steps"].tolist()[:2] == [5, 5]
    assert frame["data.split"].tolist()[2:] == ["random"]
    assert frame["inductive"].tolist() == ["yes", "yes", "no"]
    assert frame["parameters"].tolist()[0] == 7
    assert {"norm", "preset", "iterations", "backbone", "device", "source", "key", "numbers"} <= set(frame.columns)
    assert "per_task" not in frame


def test_long_form_in_full() -> None:
    frame = pd.read_csv(io.StringIO(long_csv([record(0.5, 0.25, 1.0, seed=7)])), converters={"mean": str})
    low, high = stats.t.interval(0.95, 2, loc=1.75 / 3, scale=stats.sem([0.5, 0.25, 1.0]))
    (row,) = frame.to_dict("records")
    assert float(row["mean"]) == 1.75 / 3
    assert len(row["mean"]) > 16
    assert row["ci95"] == pytest.approx((high - low) / 2, rel=1e-12)
    assert (row["method"], row["metric"], row["model"], row["seed"], row["unit"]) == (
        "alpha", "accuracy", "best", 7, "fraction",
    )  # fmt: skip


def test_what_the_paper_reports_is_a_file_of_its_own(tmp_path: Path) -> None:
    write_tables([record(method="maml"), record(method="maml", bench="linear5s", source="synthetic")], tmp_path)
    ours, theirs = (pd.read_csv(tmp_path / "tables" / f"{name}.csv") for name in ("long", "published"))
    assert ours.groupby("method")["mean"].mean().to_dict() == {"maml": pytest.approx(0.85)}  # by plugin, ours alone
    assert set(theirs["bench"]) == {"omni5w1s"}
    maml = theirs[(theirs["method"] == "maml") & (theirs["metric"] == "accuracy")].iloc[0]
    assert (maml["label"], maml["mean"], maml["ci95"], maml["way"], maml["training_tasks"]) == (
        "MAML", 0.987, 0.004, 5, 1920000,
    )  # fmt: skip
    write_tables([record(bench="linear5s", source="synthetic")], tmp_path / "other")
    assert not (tmp_path / "other" / "tables" / "published.csv").exists()


def test_one_task_has_no_interval() -> None:
    single = record(0.5, bench="mini5w1s")
    assert "inf" not in long_csv([single])
    table = wide(single)
    for text in (to_markdown(table), to_latex(table).replace(r"$\pm$", "±"), terminal(table)):
        assert "50.00 ± n/a" in text
        assert "n/a: one test task has no interval" in text
        assert "inf" not in text
        assert "nan" not in text


def test_last_model_is_a_metric_of_its_own() -> None:
    both = record(scores=(make_scores((0.5, 0.6)), make_scores((0.1, 0.2), model="last")))
    assert long_form([both])["model"].tolist() == ["best", "last"]
    best, last = wide_tables([both], published.load())
    assert (best.name, last.name) == ("accuracy", "accuracy_last")
    assert "model: best on validation" in best.title
    assert "model: last iteration of training" in last.title
    assert best.published
    assert not last.published
    assert last.rows[0].cells["omni5w1s"].mean == pytest.approx(0.15)


# ---------------------------------------------------------------------------------------------------- wide: values


def test_values_in_per_cent_and_in_nats() -> None:
    nll = make_scores((0.25, 0.5, 0.75), metric="nll")
    table = wide(record(scores=(make_scores((0.9, 0.8, 1.0)), nll)), metric="nll")
    half = stats.t.ppf(0.975, 2) * statistics.stdev((0.25, 0.5, 0.75)) / 3**0.5
    assert table.rows[0].cells["omni5w1s"].text == f"0.5000 ± {half:.4f}" == "0.5000 ± 0.6210"
    assert table.title == "nll (nats per query, lower is better; model: best on validation)"
    assert ours(record(0.9, 0.8, 1.0)) == [("alpha", {"omni5w1s": "90.00 ± 24.84"})]


def test_any_metric_becomes_a_table() -> None:
    seconds = make_scores((0.00123, 0.00125), metric="adapt_time", unit="seconds", better="lower")
    table = wide(record(scores=(seconds,)), metric="adapt_time")
    assert table.rows[0].cells["omni5w1s"].text.startswith("0.00124 ± ")
    assert not table.published


def test_several_seeds_have_an_interval_over_trainings_and_tasks_that_says_so() -> None:
    first, second = (0.5, 0.7, 0.9), (0.9, 0.7, 0.6)
    table = wide(record(*first, seed=0), record(*second, seed=4))
    (row,) = table.rows
    expected = estimate([first, second])
    cell = row.cells["omni5w1s"]
    assert (cell.mean, cell.ci95) == pytest.approx((statistics.fmean(first + second), expected.ci95))
    spread = statistics.stdev([statistics.fmean(first), statistics.fmean(second)])
    assert cell.spread == f"sd {100 * spread:.2f}"
    assert row.attributes["seeds"] == "0,4"
    assert wide(record(*first)).rows[0].cells["omni5w1s"].spread == ""  # one seed has none
    assert "(sd 2.36)" in to_markdown(table)
    assert table.notes[0].startswith(
        "± is the 95 % half-width over 2 trainings and 3 test tasks (two-way random effects"
    )
    assert "sd is the standard deviation (ddof 1)" in table.notes[0]
    assert not any("leaves the training out" in note for note in table.notes)
    both = wide(record(*first, seed=0), record(*second, seed=4), record(*first, method="beta"))
    assert [note.split(":")[0] for note in both.notes[:2]] == ["Several seeds", "One seed"]


def test_caption_says_what_the_interval_is() -> None:
    note = (
        "± is the 95 % Student-t half-width over 4 test tasks (ddof 1). It leaves the training out: a number is of one "
        "trained model."
    )
    table = wide(record())
    assert f"- {note}\n" in to_markdown(table)
    assert note.replace("±", r"$\pm$").replace("%", r"\%") in to_latex(table)
    assert note in terminal(table, 200)
    assert "Several seeds" not in to_markdown(table)
    assert "over 2–4 test tasks" in wide(record(), record(0.1, 0.2, bench="mini5w1s")).notes[0]  # noqa: RUF001


# ------------------------------------------------------------------------------------ wide: nothing mixed or hidden


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"iterations": 100}, "quick, 100 it"),
        ({"preset": "paper"}, "paper, 1500 it"),
        ({"norm": "transductive"}, "transductive"),
        ({"inductive": False}, "no"),
        ({"source": "procedural"}, "alpha (stand-in)"),
        ({"device": "cuda"}, "cuda"),
        ({"tasks_per_batch": 16}, "tasks per batch 16"),
        ({"settings": {"steps": 5}}, "steps 5"),
        ({"options": {"split": "alphabets"}}, "split alphabets"),
        ({"fingerprint": "0123456789abcdef"}, "fingerprint 0123456789ab"),
        ({"scores": (make_scores(queries=1),)}, "| 1 |"),
        ({"scores": (make_scores((0.5, 0.5)),)}, "| 2 |"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_two_configurations_are_never_averaged(change: dict[str, Any], shown: str, seed: int) -> None:
    change = {"scores": (make_scores((0.5, 0.4, 0.6, 0.1)),)} | change
    table = wide(record(), record(seed=seed, **change))
    assert len(table.rows) == 2
    assert all(not row.cells["omni5w1s"].spread for row in table.rows)
    rows = [line for line in to_markdown(table).splitlines() if line.startswith("| alpha")]
    assert len(set(rows)) == 2
    assert sum(shown in row for row in rows) == 1


def test_records_that_differ_in_their_key_only_are_two_rows() -> None:
    table = wide(record(key="first version"), record(0.1, 0.2, 0.3, 0.4, key="second version"))
    assert [row.attributes["settings"] for row in table.rows] == ["record first versio", "record second versi"]


@pytest.mark.parametrize(("way", "classes", "warned"), [(3, 6, True), (5, 19, True), (5, 20, False), (20, 79, True)])
def test_few_test_classes_are_warned_of(way: int, classes: int, warned: bool) -> None:
    of_way = dataclasses.replace(make_scores(SCORES), way=way)
    notes = "\n".join(wide(record(scores=(of_way,), test_classes=classes)).notes)
    assert ("Few test classes" in notes) == warned
    if (way, classes) == (3, 6):
        assert "omni5w1s has 6, of which a task has 3 (20 combinations)" in notes


def test_configurations_of_two_methods_are_distinguished_in_notes() -> None:
    table = wide(record(settings={"steps": 5}), record(method="beta", tasks_per_batch=16))
    assert [row.marked for row in table.rows] == ["alpha [1]", "beta [2]"]
    assert table.row_notes[:2] == ("[1] steps 5; tasks per batch 4.", "[2] tasks per batch 16.")


def test_budgets_of_several_benches_share_a_row_and_are_listed() -> None:
    table = wide(record(), record(bench="mini5w5s", iterations=500, seed=1))
    (row,) = table.rows
    assert row.attributes["budget"] == "quick, 500–1500 it"  # noqa: RUF001
    note = "[1] iterations 1500 (omni5w1s), 500 (mini5w5s); seeds 0 (omni5w1s), 1 (mini5w5s)."
    for text in (to_markdown(table), terminal(table)):
        assert note in text
        assert "alpha [1]" in text
    assert "[1]" not in to_latex(table)  # which has no notes of single rows


def test_common_settings_and_data_are_stated() -> None:
    table = wide(record(options={"split": "characters"}), record(bench="mini5w5s", source="procedural"))
    notes = table.notes
    assert "backbone conv4" in table.attributes()[1]
    (common,) = (note for note in notes if note.startswith("Settings of all our rows: "))
    assert {"tasks per batch 4"} <= set(common.removesuffix(".").partition(": ")[2].split(", "))
    data = f"omni5w1s: letters (real), fingerprint {'f' * 12}, split characters; mini5w5s: letters (procedural)"
    assert any(data in note for note in notes)


def test_methods_on_different_splits_say_so_in_their_rows() -> None:
    table = wide(record(options={"split": "characters"}), record(method="beta", options={"split": "alphabets"}))
    assert [row.attributes["settings"] for row in table.rows] == ["split characters", "split alphabets"]


def test_condition_of_test_other_than_the_benchs_is_another_column() -> None:
    table = wide(record(scores=(make_scores(), make_scores(way=20))))
    assert table.benches == ("omni5w1s", "omni5w1s at 20w1s")


def test_benches_in_natural_order() -> None:
    shuffled = ("zoo5w1s", "linear5s", "mini5w1s", "omni20w1s", "tiny5w5s", "omni5w5s", "omni100w1s", "omni5w1s")
    table = wide(*(record(bench=bench) for bench in shuffled))
    natural = "omni5w1s omni5w5s omni20w1s omni100w1s tiny5w5s mini5w1s linear5s zoo5w1s"
    assert " ".join(table.benches) == natural


def test_one_cell_twice_is_an_error() -> None:
    with pytest.raises(UserError, match=r"a score has one record; omni5w1s/alpha/accuracy-seed0-.*Move the copy away"):
        wide(record(), record())


def test_a_metric_has_one_direction() -> None:
    with pytest.raises(UserError, match="a metric has one unit and one direction"):
        wide(record(), record(method="beta", scores=(make_scores(better="lower"),)))


# ------------------------------------------------------------------------------------------ wide: conditions


def stepped(*steps: float | str, **changes: Any) -> Record:
    return record(scores=tuple(make_scores(condition={"steps": s}, **changes) for s in steps), protocol="steps")


def test_scores_under_a_condition_have_tables_of_their_own() -> None:
    nll = stepped(1, metric="nll", unit="nats per query", better="lower", model="last")
    alone = record(scores=(make_scores((0.1, 0.2), condition={"asked": "one at a time"}),), protocol="alone")
    records = [record(scores=(make_scores((0.5, 0.6)),)), stepped(2, 10, 1), nll, alone]
    shown = {t.name: t for t in wide_tables(records, published.load())}
    assert set(shown) == {"accuracy", "accuracy_by_asked", "accuracy_by_steps", "nll_by_steps_last"}
    assert [(row.label, set(row.cells)) for row in shown["accuracy"].rows] == [("alpha", {"omni5w1s"})]
    assert shown["accuracy"].rows[0].cells["omni5w1s"].mean == pytest.approx(0.55)
    assert shown["accuracy_by_steps"].benches == tuple(f"steps {n}" for n in (1, 2, 10))
    assert shown["accuracy_by_steps"].title.startswith("accuracy_by_steps on omni5w1s (%, ")
    assert shown["accuracy_by_asked"].benches == ("asked one at a time",)
    assert "last iteration of training" in shown["nll_by_steps_last"].title
    assert [bool(t.published) for t in shown.values()] == [name == "accuracy" for name in shown]


def test_values_of_a_condition_are_in_the_order_of_numbers_below_each_bench() -> None:
    values = (10, 0.05, 1e-5, 0.5, "few", 2, -1)
    other = record(bench="mini5w1s", scores=(make_scores(bench="mini5w1s", condition={"steps": 1}),), protocol="steps")
    first, second = wide_tables([other, stepped(*values)], [])  # a table a bench
    ordered = ("-1", "1e-05", "0.05", "0.5", "2", "10", "few")
    assert first.benches == tuple(f"steps {value}" for value in ordered)
    assert second.benches == ("steps 1",)
    assert [table.title.split(" (")[0] for table in (first, second)] == [
        "accuracy_by_steps on omni5w1s", "accuracy_by_steps on mini5w1s",
    ]  # fmt: skip


def test_conditions_of_unlike_names_are_unlike_tables() -> None:
    two = make_scores(condition={"steps": 1, "noise": 0.5})
    (both, one) = wide_tables([record(scores=(two, make_scores(condition={"steps": 1})))], [])
    assert (both.name, one.name) == ("accuracy_by_noise_by_steps", "accuracy_by_steps")
    assert both.benches == ("noise 0.5, steps 1",)


@pytest.mark.parametrize(("width", "frames"), [(80, 3), (100, 2)])
def test_steps_of_one_bench_fill_few_frames(width: int, frames: int) -> None:
    steps = (0, 1, 2, 3, 5, 10, 20, 50, 100)
    (table,) = wide_tables([stepped(*steps, unit="nats per query", better="lower")], [])
    text = terminal(table, width)
    assert max(map(len, text.splitlines())) <= width
    headers = [line.split()[1:] for line in text.splitlines() if line.startswith("  method")]
    assert [int(n) for line in headers for n in line] == list(steps)
    assert len(headers) == frames
    assert max(map(len, headers)) - min(map(len, headers)) <= 1


def test_the_long_form_has_a_column_a_condition() -> None:
    scores = (
        make_scores(),
        make_scores(condition={"steps": 10}),
        make_scores(condition={"b": "x", "a": 0.5}, model="last"),
    )
    frame = long_form([record(scores=scores)])
    assert frame["metric"].tolist() == ["accuracy"] * 3
    assert frame["condition.steps"].tolist()[1] == 10
    assert frame[["condition.a", "condition.b", "model"]].iloc[2].tolist() == [0.5, "x", "last"]


def test_synthetic_tasks_stand_in_for_nothing() -> None:
    table = wide(record(bench="linear5s", source="synthetic"))
    assert table.benches == ("linear5s",)
    assert [row.label for row in table.rows] == ["alpha"]
    assert "stand-in" not in to_markdown(table) + to_latex(table) + terminal(table)
    assert "| synthetic |" in to_markdown(table)
    elsewhere = record(bench="linear5s", scores=(make_scores(way=1, shot=10),), way=1, shot=5)
    assert wide(elsewhere).benches == ("linear5s at 1w10s",)


# ------------------------------------------------------------------------------------------------- wide: emphasis


def bold(table: WideTable) -> list[str]:
    return [row.label for row in table.rows if row.bold]


def test_bold_is_the_best_and_those_that_no_corrected_test_shows_to_be_worse() -> None:
    def three(direction: str) -> WideTable:
        spread = {"far": (0.20, 0.21, 0.22), "near": (0.50, 0.54, 0.52), "next": (0.52, 0.53, 0.57)}
        scores = {name: (make_scores(values, better=direction),) for name, values in spread.items()}
        return wide(*(record(method=name, scores=s) for name, s in scores.items()))

    assert bold(three("higher")) == ["near", "next"]
    assert bold(three("lower")) == ["far"]


def test_bold_is_paired_and_corrected_for_all_pairs_of_the_column() -> None:
    level = [0.1 * n for n in range(9)]  # that all share, so that intervals overlap by far
    step = [0.01, 0.011, 0.009, 0.01, 0.012, 0.008, 0.01, 0.01, 0.01]
    best, worse = record(*(a + b for a, b in zip(level, step, strict=True))), record(*level, method="beta")
    assert bold(wide(best, worse)) == ["alpha"]
    lucky = [0.01, 0.012, 0.001, 0.002, 0.02, -0.002, 0.01, 0.01, 0.001]
    p = stats.ttest_1samp(lucky, 0).pvalue
    assert 0.05 / 6 < p < 0.05
    pair = [record(*(a + b for a, b in zip(level, lucky, strict=True))), worse]
    assert bold(wide(*pair)) == ["alpha"]
    others = [
        record(*(0.8 - x for x in level), method="gamma"),
        record(*reversed(level[3:]), *level[:3], method="delta"),
    ]
    assert "beta" in bold(wide(*pair, *others))  # of six pairs


def test_what_is_equal_task_by_task_is_bold_in_both_rows() -> None:
    equal = [record(*[0.5, 0.6] * 9, method=m) for m in ("alpha", "beta")]
    assert bold(wide(*equal, record(*[0.1, 0.2] * 9, method="gamma"))) == ["alpha", "beta"]


def test_bold_compares_sources_separately_and_not_with_the_paper() -> None:
    def two(source: str, low: float) -> list[Record]:
        values = [(low, low + 0.001, low - 0.001), (low + 0.1, low + 0.102, low + 0.1)]
        return [record(*x, source=source, method=m) for x, m in zip(values, ("alpha", "beta"), strict=True)]

    records, stand_in = two("real", 0.1), two("procedural", 0.8)
    assert bold(wide(*records, *stand_in)) == ["beta", "beta (stand-in)"]
    assert bold(wide(records[0], stand_in[0])) == []  # nothing to compare with


def test_bold_of_the_published_rows_is_the_papers() -> None:
    table = wide(*(record(bench=bench) for bench in BENCHES))
    computed = {(re.sub(r" \[\d+\]", "", row.label), bench) for row in table.published for bench in row.bold}
    printed = {
        "MAML": "omni5w5s",
        "Meta-SGD": "omni5w1s omni5w5s",
        "SNAIL": "omni20w1s omni20w5s",
        "Relation Net": "omni5w1s omni5w5s omni20w1s omni20w5s",
        "Reptile": "mini5w5s",
        "BMAML": "mini5w1s",
        "Versa": "omni5w1s omni5w5s omni20w1s mini5w1s mini5w5s",
    }
    expected = {(label, bench) for label, benches in printed.items() for bench in benches.split()}
    # 99.78 ± 0.09 overlaps with 99.93 ± 0.09, and the paper does not print it bold: the rule does.
    assert computed - expected == {("SNAIL", "omni5w5s")}
    assert expected <= computed


# -------------------------------------------------------------------------------------------------------- formats


def mixed() -> list[Record]:
    return [
        record(method="long_name"),
        record(method="long_name", seed=1),
        record(method="beta", settings={"rate_%": 0.4}),
        record(method="beta", bench="mini5w1s", source="procedural", settings={"rate_%": 0.4}),
    ]


def test_golden_markdown() -> None:
    text = to_markdown(wide(record(0.5, 0.7), record(0.9, 1.0, method="beta", bench="zoo5w1s", iterations=10)))
    assert text.startswith(
        "**accuracy (%, higher is better; model: best on validation)**\n"
        "\n"
        "All our rows: backbone conv4, pretraining none, device cpu, protocol accuracy.\n"
        "\n"
        "| method | norm | inductive | queries | parameters | budget | seeds | tasks | source | omni5w1s | zoo5w1s |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | ---: | ---: |\n"
        "| alpha | running | yes | 15 | 10 | quick, 1500 it | 0 | 2 | real | 60.00 ± 127.06 |  |\n"
        "| beta | running | yes | 15 | 10 | quick, 10 it | 0 | 2 | real |  | 95.00 ± 63.53 |\n"
        "| *published:* |  |  |  |  |  |  |  |  |  |  |\n"
        "| Siamese Nets [1] |  |  |  |  |  |  |  | published | 97.3 |  |\n"
    )
    assert "| **99.53 ± 0.26** |" in text
    assert "[1] of Vinyals et al.'s implementation" in text
    assert "| Versa [4] |" in text
    assert "[4] transductive batch norm" in text
    assert "[5] inductive" in text


def test_markdown_rows_have_a_cell_a_column() -> None:
    for table in wide_tables(mixed(), published.load()):
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1


def test_stand_in_results_are_marked_in_every_format_and_row() -> None:
    table = wide(*mixed())
    notice = "stand-in: measured on data that stand in for the real data set"
    for text in (to_markdown(table), to_latex(table), terminal(table)):
        assert notice in text
        assert "beta (stand-in)" in text
        assert "procedural" in text.split(notice)[0]
    assert "| procedural |" in to_markdown(table)
    assert "source procedural" in to_latex(wide(record(source="procedural")))
    assert "stand-in" not in to_markdown(wide(record()))


def test_latex_is_balanced_and_escaped() -> None:
    text = to_latex(wide(*mixed()))
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")
    assert text.count(r"\begin") == text.count(r"\end")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"(?<!\\)[%#]", body)
    assert not re.search(r"(?<!\\)_", body)
    assert r"long\_name" in text
    assert body.isascii()
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    spec = re.search(r"\\begin\{tabular\}\{@\{\}(.*)@\{\}\}", body)
    assert spec
    columns = len(re.sub(r">\{.*?\}p\{.*?\}", "p", spec[1]))
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {columns - 1}
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert r"\textbf{99.70 $\pm$ 0.20}" in text


def test_latex_escapes_every_special_character() -> None:
    assert escaped(r"\{}%_&#$~^<>±") == (
        r"\textbackslash{}\{\}\%\_\&\#\$\textasciitilde{}\textasciicircum{}$<$$>$$\pm$"
    )


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_terminal_fits_and_loses_nothing(width: int) -> None:
    records = [record(bench=bench, seed=seed) for bench in (*BENCHES, "tiny5w1s", "tiny5w5s") for seed in (0, 1)]
    table = wide(*records)
    text = terminal(table, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for bench in table.benches:
        assert bench in text
    assert text.count("85.00") == 8
    assert "published:" in text


def test_terminal_takes_names_as_they_are() -> None:
    assert "[bold]x" in terminal(wide(record(method="[bold]x")))


def test_six_benches_are_one_table_in_100_columns() -> None:
    text = terminal(wide(*(record(bench=bench) for bench in BENCHES)))
    assert any(all(bench in line for bench in BENCHES) for line in text.splitlines())


def test_constant_columns_go_to_the_caption() -> None:
    text = terminal(wide(record()))
    constant = (
        "norm running, inductive yes, queries 15, parameters 10, pretraining none, budget quick, 1500 it, device cpu"
    )
    assert constant in " ".join(text.split())
    assert r"\caption{accuracy (\%, higher is better; model: best on validation). All our rows: backbone" in to_latex(
        wide(record())
    )


# ---------------------------------------------------------------------------------------------- paired differences

A, B = (0.9, 0.8, 1.0, 0.7), (0.7, 0.5, 0.9, 0.4)


def of(method: str, *per_task: float, **changes: Any) -> Record:
    return record(*per_task, method=method, **changes)


def test_a_paired_difference_is_that_of_scipy_next_to_welchs_unpaired_one() -> None:
    (found,) = method_differences([of("beta", *B), of("alpha", *A)])
    assert (found.method, found.against, found.metric, found.verdict) == ("alpha", "beta", "accuracy", "better")
    low, high = stats.ttest_rel(A, B).confidence_interval(0.95)
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high))
    low, high = stats.ttest_ind(A, B, equal_var=False).confidence_interval(0.95)
    assert found.unpaired_ci95 == pytest.approx((high - low) / 2)
    assert not found.differs


def test_the_matrix_of_paired_differences_row_by_row() -> None:
    (table,) = paired_tables(method_differences([of("beta", *B), of("alpha", *A)]))
    assert to_markdown(table).startswith(
        "**accuracy on omni5w1s, row less column (percentage points, higher is better; model: best on validation)**\n"
        "\n"
        "All our rows: device cpu, protocol accuracy.\n"
        "\n"
        "| row less column | norm | inductive | queries | budget | seeds | tasks | source | alpha | beta |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | ---: | ---: |\n"
        "| alpha | running | yes | 15 | quick, 1500 it | 0 | 4 | real |  | **+22.50 ± 15.23** (better) |\n"
        "| beta | running | yes | 15 | quick, 1500 it | 0 | 4 | real | **-22.50 ± 15.23** (worse) |  |\n"
    )
    text = terminal(table, 200)
    assert "Holm's correction for all pairs of the methods on this bench (1)" in text
    assert "about these two trained models, not about the methods" in text


def test_verdicts_over_several_trainings_are_about_methods() -> None:
    rng = np.random.default_rng(0)
    scores = {m: rng.normal(x, 0.02, (3, 30)).tolist() for m, x in (("alpha", 0.6), ("beta", 0.4))}
    records = [of(m, *row, seed=seed) for m, rows in scores.items() for seed, row in enumerate(rows)]
    (found,) = method_differences(records)
    expected = difference(scores["alpha"], scores["beta"], (0, 1))
    assert (found.mean, found.ci95, found.decision.estimate.trainings) == (expected.mean, expected.ci95, 3)
    (table,) = paired_tables([found])
    assert "over 3 trainings and the test tasks" in table.notes[0]
    assert not any("trained models" in note for note in table.notes)
    assert paired_csv([found]).splitlines()[1].endswith(",better,methods,fraction")


def test_two_trainings_of_one_method_are_never_a_verdict_on_it_alone() -> None:
    """Five methods that are one, whose trainings scatter: corrected verdicts over seeds are seldom any."""
    rng = np.random.default_rng(3)
    decided = 0
    for _ in range(30):
        scores = rng.normal(0.5, 0.02, (5, 3, 1)) + rng.normal(0, 0.05, 60) + rng.normal(0, 0.02, (5, 3, 60))
        records = [of(f"m{m}", *scores[m, s], seed=s) for m in range(5) for s in range(3)]
        decided += any(c.verdict != "undecided" for c in method_differences(records))
    assert decided <= 7  # a tenth at most is expected; without the correction, a third


def test_margins_make_verdicts_of_equality() -> None:
    near = [x + (-1) ** n * 0.0005 for n, x in enumerate(np.linspace(0.3, 0.9, 40))]
    records = [of("alpha", *np.linspace(0.3, 0.9, 40)), of("beta", *near), of("gamma", *(x / 2 for x in near))]
    plain = {(c.method, c.against): c.verdict for c in method_differences(records)}
    assert plain == {("alpha", "beta"): "undecided", ("alpha", "gamma"): "better", ("beta", "gamma"): "better"}
    found = method_differences(records, margins=parse_margins("accuracy=0.5"))
    assert {(c.method, c.against): c.verdict for c in found} == plain | {("alpha", "beta"): "equal within 0.5 points"}
    (table,) = paired_tables(found)
    assert any(note.startswith("equal within 0.5 points: two one-sided tests at 5 %") for note in table.notes)
    tiny = method_differences(records, margins=parse_margins("accuracy=0.001"))
    assert {(c.method, c.against): c.verdict for c in tiny} == plain


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        *((text, "METRIC=NUMBER, several") for text in ("accuracy", "accuracy=", "accuracy=nan", "=1", "", ",")),
        ("accuracy=-1", "positive numbers"),
        ("accuracy=1,accuracy=2", "one number a metric; got accuracy twice, 1 and 2"),
    ],
)
def test_a_margin_that_is_none_is_one_message(text: str, rule: str) -> None:
    with pytest.raises(UserError, match=f"--margin takes {rule}"):
        parse_margins(text)


def facts_of_pairs(records: Sequence[Record], rename: dict[str, str]) -> dict[frozenset[str], tuple[float, ...]]:
    """Size, interval and p of each difference, which order and names do not move."""
    return {
        frozenset(rename.get(m, m) for m in (c.method, c.against)): (abs(c.mean), c.ci95, c.decision.estimate.p)
        for c in method_differences(records)
    }


def test_renaming_reordering_and_adding_methods_changes_no_other_number() -> None:
    rng = np.random.default_rng(5)
    records = [of(m, *rng.normal(0.5, 0.1, 30), seed=s) for m in ("alpha", "beta", "gamma") for s in (0, 1)]
    before = facts_of_pairs(records, {})
    corrected = {frozenset((c.method, c.against)): c.decision.p_holm for c in method_differences(records)}

    def cells(records: Sequence[Record]) -> dict[str, str]:
        return {row.label: row.cells["omni5w1s"].text for row in wide(*records).rows}

    shown = cells(records)
    names = {"alpha": "zeta", "beta": "alpha", "gamma": "beta"}
    renamed = [dataclasses.replace(r, method=names[r.method]) for r in records]
    back = {new: old for old, new in names.items()}
    assert facts_of_pairs(renamed, back) == before
    assert {back[m]: text for m, text in cells(renamed).items()} == shown
    again = {frozenset(back[m] for m in (c.method, c.against)): c.decision.p_holm for c in method_differences(renamed)}
    assert again == corrected  # nor is the correction moved by names
    assert facts_of_pairs(records[::-1], {}) == before
    assert cells(records[::-1]) == shown
    more = [*records, of("omega", *rng.normal(0.5, 0.1, 30)), of("alpha", *rng.normal(0.5, 0.1, 30), bench="mini5w1s")]
    added = facts_of_pairs(more, {})
    assert {pair: added[pair] for pair in before} == before
    assert {m: cells(more)[m] for m in shown} == shown
    # The stated exception: the corrected p is of a family, which has grown.
    larger = {frozenset((c.method, c.against)): c.decision.p_holm for c in method_differences(more)}
    assert all(larger[pair] >= corrected[pair] for pair in corrected)


def test_every_two_methods_of_every_bench_and_metric_or_those_against_one() -> None:
    def three(metric: str, better: str) -> list[Record]:
        spread = {"alpha": A, "beta": B, "gamma": B[::-1]}
        return [
            of(name, bench=bench, scores=(make_scores(x, metric=metric, better=better, bench=bench),), protocol=metric)
            for bench in ("mini5w1s", "omni5w1s")
            for name, x in spread.items()
        ]

    records = three("nll", "lower") + three("accuracy", "higher")
    found = [(c.metric, c.attributes["bench"], c.method, c.against) for c in method_differences(records)]
    pairs = [("alpha", "beta"), ("alpha", "gamma"), ("beta", "gamma")]
    assert found == [
        (metric, bench, *pair) for metric in ("accuracy", "nll") for bench in ("omni5w1s", "mini5w1s") for pair in pairs
    ]
    against = method_differences(records, "beta")
    assert [(c.method, c.against) for c in against] == [("alpha", "beta"), ("gamma", "beta")] * 4
    verdicts = [
        [c.verdict for c in method_differences([r for r in records if r.method in two])] for two in ("alpha beta",)
    ]
    assert verdicts == [["better"] * 2 + ["worse"] * 2]
    tables = paired_tables(against)
    assert [(t.name, t.benches, len(t.rows)) for t in tables] == [
        (f"paired_{metric}", ("beta",), 2) for metric in ("accuracy", "nll") for _ in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"norm": "transductive"},
        {"scores": (make_scores(B, queries=1),)},
        {"preset": "paper"},
        {"source": "procedural"},
        {"scores": (make_scores(B[:2]),)},
        {"fingerprint": "0123456789abcdef"},
        {"options": {"split": "alphabets"}},
        {"protocol": "another"},
        {"scores": (make_scores(B, way=20),), "way": 5},
        {"scores": (make_scores(B, model="last"),)},
        {"scores": (make_scores(B, condition={"steps": 1}),)},
        {"method": "alpha"},
    ],
)
def test_methods_that_were_not_measured_in_the_same_way_are_not_paired(change: dict[str, Any]) -> None:
    records = [of("alpha", *A), record(**{"method": "beta", "scores": (make_scores(B),), "key": "other", **change})]
    assert method_differences(records) == []
    assert paired_tables(method_differences(records)) == []
    message = str(nothing_to_pair(records))
    assert "needs two methods measured in the same way on one bench" in message
    assert "omni5w1s alpha (norm running, queries 15, preset quick, source real, test tasks 4" in message


def test_a_difference_in_budget_is_compared_and_named_at_the_row() -> None:
    records = [of("alpha", *A), of("beta", *B, iterations=100, device="cuda"), of("gamma", *B, settings={"rate": 1})]
    (table,) = paired_tables(method_differences(records))
    assert [row.label for row in table.rows] == ["alpha", "beta", "gamma"]
    assert table.notes[-1] == (
        "Measured differently: iterations 1500 (alpha, gamma), 100 (beta); device cpu (alpha, gamma), cuda (beta). "
        "A difference is over the seeds that both have."
    )
    assert [row.attributes["budget"] for row in table.rows] == ["quick, 1500 it", "quick, 100 it", "quick, 1500 it"]


def test_a_setting_that_both_have_is_named_where_it_differs() -> None:
    records = [of("alpha", *A, settings={"samples": 10, "rate": 1}), of("beta", *B, settings={"samples": 100})]
    (found,) = method_differences(records)
    assert found.differs == "samples 10 (alpha), 100 (beta)"


def test_configurations_of_a_method_are_compared_separately() -> None:
    records = [of("alpha", *A, settings={"steps": 1}), of("alpha", *B, settings={"steps": 5}), of("beta", *B)]
    found = method_differences(records)
    assert [(c.attributes["settings"], round(c.mean, 3)) for c in found] == [
        ("alpha steps 1", 0.225),
        ("alpha steps 5", 0),
        ("", 0.225),
    ]
    assert [c.decision.p_holm for c in found] == pytest.approx(
        [3 * stats.ttest_rel(A, B).pvalue, 1, found[0].decision.p_holm]
    )


def test_settings_and_norms_of_one_method_are_compared() -> None:
    c = (0.1, 0.9, 0.2, 0.3)
    records = [
        of("alpha", *A, settings={"steps": 1, "rate": 2}),
        of("alpha", *B, settings={"steps": 5, "rate": 2}),
        of("alpha", *c, settings={"steps": 5, "rate": 2}, norm="transductive", inductive=False),
        of("alpha", *c, settings={"steps": 1, "rate": 2}, tasks_per_batch=16),  # no setting of the method
        of("beta", *c, norm="transductive"),
    ]
    found = [c for c in method_differences(records) if c.method != "alpha"]
    assert [(c.method, c.against, c.attributes["norm"], c.differs) for c in found] == [
        ("alpha (steps 1)", "alpha (steps 5)", "running", ""),
        ("alpha (norm running, steps 1)", "alpha (norm transductive, steps 5)", "running/transductive", ""),
        ("alpha (norm running)", "alpha (norm transductive)", "running/transductive", ""),
    ]
    for comparison, (x, y) in zip(found, [(A, B), (A, c), (B, c)], strict=True):
        low, high = stats.ttest_rel(x, y).confidence_interval(0.95)
        assert (comparison.mean - comparison.ci95, comparison.mean + comparison.ci95) == pytest.approx((low, high))


def test_settings_of_a_method_are_compared_once_against_it_and_not_against_others() -> None:
    records = [of("beta", *x, settings={"steps": n}) for n, x in ((1, A), (5, B))] + [of("alpha", *A), of("gamma", *A)]
    pairs = [(c.method, c.against) for c in method_differences(records, "beta")]
    assert pairs == [("alpha", "beta")] * 2 + [("gamma", "beta")] * 2 + [("beta (steps 1)", "beta (steps 5)")]
    pairs = [(c.method, c.against) for c in method_differences(records, "alpha")]
    assert pairs == [("beta", "alpha")] * 2 + [("gamma", "alpha")]


def on(backbone: str, *per_task: float, spec: dict[str, Any], method: str = "alpha", **changes: Any) -> Record:
    one = of(method, *per_task, key=f"{method} {backbone} {spec}", **changes)
    return dataclasses.replace(one, backbone={"name": backbone, "spec": spec})


def test_backbones_are_known_by_their_names_and_those_of_one_name_by_their_settings() -> None:
    c = (0.1, 0.9, 0.2, 0.3)
    two = [on("conv4", *A, spec={"blocks": 4, "channels": 64}), on("resnet12", *B, spec={"channels": [64, 160]})]
    assert [row.attributes["settings"] for row in wide(*two).rows] == ["", ""]
    assert [run.label for run in compared([*two, of("beta", *c)])] == [
        "alpha (backbone conv4)", "alpha (backbone resnet12)", "beta",
    ]  # fmt: skip
    three = [*two, on("resnet12", *c, spec={"channels": [16, 40]})]
    assert [(row.attributes["backbone"], row.attributes["settings"]) for row in wide(*three).rows] == [
        ("conv4", "backbone channels 64"),
        ("resnet12", "backbone channels [16, 40]"),
        ("resnet12", "backbone channels [64, 160]"),
    ]


def compared(records: Sequence[Record]) -> list[Configuration]:
    runs = {run.label: run for c in method_differences(records) for run in (c.first, c.second)}
    return [runs[label] for label in sorted(runs)]


def test_a_norm_that_came_with_a_network_is_compared_with_any_other() -> None:
    records = [of("alpha", *A, norm="own"), of("beta", *B), of("gamma", *A, norm="metabn")]
    found = {(c.method, c.against): c for c in method_differences(records)}
    assert set(found) == {("alpha", "beta"), ("alpha", "gamma")}  # not beta and gamma, whose norms were chosen
    one = found["alpha", "beta"]
    assert (one.attributes["norm"], one.differs) == ("own/running", "norm own (alpha), running (beta)")
    low, high = stats.ttest_rel(A, B).confidence_interval(0.95)
    assert (one.mean - one.ci95, one.mean + one.ci95) == pytest.approx((low, high))


def test_rows_on_data_of_two_kinds_say_which() -> None:
    records = [
        of(m, *x, options={"split": split}, key=split + m)
        for split in ("random", "vinyals")
        for m, x in (("a", A), ("b", B))
    ]
    assert [c.attributes["settings"] for c in method_differences(records)] == ["split random", "split vinyals"]


def test_a_difference_is_over_the_seeds_that_both_have() -> None:
    c = (0.1, 0.9, 0.2, 0.3)
    records = [
        of("alpha", *A),
        of("alpha", *c, seed=1),
        of("alpha", *c, seed=2),
        of("beta", *B),
        of("beta", *A, seed=1),
    ]
    (found,) = method_differences(records)
    expected = difference([A, c], [B, A])
    assert (found.mean, found.ci95) == pytest.approx((expected.mean, expected.ci95))
    assert found.attributes["seeds"] == "0,1"
    assert found.differs == "seeds 0,1,2 (alpha), 0,1 (beta)"
    (table,) = paired_tables([found])
    assert any("A difference is over the seeds that both have" in note for note in table.notes)


def test_without_a_seed_in_common_a_difference_is_of_trained_models() -> None:
    (found,) = method_differences([of("alpha", *A), of("alpha", *A, seed=2), of("beta", *B, seed=1)])
    low, high = stats.ttest_rel(A, B).confidence_interval(0.95)
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high))
    assert not found.decision.of_methods
    assert found.attributes["seeds"] == "none in common"
    assert "seeds 0,2 (alpha), 1 (beta)" in paired_csv([found])


def test_stand_ins_and_single_tasks_are_marked_in_the_paired_table() -> None:
    (table,) = paired_tables(method_differences([of(m, 0.5, source="procedural") for m in ("alpha", "beta")]))
    assert table.rows[0].label == "alpha (stand-in)"
    assert table.rows[0].cells["beta"].text == "0.00 ± n/a"
    assert table.rows[0].cells["beta"].spread == "undecided"
    assert any(note.startswith("stand-in:") for note in table.notes)
    assert "n/a: one test task has no interval." in table.notes


def test_paired_csv_has_floats_in_full() -> None:
    found = method_differences([of("alpha", *A), of("beta", *B)])
    exact = dict.fromkeys(("difference", "ci95", "ci95_unpaired"), float)
    frame = pd.read_csv(io.StringIO(paired_csv(found)), converters=exact)
    assert frame.loc[0, ["metric", "method", "against", "bench", "verdict"]].tolist() == [
        "accuracy", "alpha", "beta", "omni5w1s", "better",
    ]  # fmt: skip
    assert frame.loc[0, ["difference", "ci95", "ci95_unpaired"]].tolist() == [
        found[0].mean, found[0].ci95, found[0].unpaired_ci95,
    ]  # fmt: skip


def test_a_name_is_no_formula_in_the_file_of_differences() -> None:
    found = method_differences([of("=1+1", *A), of("beta", *B)])
    assert "'=1+1" in pd.read_csv(io.StringIO(paired_csv(found))).loc[0, ["method", "against"]].tolist()


# ---------------------------------------------------------------------------------------------- normalization modes

ALONE = {"asked": "one at a time"}


def both_ways(norm: str, together: Sequence[float], alone: Sequence[float], **changes: Any) -> list[Record]:
    made: dict[str, Any] = {"norm": norm, "inductive": norm != "transductive", **changes}
    asked = (make_scores(alone, condition=ALONE), make_scores(alone, condition=ALONE, model="last"))
    return [record(*together, **made), record(scores=asked, protocol="one_at_a_time", **made)]


def test_norm_modes_show_the_paired_difference_of_queries_together_and_alone() -> None:
    records = [*both_ways("transductive", A, B), *both_ways("running", A, A)]
    (table,) = norm_tables(records)
    assert table.benches == ("alpha together", "alpha alone", "alpha difference")
    assert [(row.label, row.attributes["inductive"]) for row in table.rows] == [
        ("running", "yes"),
        ("transductive", "no"),
    ]
    running, transductive = table.rows
    assert [c.text for c in running.cells.values()] == ["85.00 ± 20.54", "85.00 ± 20.54", "0.00 ± 0.00"]
    low, high = stats.ttest_rel(A, B).confidence_interval(0.95)
    difference = transductive.cells["alpha difference"]
    assert difference.mean == pytest.approx((low + high) / 2)
    assert difference.ci95 == pytest.approx((high - low) / 2)
    assert table.title == (
        "accuracy on omni5w1s by norm mode (%, higher is better; model: best on validation; budget quick, 1500 it; "
        "15 queries a class; 4 test tasks; source real)"
    )
    text = to_markdown(table)
    assert "| norm | inductive | seeds | alpha together | alpha alone | alpha difference |" in text
    assert "difference: together less alone" in text
    assert "stand-in" not in text


def test_norm_modes_of_stand_ins_methods_and_budgets() -> None:
    change: dict[str, Any] = {"method": "beta", "source": "procedural", "iterations": 100}
    records = [r for norm in ("running", "transductive") for r in both_ways(norm, A, B, source="procedural")]
    records += [r for norm in ("running", "transductive") for r in both_ways(norm, A, B, **change)]
    (table,) = norm_tables(records)
    assert "budget quick, 100–1500 it; 15 queries a class; 4 test tasks; source procedural (stand-in)" in table.title  # noqa: RUF001
    assert any(note.startswith("stand-in:") for note in table.notes)
    assert table.row_notes[-1] == "[1] iterations 1500 (alpha), 100 (beta)."
    assert len(table.benches) == 6
    assert all(len(row.cells) == 6 for row in table.rows)


def test_norm_modes_never_mix_configurations_and_pair_the_seeds_that_both_have() -> None:
    records = [r for norm in ("running", "tasknorm") for r in both_ways(norm, A, B, settings={"steps": 1})]
    records += both_ways("running", B, A, settings={"steps": 5})
    records += both_ways("tasknorm", B, B, settings={"steps": 1}, seed=1)[:1]  # together only
    (table,) = norm_tables(records)
    running, tasknorm = table.rows
    assert table.benches[0] == "alpha (steps 1) together"
    assert running.cells["alpha (steps 5) difference"].mean == pytest.approx(-0.225)
    assert running.cells["alpha (steps 1) difference"].mean == pytest.approx(0.225)
    assert "alpha (steps 5) together" not in tasknorm.cells
    assert tasknorm.cells["alpha (steps 1) difference"].mean == pytest.approx(0.225)  # of seed 0
    assert tasknorm.cells["alpha (steps 1) together"].spread
    assert table.row_notes[-1] == "[1] seeds 0,1 (alpha (steps 1) together), 0 (alpha (steps 1) alone)."


def test_norm_modes_need_two_modes_and_scores_of_queries_alone() -> None:
    assert norm_tables(both_ways("running", A, B)) == []
    assert norm_tables([record(norm="running"), record(norm="tasknorm")]) == []
    steps = (make_scores(condition={"steps": 1}),)
    assert norm_tables([record(scores=steps, norm=norm) for norm in ("running", "tasknorm")]) == []
    alone = [r for norm in ("running", "tasknorm") for r in both_ways(norm, A, B)[1:]]
    assert norm_tables(alone) == []
    assert norm_tables([*alone, record(norm="running", method="beta")]) == []  # both kinds, of two methods
    elsewhere = both_ways("running", A, B) + both_ways("tasknorm", A, B, preset="paper")
    assert norm_tables(elsewhere) == []


def test_columns_without_a_number_are_not_drawn() -> None:
    records = [r for norm in ("running", "tasknorm") for r in both_ways(norm, A, B)]
    records += [record(method="lonely", norm=norm) for norm in ("running", "tasknorm")]  # together only
    (table,) = norm_tables(records)
    for width in (40, 60, 200):
        text = terminal(table, width)
        drawn = text.partition("together: all queries")[0]
        assert drawn.count("alone") == 1
        assert drawn.count("lonely") == 1
        starts = [line.split()[0] for line in drawn.splitlines() if re.match(r"  (norm|running) ", line)]
        assert starts == ["norm", "running"] * (len(starts) // 2)  # no header without rows
    assert "| alpha together | alpha alone | alpha difference | lonely together |\n" in to_markdown(table)
    assert r"& lonely together \\" in to_latex(table)


# --------------------------------------------------------------------------------------- printed together


def together(*shown: WideTable, **options: Any) -> str:
    console = Console(width=200, file=io.StringIO(), force_terminal=False, color_system=None)
    console.print(to_rich(*shown, width=200, **options))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_notes_of_several_tables_are_printed_once_below_them() -> None:
    def table(name: str, *notes: str) -> WideTable:
        row = Row("alpha", {"norm": name}, {"omni5w1s": Cell(0.5, None, "0.5")})
        return WideTable(name, f"{name} (%)", ("omni5w1s",), (row,), (), notes, heading=name)

    shown = table("one", "Of all.", "Of one."), table("two", "Of two and three.", "Of all."), table("three", *ALL)
    lines = [line for line in together(*shown).splitlines() if line and line[0] != " "]
    assert lines == [
        *("one (%)", "All our rows: norm one.", "Of one."),
        *("two (%)", "All our rows: norm two."),
        *("three (%)", "All our rows: norm three."),
        *("Notes to all tables above:", "Of all."),
        *("Notes to two; three:", "Of two and three."),
    ]
    assert "Notes to" not in together(shown[0])
    assert all("- Of all.\n" in to_markdown(table) for table in shown)  # files stay whole


ALL = ("Of two and three.", "Of all.")


def test_tables_printed_together_give_a_number_to_one_note_only() -> None:
    nll = make_scores(metric="nll")
    records = [
        record(settings={"steps": 5}), record(method="beta", settings={"samples": 2}),
        record(method="beta", settings={"samples": 2}, scores=(nll,), protocol="nll"),
        record(method="gamma", settings={"scale": 3}, scores=(nll,), protocol="nll"),
    ]  # fmt: skip
    separate = wide_tables(records, [])
    assert [[row.marked for row in t.rows] for t in separate] == [["alpha [1]", "beta [2]"], ["beta [1]", "gamma [2]"]]
    joint = wide_tables(records, [], {})
    assert [[row.marked for row in t.rows] for t in joint] == [["alpha [1]", "beta [2]"], ["beta [2]", "gamma [3]"]]
    text = together(*joint)
    assert [text.count(note) for note in ("[1] steps 5.", "[2] samples 2.", "[3] scale 3.")] == [1, 1, 1]


def test_bold_is_explained_only_where_something_is_bold_and_can_be_shown() -> None:
    several = wide(*(record(method=method) for method in ("alpha", "beta")), record(bench="zoo5w1s"))
    assert "Bold: " in together(several)
    assert "Bold: " not in together(several, bold=False)
    assert "Bold: " in to_markdown(several)
    single = wide(record(bench="zoo5w1s"))
    assert not any(row.bold for row in single.rows)
    assert "Bold: " not in together(single) + to_markdown(single) + to_latex(single)


# ------------------------------------------------------------------------------------------------- command line


def call(folder: Path, *arguments: str) -> Any:
    return invoke("table", "--results", folder, *arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for r in [
        *(r for norm in ("running", "transductive") for r in both_ways(norm, A, B, key=f"{norm} alpha")),
        of("beta", *B),
        of("gamma", *B[::-1]),
        of("gamma", *A, bench="mini5w1s"),
    ]:
        store.save(r, tmp_path)
    return tmp_path


def test_table_prints_the_norm_modes_and_writes_all_files(folder: Path) -> None:
    shown = call(folder).output
    assert "accuracy on omni5w1s by norm mode" in shown
    assert "accuracy_by_asked on omni5w1s (%" in shown
    assert "paired differences" not in shown
    written = {path.name for path in (folder / "tables").iterdir()}
    names = ("accuracy", "accuracy_by_asked", "accuracy_by_asked_last", "paired", "norm_modes")
    assert written == {"long.csv", "published.csv", *(f"{name}.{form}" for name in names for form in ("md", "tex"))}
    for form, render in (("md", to_markdown), ("tex", to_latex)):
        (table,) = norm_tables(store.load_all(folder))
        assert (folder / "tables" / f"norm_modes.{form}").read_text(encoding="utf-8") == render(table)
        assert render(table) in call(folder, "--format", "markdown" if form == "md" else "latex").output


def test_text_that_is_no_terminal_has_each_note_once(folder: Path) -> None:
    shown = call(folder).output
    assert shown.count("± is the 95 % Student-t half-width") == 1
    assert "Bold:" not in shown
    assert "Notes to all tables above:" in shown


@pytest.mark.parametrize(
    ("records", "hinted"),
    [
        ([record(norm=norm, key=norm) for norm in ("running", "tasknorm")], True),
        ([r for norm in ("running", "tasknorm") for r in both_ways(norm, A, B, key=norm)[1:]], True),
        ([r for norm in ("running", "tasknorm") for r in both_ways(norm, A, B, key=norm)], False),
        ([record(norm="running"), record(norm="tasknorm", method="beta")], False),
        ([record(bench="linear5s", norm=norm, key=norm) for norm in ("running", "tasknorm")], False),  # regression
    ],
)
def test_several_norms_without_both_kinds_of_scores_get_a_hint(
    records: list[Record], hinted: bool, tmp_path: Path
) -> None:
    for r in records:
        store.save(r, tmp_path)
    lines = [line for line in call(tmp_path).stderr.splitlines() if "--protocols accuracy,nll,one_at_a_time" in line]
    assert len(lines) == hinted


def test_table_paired_in_every_format(folder: Path) -> None:
    chosen = [r for r in store.load_all(folder) if r.method != "beta"]
    found = method_differences(chosen)
    (table,) = paired_tables([c for c in found if c.attributes["bench"] == "omni5w1s"])
    options = ("--paired", "--methods", "alpha,gamma", "--bench", "omni5w1s")
    assert "row less column" in call(folder, *options).output
    assert call(folder, *options, "--format", "markdown").output == to_markdown(table) + "\n"
    assert call(folder, *options, "--format", "latex").output == to_latex(table) + "\n"
    assert call(folder, *options, "--format", "csv").output == paired_csv(found)


def test_table_paired_against_one_method(folder: Path) -> None:
    def methods(*arguments: str) -> list[list[str]]:
        rows = call(folder, "--paired", "--against", "beta", "--format", "csv", *arguments).output.splitlines()[1:]
        return [row.split(",")[1:3] for row in rows]

    assert methods() == [["alpha", "beta"], ["gamma", "beta"]]
    assert methods("--methods", "gamma") == [["gamma", "beta"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "beta"], "--against chooses what to compare with; got --against beta alone. Add --paired"),
        (["--paired", "--against", "bet"], "Did you mean 'beta'? Known: alpha, beta, gamma."),
        (["--paired", "--bench", "mini5w1s"], "needs two methods measured in the same way on one bench"),
        (["--paired", "--methods", "beta"], "There are: omni5w1s beta (norm running, queries 15,"),
    ],
)
def test_what_cannot_be_paired_is_refused(folder: Path, arguments: list[str], message: str) -> None:
    result = call(folder, *arguments)
    assert result.exit_code == 2
    assert message in result.output


# -------------------------------------------------------------------------------------------------------- writing


def test_write_tables_is_the_same_every_time_and_in_any_order(tmp_path: Path) -> None:
    records = mixed()
    paths = write_tables(records, tmp_path / "one")
    again = write_tables(records[::-1], tmp_path / "two")
    assert [p.relative_to(tmp_path / "one").as_posix() for p in paths] == [
        "tables/long.csv",
        "tables/published.csv",
        "tables/accuracy.md",
        "tables/accuracy.tex",
        "tables/paired.md",
        "tables/paired.tex",
    ]
    assert sorted(p.name for p in (tmp_path / "one" / "tables").iterdir()) == sorted(p.name for p in paths)
    assert [p.read_bytes() for p in paths] == [p.read_bytes() for p in again]


def test_no_records_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there are none below .*records\. .*python -m mlpip_bench run"):
        write_tables([], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_difference_that_is_nothing_has_no_sign() -> None:
    assert wording.number_text(-1e-9, "nats per query") == "0.0000"
    assert wording.number_text(-1e-9, "fraction") == "0.00"
    assert wording.number_text(-0.5, "fraction") == "-50.00"


def test_rows_name_the_cost_of_their_training():
    def trained(seed: int = 0, method: str = "alpha", parameters: int = 10, **training: float) -> Record:
        return make_record(seed=seed, method=method, parameters=parameters, training=training)

    records = [
        trained(tasks_seen=9600, seconds=80.0),
        trained(1, tasks_seen=9600, seconds=400.0),
        trained(method="beta", tasks_seen=700, seconds=4.4),
        trained(method="gamma", parameters=0, tasks_seen=700, seconds=1.0),  # has nothing to train
    ]
    (table,) = wide_tables(records, [])
    assert {row.label: row.attributes["trained"] for row in table.rows} == {
        "alpha": "9,600 tasks, 80 s–7 min",  # noqa: RUF001
        "beta": "700 tasks, 4 s",
        "gamma": "",
    }
    assert any(note.startswith("trained: training tasks seen") for note in table.notes)
    assert "| 700 tasks, 4 s |" in to_markdown(table)
    (unknown,) = wide_tables([make_record()], [])
    assert "| trained |" not in to_markdown(unknown)

"""Tables against numbers computed without the engine (scipy, statistics, or by hand)."""

import io
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from builders import SCORES, invoke, make_record, make_scores
from mlpip_bench.records import published, store
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.reporting import wording
from mlpip_bench.reporting.table import Cell, Row, WideTable, _latex, to_latex, to_markdown, to_rich
from mlpip_bench.reporting.tables.long import long_csv, long_form
from mlpip_bench.reporting.tables.norms import norm_tables
from mlpip_bench.reporting.tables.paired import method_differences, nothing_to_pair, paired_csv, paired_tables
from mlpip_bench.reporting.tables.scores import wide_tables
from mlpip_bench.reporting.tables.writing import write_tables
from mlpip_bench.utils.errors import UserError

LONG = "bench,method,protocol,metric,way,shot,queries,norm,preset,iterations,source,seed,device,tasks,mean,ci95,unit"
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


def test_long_form_has_exactly_its_columns_and_a_row_a_value() -> None:
    nll = make_scores((0.3, 0.2), metric="nll")
    records = [record(scores=(make_scores(), nll), seed=3), record(bench="mini5w5s", source="procedural")]
    frame = long_form(records, published.load())
    assert ",".join(frame.columns) == LONG
    assert len(frame) == 3 + 103
    assert [str(frame[c].dtype) for c in ("way", "queries", "seed", "tasks", "iterations")] == ["Int64"] * 5
    assert set(frame["source"]) == {"real", "procedural", "published"}


def test_long_form_line_by_line() -> None:
    text = long_csv([record(0.5, 0.25, 1.0, seed=7)], published.load())
    low, high = stats.t.interval(0.95, 2, loc=1.75 / 3, scale=stats.sem([0.5, 0.25, 1.0]))
    assert text.splitlines()[0] == LONG
    *front, mean, ci95, unit = text.splitlines()[1].split(",")
    assert ",".join(front) == "omni5w1s,alpha,accuracy,accuracy,5,1,15,running,quick,1500,real,7,cpu,3"
    assert float(mean) == 1.75 / 3
    assert len(mean) > 16  # in full
    assert float(ci95) == pytest.approx((high - low) / 2, rel=1e-12)
    assert unit == "fraction"
    assert "mini5w5s,versa,accuracy,accuracy,5,5,,,,,published,,,,0.6737,0.0086,fraction" in text.splitlines()
    assert "omni20w1s,versa,nll,nll,20,1,,,,,published,,,,0.079,0.009,nats per query" in text.splitlines()
    assert "omni5w1s,siamese_nets,accuracy,accuracy,5,1,,,,,published,,,,0.973,,fraction" in text.splitlines()


def test_long_form_reads_back() -> None:
    records = [record(0.1, 0.2, 0.4), record(0.3, bench="mini5w1s")]
    text = long_csv(records, published.load())
    integers = dict.fromkeys(("way", "shot", "queries", "seed", "tasks"), "Int64")
    back = pd.read_csv(io.StringIO(text), dtype=integers, converters={"mean": float})  # pandas 2 rounds
    assert back["mean"].tolist() == long_form(records, published.load())["mean"].tolist()


def test_one_task_has_no_interval() -> None:
    single = record(0.5, bench="mini5w1s")
    assert "procedural" not in long_csv([single], [])
    assert long_csv([single], []).splitlines()[1].endswith(",0,cpu,1,0.5,,fraction")
    table = wide(single)
    for text in (to_markdown(table), to_latex(table).replace(r"$\pm$", "±"), terminal(table)):
        assert "50.00 ± n/a" in text
        assert "n/a: one test task has no interval" in text
        assert "inf" not in text
        assert "nan" not in text


def test_last_model_is_a_metric_of_its_own() -> None:
    both = record(scores=(make_scores((0.5, 0.6)), make_scores((0.1, 0.2), model="last")))
    assert long_form([both], [])["metric"].tolist() == ["accuracy", "accuracy_last"]
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


def test_seeds_are_averaged_task_by_task() -> None:
    first, second = (0.5, 0.7, 0.9), (0.9, 0.7, 0.6)
    table = wide(record(*first, seed=0), record(*second, seed=4))
    (row,) = table.rows
    means = [statistics.fmean(pair) for pair in zip(first, second, strict=True)]
    low, high = stats.t.interval(0.95, 2, loc=statistics.fmean(means), scale=stats.sem(means))
    cell = row.cells["omni5w1s"]
    assert cell.mean == pytest.approx(statistics.fmean(means))
    assert cell.ci95 == pytest.approx((high - low) / 2)
    spread = statistics.stdev([statistics.fmean(first), statistics.fmean(second)])
    assert cell.spread == f"sd {100 * spread:.2f}"
    assert row.attributes["seeds"] == "0,4"
    assert wide(record(*first)).rows[0].cells["omni5w1s"].spread == ""  # one seed has none
    assert "(sd 2.36)" in to_markdown(table)
    assert any("task by task" in note and "sd is the standard deviation (ddof 1)" in note for note in table.notes)


def test_caption_says_what_the_interval_is() -> None:
    note = "± is the 95 % Student-t half-width over 4 test tasks (ddof 1), not over seeds."
    table = wide(record())
    assert f"- {note}\n" in to_markdown(table)
    assert note.replace("±", r"$\pm$").replace("%", r"\%") in to_latex(table)
    assert note in terminal(table)
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


def test_configurations_of_two_methods_are_distinguished_in_notes() -> None:
    table = wide(record(settings={"steps": 5}), record(method="beta", tasks_per_batch=16))
    assert [row.label for row in table.rows] == ["alpha [1]", "beta [2]"]
    assert table.notes[-4:-2] == ("[1] steps 5; tasks per batch 4.", "[2] tasks per batch 16.")


def test_budgets_of_several_benches_share_a_row_and_are_listed() -> None:
    table = wide(record(), record(bench="mini5w5s", iterations=500, seed=1))
    (row,) = table.rows
    assert row.attributes["budget"] == "quick, 500–1500 it"  # noqa: RUF001
    note = "[1] iterations 1500 (omni5w1s), 500 (mini5w5s); seeds 0 (omni5w1s), 1 (mini5w5s)."
    for text in (to_markdown(table), to_latex(table), terminal(table)):
        assert note in text
        assert "alpha [1]" in text


def test_common_settings_and_data_are_stated() -> None:
    notes = wide(record(options={"split": "characters"}), record(bench="mini5w5s", source="procedural")).notes
    (common,) = (note for note in notes if note.startswith("Settings of all our rows: "))
    assert {"backbone conv4", "tasks per batch 4"} <= set(common.removesuffix(".").partition(": ")[2].split(", "))
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


def test_the_long_form_tells_the_condition_with_the_metric() -> None:
    scores = (
        make_scores(),
        make_scores(condition={"steps": 10}),
        make_scores(condition={"b": "x", "a": 0.5}, model="last"),
    )
    frame = long_form([record(scores=scores)], [])
    assert ",".join(frame.columns) == LONG
    assert frame["metric"].tolist() == ["accuracy", "accuracy[steps=10]", "accuracy_last[a=0.5,b=x]"]


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


def test_bold_is_the_best_and_those_that_overlap() -> None:
    def three(direction: str) -> WideTable:
        spread = {"far": (0.20, 0.21, 0.22), "near": (0.50, 0.52, 0.54), "next": (0.52, 0.54, 0.56)}
        scores = {name: (make_scores(values, better=direction),) for name, values in spread.items()}
        return wide(*(record(method=name, scores=s) for name, s in scores.items()))

    assert bold(three("higher")) == ["near", "next"]
    assert bold(three("lower")) == ["far"]


def test_intervals_that_touch_do_not_overlap_but_ties_are_both_best() -> None:
    assert bold(wide(record(0.5, 0.5), record(0.5, 0.5, method="beta"), record(0.4, 0.4, method="gamma"))) == [
        "alpha",
        "beta",
    ]


def test_bold_compares_sources_separately_and_not_with_the_paper() -> None:
    records = [record(0.1, 0.1), record(0.2, 0.2, method="beta")]
    stand_in = [record(0.8, 0.8, source="procedural"), record(0.9, 0.9, method="beta", source="procedural")]
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
        "| method | norm | inductive | queries | budget | seeds | tasks | source | omni5w1s | zoo5w1s |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | ---: | ---: |\n"
        "| alpha | running | yes | 15 | quick, 1500 it | 0 | 2 | real | 60.00 ± 127.06 |  |\n"
        "| beta | running | yes | 15 | quick, 10 it | 0 | 2 | real |  | 95.00 ± 63.53 |\n"
        "| *published:* |  |  |  |  |  |  |  |  |  |\n"
        "| Siamese Nets |  |  |  |  |  |  | published | 97.3 |  |\n"
    )
    assert "| **99.53 ± 0.26** |" in text
    assert "| Versa [1] |" in text
    assert "[1] transductive batch norm" in text
    assert "[2] inductive" in text


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
    assert "& procedural &" in to_latex(table)
    everywhere = wide(record(source="procedural"))
    assert "& procedural &" in to_latex(everywhere)  # not moved to the caption
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
    assert r"rate \%" in text  # names read without their underscores
    assert body.isascii()
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    spec = re.search(r"\\begin\{tabular\}\{([lr]+)\}", body)
    assert spec
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(spec[1]) - 1}
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert r"\textbf{99.70 $\pm$ 0.20}" in text


def test_latex_escapes_every_special_character() -> None:
    assert _latex(r"\{}%_&#$~^<>±") == (r"\textbackslash{}\{\}\%\_\&\#\$\textasciitilde{}\textasciicircum{}$<$$>$$\pm$")


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
    assert "norm running, inductive yes, queries 15, budget quick, 1500 it, device cpu" in text
    assert r"\caption{accuracy (\%, higher is better; model: best on validation). All our rows: norm" in to_latex(
        wide(record())
    )


# ---------------------------------------------------------------------------------------------- paired differences

A, B = (0.9, 0.8, 1.0, 0.7), (0.7, 0.5, 0.9, 0.4)


def of(method: str, *per_task: float, **changes: Any) -> Record:
    return record(*per_task, method=method, **changes)


def test_a_paired_difference_is_that_of_scipy_next_to_the_unpaired() -> None:
    (found,) = method_differences([of("beta", *B), of("alpha", *A)])
    assert (found.method, found.against, found.metric, found.verdict) == ("alpha", "beta", "accuracy", "better")
    low, high = stats.ttest_rel(A, B).confidence_interval(0.95)
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high))
    halves = [stats.t.ppf(0.975, 3) * stats.sem(scores) for scores in (A, B)]
    assert found.unpaired_ci95 == pytest.approx((halves[0] ** 2 + halves[1] ** 2) ** 0.5)
    assert not found.differs


def test_the_paired_table_row_by_row() -> None:
    (table,) = paired_tables(method_differences([of("alpha", *A), of("beta", *B)]))
    assert to_markdown(table).startswith(
        "**accuracy, paired differences (percentage points, higher is better; model: best on validation)**\n"
        "\n"
        "| methods | bench | norm | inductive | queries | budget | seeds | tasks | source "
        "| difference | unpaired ± | verdict |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | ---: | ---: | ---: |\n"
        "| alpha minus beta | omni5w1s | running | yes | 15 | quick, 1500 it | 0 | 4 | real "
        "| +22.50 ± 15.23 | 40.83 | better |\n"
    )
    assert "Comparisons of one metric: 1. Intervals and verdicts are not corrected" in terminal(table, 200)
    assert r"unpaired $\pm$ & verdict" in to_latex(table)


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
    assert {c.verdict for c in against if (c.metric, c.method) == ("nll", "alpha")} == {"worse"}
    first, second = paired_tables(against)
    assert (first.name, second.name, len(second.rows)) == ("paired_accuracy", "paired_nll", 4)


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
    assert [row.label for row in table.rows] == ["alpha minus beta [1]", "alpha minus gamma", "beta minus gamma [2]"]
    assert table.notes[-2:] == (
        "[1] measured differently: device cpu (alpha), cuda (beta); iterations 1500 (alpha), 100 (beta).",
        "[2] measured differently: device cuda (beta), cpu (gamma); iterations 100 (beta), 1500 (gamma).",
    )
    assert table.rows[0].attributes["budget"] == "quick, 100–1500 it"  # noqa: RUF001


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
    assert [c.verdict for c in found] == ["better", "unclear", "better"]


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


def test_rows_on_data_of_two_kinds_say_which() -> None:
    records = [
        of(m, *x, options={"split": split}, key=split + m)
        for split in ("random", "vinyals")
        for m, x in (("a", A), ("b", B))
    ]
    assert [c.attributes["settings"] for c in method_differences(records)] == ["split random", "split vinyals"]


def test_seeds_that_both_have_are_averaged_task_by_task_first() -> None:
    c = (0.1, 0.9, 0.2, 0.3)
    records = [
        of("alpha", *A),
        of("alpha", *c, seed=1),
        of("alpha", *c, seed=2),
        of("beta", *B),
        of("beta", *A, seed=1),
    ]
    (found,) = method_differences(records)
    x = [statistics.fmean(pair) for pair in zip(A, c, strict=True)]
    y = [statistics.fmean(pair) for pair in zip(B, A, strict=True)]
    low, high = stats.ttest_rel(x, y).confidence_interval(0.95)
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high))
    assert found.attributes["seeds"] == "0,1"
    assert found.differs == "seeds 0,1,2 (alpha), 0,1 (beta)"
    (table,) = paired_tables([found])
    assert any("averaged task by task over the seeds that both have" in note for note in table.notes)


def test_methods_without_a_seed_in_common_are_shown_without_a_difference() -> None:
    (found,) = method_differences([of("alpha", *A), of("beta", *B, seed=1)])
    (table,) = paired_tables([found])
    assert [cell.text for cell in table.rows[0].cells.values()] == ["n/a ± n/a", "n/a", "unclear"]
    assert table.rows[0].attributes["seeds"] == "none in common"
    assert ",none in common,4,real," in paired_csv([found])
    assert paired_csv([found]).endswith(',"seeds 0 (alpha), 1 (beta)",,,,unclear,fraction\n')


def test_stand_ins_and_single_tasks_are_marked_in_the_paired_table() -> None:
    (table,) = paired_tables(method_differences([of(m, 0.5, source="procedural") for m in ("alpha", "beta")]))
    assert table.rows[0].label == "alpha minus beta (stand-in)"
    assert table.rows[0].cells["difference"].text == "0.00 ± n/a"
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
    assert table.notes[-1] == "[1] iterations 1500 (alpha), 100 (beta)."
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
    assert table.notes[-1] == "[1] seeds 0,1 (alpha (steps 1) together), 0 (alpha (steps 1) alone)."


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
        drawn = text.partition("All our rows")[0]
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
    assert [[row.label for row in t.rows] for t in separate] == [["alpha [1]", "beta [2]"], ["beta [1]", "gamma [2]"]]
    joint = wide_tables(records, [], {})
    assert [[row.label for row in t.rows] for t in joint] == [["alpha [1]", "beta [2]"], ["beta [2]", "gamma [3]"]]
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
    assert written == {"long.csv", *(f"{name}.{form}" for name in names for form in ("md", "tex"))}
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
    (table,) = paired_tables(found)
    options = ("--paired", "--methods", "alpha,gamma", "--bench", "omni5w1s")
    assert "alpha minus gamma" in call(folder, *options).output
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

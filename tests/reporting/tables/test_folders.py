"""Two results folders side by side, against scipy's tests and numbers by hand."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from builders import invoke, make_record, make_scores
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import difference
from mlpip_bench.reporting.tables.folders import Change, changes, folder_tables
from mlpip_bench.utils.errors import UserError

LOW, HIGH = (0.50, 0.61, 0.70, 0.55, 0.40), (0.60, 0.70, 0.85, 0.60, 0.52)
BOTH = (Path("before"), Path("after"))


def record(*per_task: float, metric: str = "accuracy", **changes: Any) -> Record:
    """A record of one score; what it is of may be changed by name."""
    ours = {name: changes.pop(name) for name in ("condition", "queries", "model") if name in changes}
    return make_record(make_scores(per_task or LOW, metric, **ours), protocol=metric, **({"iterations": 100} | changes))


def only(a: Sequence[Record], b: Sequence[Record]) -> Change:
    (change,) = changes(a, b)
    return change


# ------------------------------------------------------------------------------------------------------ statistics


def test_on_the_same_tasks_differences_are_paired() -> None:
    change = only([record(*LOW)], [record(*HIGH)])
    expected = stats.ttest_rel(HIGH, LOW)
    low, high = expected.confidence_interval(0.95)
    assert change.how == "paired"
    assert (change.mean, change.p) == pytest.approx((np.mean(HIGH) - np.mean(LOW), expected.pvalue))
    assert (change.mean - change.ci95, change.mean + change.ci95) == pytest.approx((low, high))
    assert change.verdict == "better"
    assert only([record(*LOW, metric="nll")], [record(*HIGH, metric="nll")]).verdict == "worse"
    assert only([record(*LOW, metric="other")], [record(*HIGH, metric="other")]).verdict == "differs"


@pytest.mark.parametrize(
    ("other", "changed"), [(HIGH, {"queries": 1}), ((0.9, 0.2, 0.7, 0.8, 0.81, 0.6, 0.9, 0.99), {})]
)
def test_on_other_queries_or_another_number_of_tasks_they_are_welchs(
    other: Sequence[float], changed: dict[str, int]
) -> None:
    change = only([record(*LOW)], [record(*other, **changed)])
    expected = stats.ttest_ind(other, LOW, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert change.how == "unpaired"
    assert (change.mean, change.p) == pytest.approx((np.mean(other) - np.mean(LOW), expected.pvalue))
    assert (change.mean - change.ci95, change.mean + change.ci95) == pytest.approx((low, high))


def test_seeds_are_averaged_task_by_task_first() -> None:
    change = only([record(*LOW)], [record(*HIGH, seed=1), record(*LOW, seed=2)])
    expected = stats.ttest_rel(np.mean([HIGH, LOW], axis=0), LOW)
    assert (change.mean, change.p) == pytest.approx((np.mean(HIGH) / 2 - np.mean(LOW) / 2, expected.pvalue))
    assert change.differs == ["seeds 0 (A), 1,2 (B)"]


def test_the_correction_is_for_all_differences_of_the_folders() -> None:
    before = [record(*LOW, method=m, metric=metric) for m in ("alpha", "beta") for metric in ("accuracy", "nll")]
    after = [record(*HIGH, method="alpha"), record(*HIGH, method="beta", metric="nll")]
    after += [record(*LOW[::-1], method="beta"), record(*LOW[::-1], method="alpha", metric="nll")]
    found = changes(before, after)
    real, reversed_ = stats.ttest_rel(HIGH, LOW).pvalue, stats.ttest_rel(LOW[::-1], LOW).pvalue
    assert reversed_ > 0.5
    assert sorted(c.p_holm for c in found) == pytest.approx([4 * real, 4 * real, 1, 1])


def test_what_machines_round_differently_is_no_difference() -> None:
    rounded = [score * (1 + 1e-7) for score in LOW]
    assert stats.ttest_rel(rounded, LOW).pvalue < 0.001
    change = only([record(*LOW)], [record(*rounded)])
    assert (change.mean, change.p, change.verdict) == (0.0, 1.0, "undecided")
    assert only([record(*LOW)], [record(*(score * (1 + 1e-5) for score in LOW))]).verdict == "better"


def test_one_task_or_no_spread_is_no_crash() -> None:
    single = only([record(0.5)], [record(0.6)])
    assert (single.verdict, single.ci95) == ("undecided", math.inf)
    assert math.isnan(single.p_holm)
    steady = only([record(0.25, 0.5)], [record(0.5, 0.75)])
    assert (steady.mean, steady.verdict) == (0.25, "undecided")  # two tasks with one difference


def test_one_seed_shows_nothing_that_is_called_real(tmp_path: Path) -> None:
    """Seed 0 against seed 1 of the same code, as far from each other as trainings are."""
    done = compare(tmp_path, [record(*LOW)], [record(*HIGH, seed=1)])
    text = " ".join(done.stdout.split())
    assert "real" not in text.replace("source real", "")
    assert "1 of 1 differences set two trained models off from each other" in text
    assert "another training of the same method may differ as much" in text
    assert "about these two trained models, not about the methods" in text


def test_several_seeds_are_paired_over_trainings_and_tasks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(level, 0.02, (3, 20)) for level in (0.4, 0.6))
    before, after = ([record(*row, seed=seed) for seed, row in enumerate(side)] for side in (a, b))
    change = only(before, after)
    expected = difference(b.tolist(), a.tolist(), (0, 1))
    assert (change.mean, change.ci95, change.p) == (expected.mean, expected.ci95, expected.p)
    done = compare(tmp_path, before, after)
    assert "1 of 1 differences over several trainings are real, after Holm's correction." in " ".join(
        done.stdout.split()
    )


# -------------------------------------------------------------------------------------------------- what is matched


@pytest.mark.parametrize("changed", [{"source": "procedural"}, {"fingerprint": "e" * 20}])
def test_unlike_data_are_not_compared(changed: dict[str, str]) -> None:
    change = only([record(*LOW)], [record(*HIGH, **changed)])
    assert (change.how, change.verdict) == ("data differ", "data differ")
    assert math.isnan(change.mean)
    assert "data differ: not compared" in " ".join(folder_tables([change], *BOTH)[0].notes)


def test_one_configuration_in_each_is_matched_and_what_differs_is_said() -> None:
    change = only([record(*LOW)], [record(*HIGH, norm="tasknorm", iterations=200)])
    assert change.differs == ["iterations 100 (A), 200 (B)", "norm metabn (A), tasknorm (B)"]


def test_configurations_that_vary_in_a_folder_are_matched_by_what_varies() -> None:
    before = [record(*LOW, norm="metabn"), record(*HIGH, norm="tasknorm")]
    found = changes(before, [record(*LOW, norm="tasknorm", iterations=7)])
    assert [(c.first.facts["norm"], c.how) for c in found] == [("metabn", "only in A"), ("tasknorm", "paired")]
    assert found[1].mean == pytest.approx(np.mean(LOW) - np.mean(HIGH))


def test_conditions_and_benches_are_separate_and_last_models_left_out() -> None:
    before = [record(*LOW, condition={"steps": 1}), record(*HIGH, model="last")]
    after = [record(*HIGH, condition={"steps": 1}), record(*LOW, condition={"steps": 2}), record(bench="omni20w1s")]
    found = changes(before, after)
    assert {c.first.column: c.how for c in found} == {
        "omni5w1s, steps 1": "paired", "omni5w1s, steps 2": "only in B", "omni20w1s": "only in B",
    }  # fmt: skip


def test_a_budget_that_goes_with_the_data_set_matches_nothing_separately() -> None:
    before = [record(*LOW), record(*LOW, source="procedural")]
    after = [record(*HIGH, iterations=200), record(*LOW, source="procedural", iterations=300)]
    found = changes(before, after)
    assert [(c.how, c.mark, *c.differs) for c in found] == [
        ("paired", "", "iterations 100 (A), 200 (B)"),
        ("paired", " (stand-in)", "iterations 100 (A), 300 (B)"),
    ]


def test_nothing_in_common_is_an_error_that_says_what_there_is() -> None:
    with pytest.raises(
        UserError, match=r"only in A: accuracy on omni5w1s: alpha; only in B: accuracy on .* beta\. Run"
    ):
        changes([record()], [record(method="beta")])
    with pytest.raises(UserError, match=r"alpha_00, .* \.\.\.; only in B: accuracy on .* beta\. Run") as raised:
        changes([record(method=f"alpha_{number:02d}") for number in range(100)], [record(method="beta")])
    assert len(str(raised.value)) < 900


# ------------------------------------------------------------------------------------------------------ the command


def compare(tmp_path: Path, before: Sequence[Record], after: Sequence[Record], *options: str):
    for name, records in (("before", before), ("after", after)):
        for each in records:
            store.save(each, tmp_path / name)
    return invoke("compare", tmp_path / "before", tmp_path / "after", *options, COLUMNS="120")


def test_identical_folders_have_no_real_difference(tmp_path: Path) -> None:
    records = [record(*LOW), record(*HIGH, metric="nll", environment={"threads": 1})]
    done = compare(tmp_path, records, records)
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "0 of 2 differences set two trained models off" in text
    assert "are the same." in text


def test_markdown_shows_each_number_the_count_and_what_differs(tmp_path: Path) -> None:
    before = [record(*LOW, environment={"torch": "1"}), record(*LOW, method="beta")]
    after = [record(*HIGH, environment={"torch": "2"}), record(*HIGH, method="gamma")]
    done = compare(tmp_path, before, after, "--format", "markdown")
    assert done.exit_code == 0, done.output
    row = next(line for line in done.stdout.splitlines() if line.startswith("| alpha |"))
    p = stats.ttest_rel(HIGH, LOW).pvalue
    half = [100 * stats.sem(x) * stats.t.ppf(0.975, 4) for x in (LOW, HIGH, np.subtract(HIGH, LOW))]
    assert row.endswith(
        f"| 55.20 ± {half[0]:.2f} | 65.40 ± {half[1]:.2f} | **+10.20 ± {half[2]:.2f}** | {p:.2g} | better |"
    )
    assert "1 of 1 differences set two trained models off" in done.stdout
    assert "Only in A: accuracy on omni5w1s: beta." in done.stdout
    assert "Only in B: accuracy on omni5w1s: gamma." in done.stdout
    assert "| torch | 1 | 2 |" in done.stdout


def test_csv_has_all_in_full(tmp_path: Path) -> None:
    before, after = [record(*LOW), record(*LOW, method="beta")], [record(*HIGH, norm="running")]
    done = compare(tmp_path, before, after, "--format", "csv")
    frame = pd.read_csv(io.StringIO(done.stdout)).set_index("method")
    alpha = frame.loc["alpha"]
    assert (alpha["a"], alpha["b"]) == pytest.approx((np.mean(LOW), np.mean(HIGH)))
    assert (alpha["p"], alpha["p_holm"]) == pytest.approx([stats.ttest_rel(HIGH, LOW).pvalue] * 2)
    assert (alpha["norm"], alpha["differs"]) == ("metabn/running", "norm metabn (A), running (B)")
    assert (frame.loc["beta", "how"], frame.loc["beta"].isna()["difference"]) == ("only in A", True)


def test_latex_is_one_table_a_metric(tmp_path: Path) -> None:
    done = compare(tmp_path, [record(*LOW)], [record(*HIGH, source="procedural")], "--format", "latex")
    assert done.stdout.count(r"\begin{table}") == 2
    assert r"\label{tab:compared_accuracy}" in done.stdout
    assert "(stand-in)" in done.stdout


def test_a_folder_without_records_is_one_message_and_status_2(tmp_path: Path) -> None:
    done = compare(tmp_path, [record()], [])
    assert done.exit_code == 2
    assert f"no records below {tmp_path / 'after' / 'records'}" in " ".join(done.stderr.split())

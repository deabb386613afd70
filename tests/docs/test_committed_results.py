"""What the repository says of its own runs follows from the records that are committed with it."""

import itertools
import re
from collections.abc import Callable

import pandas as pd
import pytest
import scipy
import yaml
from scipy import stats

from builders import REPOSITORY
from mlpip_bench.execution import restoring
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION
from mlpip_bench.execution.option_files import read_options
from mlpip_bench.execution.options import merged, run_config
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.execution.status import Standing, survey
from mlpip_bench.records import store
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.reporting.tables.writing import write_tables

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PINNED = f"scipy=={scipy.__version__}" in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
FINDINGS = (REPOSITORY / "docs" / "findings.md").read_text(encoding="utf-8")
EXPERIMENTS = sorted(path.parent.name for path in (REPOSITORY / "results").glob("*/experiment.yaml"))


def shown(scores: Scores) -> str:
    mean, half_width = mean_ci95(scores.per_task)
    if scores.unit == "fraction":
        return f"{100 * mean:.2f} ± {100 * half_width:.2f}"
    return f"{mean:.4f} ± {half_width:.4f}"


def bench_and_method(record: Record) -> tuple[str, ...]:
    return record.bench, record.method


def measured(
    folder: str, row: Callable[[Record], tuple[str, ...]] = bench_and_method
) -> dict[tuple[str, ...], list[str]]:
    """Accuracy, NLL and ECE of the best models as the tables show them, by bench and method or by another row."""
    scores: dict[tuple[str, ...], dict[str, str]] = {}
    for record in store.load_all(REPOSITORY / folder):
        assert record.data["source"] in ("real", "synthetic")
        for score in record.scores:
            if score.model == "best" and not score.condition:
                scores.setdefault(row(record), {})[score.metric] = shown(score)
    metrics = ("accuracy", "nll", "ece")
    return {cell: [found[m] for m in metrics] for cell, found in scores.items() if set(metrics) <= set(found)}


def about(name: str) -> dict[str, object]:
    """What an experiment says of itself."""
    found: dict[str, object] = yaml.safe_load((REPOSITORY / "results" / name / "experiment.yaml").read_text())
    return found


UNDER_WAY = [name for name in EXPERIMENTS if "status" in about(name)]
PREPARED = ("furniture", "icons", "kanji")
"""On data that a user makes with `data prepare`, and that are not at hand here."""
CURRENT = [name for name in EXPERIMENTS if not {"frozen", "status"} & about(name).keys() and name not in PREPARED]
WITH_RECORDS = sorted(path.parent.name for path in (REPOSITORY / "results").glob("*/records"))


def test_every_folder_of_records_is_an_experiment_and_holds_no_checkpoint():
    results = REPOSITORY / "results"
    assert set(EXPERIMENTS) - set(UNDER_WAY) <= set(WITH_RECORDS) <= set(EXPERIMENTS)
    assert not (results / "records").exists()
    tracked = [path for path in results.rglob("*") if path.suffix == ".pt" and "checkpoints" not in path.parts]
    assert not tracked


def test_the_page_of_results_is_made_from_the_experiments():
    code = (REPOSITORY / ".ci" / "results_page.py").read_text()
    found: dict[str, object] = {"__file__": str(REPOSITORY / ".ci" / "results_page.py"), "__name__": "results_page"}
    exec(compile(code, "results_page", "exec"), found)
    written = (REPOSITORY / "results" / "README.md").read_text(encoding="utf-8")
    assert found["page"]() == written, "write it anew: python .ci/results_page.py"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_what_it_asks_and_its_options_are_those_of_a_run(name):
    said = about(name)
    assert str(said["question"]).strip()
    assert str(said["machine"]).strip()
    assert (REPOSITORY / str(said["page"])).is_file()
    for options in read_options(REPOSITORY / "results" / name / "experiment.yaml"):
        run_config(merged(options))
    records = store.load_all(REPOSITORY / "results" / name)
    versions = {record.environment["mlpip_bench"] for record in records}
    if "frozen" in said:
        assert versions == {said["frozen"]}
    else:
        numbers = {record.environment["code"]["numbers"] for record in records}
        assert said["numbers"] == NUMBERS_VERSION, "run it again, or mark it as frozen"
        assert numbers == {NUMBERS_VERSION} or (name in UNDER_WAY and not records)


def planned(name: str, data_root) -> list[Standing]:
    """Where each trial of an experiment stands."""
    folder = REPOSITORY / "results" / name
    found = []
    for options in read_options(folder / "experiment.yaml"):
        config = run_config(merged(options, {"results": folder, "data_root": data_root, "device": "cpu"}))
        found += survey(plan_trials(config), config)
    return found


@pytest.mark.parametrize("name", CURRENT)
def test_an_experiment_of_the_current_version_is_complete(name, data_root):
    standings = planned(name, data_root)
    assert standings
    assert [s.trial.title for s in standings if not s.nothing] == []


@pytest.mark.parametrize("name", PREPARED)
def test_an_experiment_on_prepared_data_has_the_records_of_its_plan(name):
    asked = set()
    for options in read_options(REPOSITORY / "results" / name / "experiment.yaml"):
        config = run_config(merged(options))
        asked |= set(
            itertools.product(config.benches, config.methods, config.protocols, config.seeds, [str(config.data)])
        )
    records = store.load_all(REPOSITORY / "results" / name)
    assert len(records) == len(asked)
    assert {(r.bench, r.method, r.protocol, r.seed) for r in records} == {each[:4] for each in asked}
    for record in records:  # and they are of today's code, whose key of the same settings and data is theirs
        assert restoring.trial_of(record).record_key(record.protocol) == record.key


@pytest.mark.parametrize("name", UNDER_WAY)
def test_records_of_an_experiment_that_is_under_way_are_of_its_plan(name, data_root):
    assert about(name)["status"] == "under way"
    standings = planned(name, data_root)
    assert any(not s.nothing for s in standings), "it is complete: say so, by leaving its status out"
    keys = {s.trial.record_key(protocol) for s in standings for protocol in ("accuracy", "nll", "calibration")}
    assert {record.key for record in store.load_all(REPOSITORY / "results" / name)} <= keys


@pytest.mark.parametrize("name", WITH_RECORDS)
def test_the_committed_tables_are_those_of_the_committed_records(name, tmp_path):
    folder = REPOSITORY / "results" / name
    committed = folder / "tables"
    written = write_tables(store.load_all(folder), tmp_path)
    assert {p.name for p in written} == {p.name for p in committed.iterdir()}
    for path in written:
        other = committed / path.name
        if path.suffix == ".csv" and not PINNED:  # floats in full differ in the last digits between versions of scipy
            pd.testing.assert_frame_equal(pd.read_csv(path), pd.read_csv(other), check_exact=False, rtol=1e-8)
        else:
            assert path.read_bytes() == other.read_bytes(), f"regenerate with: table --results {folder}"


def test_the_readme_quotes_the_records():
    score = r"\| (\d+\.\d+ ± \S+) "
    rows = re.findall(rf"^\| `(\w+)`(?:, (the bound))? {score * 3}\|", README, re.M)

    def row(record: Record) -> tuple[str, ...]:
        return record.method, "the bound" if record.config["settings"].get("beta") == 1 else ""

    assert {(method, bound): values for method, bound, *values in rows} == measured("results/omniglot", row)


def test_the_findings_quote_the_records():
    rows = re.findall(
        r"^\| `((?:omni|tiny)\w+)` \| `(\w+)` \| (\d+\.\d+ ± \S+) \| (\d+\.\d+ ± \S+) \| (\d+\.\d+ ± \S+) \|",
        FINDINGS,
        re.M,
    )
    assert {(bench, method): list(values) for bench, method, *values in rows} == measured("results/quick_v01")


def test_the_findings_quote_the_paired_differences():
    best = {
        (r.bench, s.metric, r.method): s.per_task
        for r in store.load_all(REPOSITORY / "results/quick_v01")
        for s in r.scores
        if s.model == "best" and not s.condition
    }
    pairs = (("versa", "amortized_vi"), ("versa", "nonamortized_vi"), ("nonamortized_vi", "amortized_vi"))
    rows = re.findall(r"^\| `(\w+)` \| (accuracy|nll) \| (.*) \| (.*) \| (.*) \|$", FINDINGS, re.M)
    assert len(rows) == 8
    for bench, metric, *cells in rows:
        factor, digits = (100, 2) if metric == "accuracy" else (1, 4)
        for cell, (first, second) in zip(cells, pairs, strict=True):
            interval = stats.ttest_rel(best[bench, metric, first], best[bench, metric, second]).confidence_interval()
            mean, half_width = (interval.low + interval.high) / 2, (interval.high - interval.low) / 2
            assert cell == f"{factor * mean:+.{digits}f} ± {factor * half_width:.{digits}f}"


def test_the_findings_quote_the_ablations():
    rows = re.findall(
        r"^\| `(\w+)` \| (support\S*) \| (\S+) \| (\S+ ± \S+) \| (\S+ ± \S+) \| (\S+ ± \S+) \|$", FINDINGS, re.M
    )
    expected: dict[tuple[str, ...], dict[str, str]] = {}
    for record in store.load_all(REPOSITORY / "results/vi_ablations"):
        settings = record.config["settings"]
        cell = expected.setdefault((record.method, settings["observed"], str(settings["beta"])), {})
        cell |= {s.metric: shown(s) for s in record.scores if s.model == "best"}
    assert {tuple(row[:3]): list(row[3:]) for row in rows} == {
        key: [values[metric] for metric in ("accuracy", "nll", "ece")] for key, values in expected.items()
    }


def test_the_findings_quote_how_validation_chose_the_settings_of_vi():
    records = [r for r in store.load_all(REPOSITORY / "results/vi_choice") if r.protocol == "nll"]
    (tuned,) = [r for r in records if r.method == "amortized_vi" and r.config.get("tuned")]
    draws = tuned.training["tuning"]["tried"]
    again = {
        tuple(str(r.config["settings"][name]) for name in ("observed", "beta", "anneal")): r.training["history"]
        for r in records
        if r.config["iterations"] == 2400
    }
    assert len(again) == 3
    rows = re.findall(
        r"^\| (\d+)(?:, .*?)? \| (\S+) \| (\S+) \| ([\d,]+) \|.*\| (\d\.\d{3}) \| (.*) \|$", FINDINGS, re.M
    )
    assert [int(number) for number, *_ in rows] == [3, 9, 13, 6, 0]
    for number, observed, beta, anneal, score, later in rows:
        assert f"{draws[int(number)]['score']:.3f}" == score
        if history := again.pop((observed, str(beta), anneal.replace(",", "")), None):
            assert f"{min(entry['nll'] for entry in history):.3f}" == later
    assert not again


def test_the_readme_quotes_the_validation_accuracies_that_chose_the_default_norm():
    header = re.search(r"^\| validation accuracy, % \| (.*) \| mean \|$", README, re.M)
    methods = header[1].split(" | ")
    records = {(r.config["norm"], r.method): r for r in store.load_all(REPOSITORY / "results/norm_choice")}
    for norm in ("metabn", "tasknorm"):
        shown = re.search(rf"^\| `{norm}` \| (.*) \|$", README, re.M)[1].split(" | ")
        final = [records[norm, method].training["history"][-1]["accuracy"] * 100 for method in methods]
        assert shown == [f"{a:.1f}" for a in (*final, sum(final) / len(final))]

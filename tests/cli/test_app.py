"""The command line as a user drives it; small budgets on the stand-in."""

import csv
import io
import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from builders import budget, invoke
from mlpip_bench import __version__, load_bench, registry
from mlpip_bench.records import store


def run(folder: Path, *arguments: object, methods: str = "protonets", bench: str = "omni5w1s"):
    what = ["--methods", methods, "--bench", bench, "--source", "procedural", "--results", folder]
    return invoke("run", *what, *budget(), *arguments)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    result = run(folder, methods="versa,maml,protonets")
    assert result.exit_code == 0, result.output
    return folder


def test_the_main_job_writes_records_and_tables_and_prints_them(finished):
    records = store.load_all(finished)
    assert {(r.method, r.protocol) for r in records} == {
        (m, p) for m in ("versa", "maml", "protonets") for p in ("accuracy", "nll")
    }
    for record in records:
        assert record.data["source"] == "procedural"
        assert record.data["test_classes"] == len(
            load_bench(record.bench, source="procedural").data.splits["test"].class_names
        )
        assert record.inductive
        best, last = record.scores
        assert (best.model, last.model, len(best.per_task)) == ("best", "last", 4)
        assert best.per_task == last.per_task  # the only validation is after the last iteration
        assert record.training["tasks_seen"] == 4
        assert record.config["settings"] is not None
        assert record.environment["torch"]
    names = ("accuracy", "accuracy_last", "nll", "nll_last", "paired")
    wide = {f"{name}.{form}" for name in names for form in ("md", "tex")}
    assert {p.name for p in (finished / "tables").iterdir()} == wide | {"long.csv", "published.csv"}


def test_a_run_and_table_print_the_main_tables_and_who_leads(finished):
    for shown in (run(finished).output, invoke("table", "--results", finished).output):
        assert "accuracy (%" in shown
        assert "nll (nats" in shown
        assert "_last" not in shown
        assert "omni5w1s, accuracy (higher is better): " in shown


def test_stand_in_results_are_marked_wherever_they_show(finished):
    shown = invoke("table", "--results", finished).output
    assert "stand-in" in shown
    for name in ("accuracy.md", "accuracy.tex", "nll.md", "nll.tex"):
        assert "stand-in" in (finished / "tables" / name).read_text()
    assert "stand-in data" in run(finished).output


def test_a_finished_command_says_that_nothing_is_left(finished):
    before = {p: p.stat().st_mtime_ns for p in (finished / "records").rglob("*.json")}
    result = run(finished, methods="versa,maml,protonets")
    assert result.exit_code == 0
    assert result.output.count("nothing to do for") == 3
    assert "its records are there" in result.output
    assert before == {p: p.stat().st_mtime_ns for p in (finished / "records").rglob("*.json")}


def test_the_long_form_has_its_columns_and_a_row_a_value(finished):
    text = invoke("table", "--format", "csv", "--results", finished).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    ours = [row for row in rows if row["source"] == "procedural"]
    assert {(r["method"], r["metric"], r["model"]) for r in ours} == {
        (m, p, model) for m in ("versa", "maml", "protonets") for p in ("accuracy", "nll") for model in ("best", "last")
    }
    assert all(0 <= float(r["mean"]) <= 1 for r in ours if r["metric"] == "accuracy")
    assert not any(row["source"] == "published" for row in rows)
    assert len((finished / "tables" / "published.csv").read_text().splitlines()) > 10


def test_methods_are_tested_on_the_same_tasks(finished):
    # The tasks themselves are pinned in test_tasks; here: what was recorded agrees with them.
    records = store.load_all(finished)
    assert len({json.dumps(r.data, sort_keys=True) for r in records}) == 1
    assert len({(r.config["test_tasks"], r.config["queries"]) for r in records}) == 1


def test_changing_only_the_test_reuses_the_trained_model(finished):
    checkpoints = {p: p.stat().st_mtime_ns for p in (finished / "checkpoints").rglob("*.pt")}
    result = run(finished, "--queries", "1")
    assert result.exit_code == 0
    assert checkpoints == {p: p.stat().st_mtime_ns for p in (finished / "checkpoints").rglob("*.pt")}
    assert {r.scores[0].queries for r in store.load_all(finished) if r.method == "protonets"} == {1, 15}


def test_overwrite_always_runs_again_and_gives_the_same_scores(tmp_path):
    run(tmp_path)
    first = store.load_all(tmp_path)
    path = tmp_path / "records" / first[0].filename
    before = path.stat().st_mtime_ns
    assert run(tmp_path, "--overwrite", "always").exit_code == 0
    assert path.stat().st_mtime_ns != before
    assert [r.scores for r in store.load_all(tmp_path)] == [r.scores for r in first]


def test_it_works_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(Path("some folder")).exit_code == 0
    assert (tmp_path / "some folder" / "tables" / "accuracy.md").exists()


def test_lists_show_what_is_installed():
    for what, names in (
        ("methods", registry.method_names()),
        ("methods --check", [*registry.method_names(), "Gordon et al. 2019"]),
        ("backbones", ["conv4", "identity", "mlp"]),
        ("benches", ["omni5w1s", "mini5w5s", "tiny5w1s", "toy10", "context2", "views5s"]),
        ("protocols --check", ["accuracy", "nll", "calibration", "ece", "brier", "steps", "one_at_a_time"]),
        ("data", ["omni", "tiny", "mini", "views", "context"]),
    ):
        output = invoke("list", *what.split()).output
        assert all(name in output for name in names), output
    assert invoke("--version").output.strip() == __version__


def test_real_data_is_verified(data_root):
    result = invoke("data", "verify", "--data-root", data_root, "--data", "context")  # test_sources.py has all
    assert result.exit_code == 0
    assert "fingerprint" in result.output


def test_real_omniglot_runs_and_is_marked_real(data_root, tmp_path):
    arguments = ["--methods", "protonets", "--bench", "omni5w1s,tiny5w5s", "--data-root", data_root, *budget()]
    result = invoke("run", *arguments, "--results", tmp_path)
    assert result.exit_code == 0, result.output
    assert {r.data["source"] for r in store.load_all(tmp_path)} == {"real"}
    assert "stand-in" not in result.output


def test_auto_falls_back_to_the_stand_in_with_a_warning(tmp_path):
    arguments = ["run", "--methods", "protonets", "--bench", "omni5w1s", "--results", tmp_path, *budget()]
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "stand-in" in result.output
    assert "procedural" in result.output


def test_home_is_home_in_results(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(Path("~/mine")).exit_code == 0
    assert (tmp_path / "mine" / "records").is_dir()


def test_a_name_that_two_packages_claim_stops_only_runs_that_use_it(tmp_path, monkeypatch):
    register(monkeypatch, "maml", "another_package:MAML")
    result = run(tmp_path, methods="maml")
    assert result.exit_code == 2
    assert "another_package:MAML" in result.output
    assert "methods.maml:MAML" in result.output
    assert run(tmp_path, methods="protonets").exit_code == 0


def test_nothing_is_cut_in_a_narrow_terminal(finished, data_root):
    narrow = {"COLUMNS": "40"}
    for arguments in (
        ["table", "--results", finished],
        ["list", "methods"],
        ["list", "methods", "--check"],
        ["list", "data", "--data-root", data_root],
    ):
        assert "…" not in invoke(*arguments, **narrow).output


def test_no_results_to_show(tmp_path):
    result = invoke("table", "--results", tmp_path)
    assert result.exit_code == 2
    assert "run" in result.output


def test_a_loss_that_is_not_finite_stops_its_trial_only(tmp_path, monkeypatch):
    plugin = registry.method("versa")
    honest = plugin.loss
    monkeypatch.setattr(plugin, "loss", lambda self, batch: honest(self, batch) * float("nan"))
    result = run(tmp_path, methods="versa,protonets")
    assert result.exit_code == 1
    assert "failed" in result.output
    assert "is not finite at iteration 0" in result.output
    assert {r.method for r in store.load_all(tmp_path)} == {"protonets"}
    failure = json.loads(next((tmp_path / "failures").rglob("*.json")).read_text())
    assert "not finite" in failure["error"]

    never = run(tmp_path, "--overwrite", "never", methods="versa,protonets")
    assert never.exit_code == 0
    assert "failed before" in never.output
    monkeypatch.setattr(plugin, "loss", honest)
    again = run(tmp_path, methods="versa,protonets")
    assert again.exit_code == 0
    assert {r.method for r in store.load_all(tmp_path)} == {"versa", "protonets"}
    assert not list((tmp_path / "failures").rglob("*.json"))


def test_a_plugin_that_raises_fails_its_trial_only(tmp_path, monkeypatch):
    plugin = registry.method("versa")
    monkeypatch.setattr(plugin, "loss", lambda self, batch: {}["missing"])
    result = run(tmp_path, methods="versa,protonets")
    assert result.exit_code == 1
    assert "KeyError" in result.output
    assert {r.method for r in store.load_all(tmp_path)} == {"protonets"}


def register(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Install one more method, as another package would."""
    entry_points = registry.entry_points
    more = EntryPoint(name, value, "mlpip_bench.methods")
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [*entry_points(group=group), *([more] if group == more.group else [])]
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no_such_module:Thing", "cannot be imported"),
        ("pathlib:Path", "must be a subclass of Method"),
        ("mlpip_bench.inference.method:Method", "lacks amortize, loss, predictive"),
    ],
)
def test_a_broken_plugin_is_named(value, says, tmp_path, monkeypatch):
    register(monkeypatch, "broken", value)
    result = run(tmp_path, methods="protonets,broken")
    assert result.exit_code == 2
    assert "'broken'" in result.output
    assert says in result.output
    listed = invoke("list", "methods", "--check")
    assert listed.exit_code == 1
    assert "protonets" in listed.output
    assert "broken" in listed.output

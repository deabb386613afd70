"""The command line as a user drives it; small budgets on the stand-in."""

import csv
import functools
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlpip_bench import registry, results
from mlpip_bench.cli import app

TINY = ["--iterations", "4", "--test-tasks", "4", "--set", "validation_tasks=2", "--set", "tasks_per_batch=1"]
COLUMNS = "bench,method,protocol,metric,way,shot,queries,norm,preset,iterations,source,seed,device,tasks,mean,ci95,unit"


def call(*arguments: object, **environment: str):
    # A wide terminal, so that no message is wrapped in the middle of what a test looks for.
    env = {"COLUMNS": "200", "MLPIP_BENCH_DATA": "", **environment}
    return CliRunner().invoke(app, [str(a) for a in arguments], env=env, catch_exceptions=False)


def run(folder: Path, *arguments: object, methods: str = "protonets", bench: str = "omni5w1s"):
    return call(
        "run", "--methods", methods, "--bench", bench, "--source", "procedural", "--results", folder, *TINY, *arguments
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    result = run(folder, methods="versa,maml,protonets")
    assert result.exit_code == 0, result.output
    return folder


def test_the_main_job_writes_records_and_tables_and_prints_them(finished):
    records = results.load_all(finished)
    assert {(r.method, r.protocol) for r in records} == {
        (m, p) for m in ("versa", "maml", "protonets") for p in ("accuracy", "nll")
    }
    for record in records:
        assert record.data["source"] == "procedural"
        assert record.inductive
        best, last = record.scores
        assert (best.model, last.model, len(best.per_task)) == ("best", "last", 4)
        assert best.per_task == last.per_task  # the only validation is after the last iteration
        assert record.training["tasks_seen"] == 4
        assert record.config["settings"] is not None
        assert record.environment["torch"]
    names = ("accuracy", "accuracy_last", "nll", "nll_last", "paired")
    wide = {f"{name}.{form}" for name in names for form in ("md", "tex")}
    assert {p.name for p in (finished / "tables").iterdir()} == wide | {"long.csv"}


def test_a_run_prints_the_main_tables_and_table_prints_all(finished):
    shown, everything = run(finished).output, call("table", "--results", finished).output
    assert "accuracy (%" in shown
    assert "nll (nats" in shown
    assert "_last" not in shown
    assert "accuracy_last (%" in everything
    assert "nll_last (nats" in everything


def test_stand_in_results_are_marked_wherever_they_show(finished):
    shown = call("table", "--results", finished).output
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
    text = call("table", "--format", "csv", "--results", finished).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert text.splitlines()[0] == COLUMNS
    ours = [row for row in rows if row["source"] == "procedural"]
    assert {(r["method"], r["metric"]) for r in ours} == {
        (m, p) for m in ("versa", "maml", "protonets") for p in ("accuracy", "accuracy_last", "nll", "nll_last")
    }
    assert all(0 <= float(r["mean"]) <= 1 for r in ours if r["metric"] == "accuracy")
    assert sum(row["source"] == "published" for row in rows) > 10


def test_methods_are_tested_on_the_same_tasks(finished):
    # The tasks themselves are pinned in test_tasks; here: what was recorded agrees with them.
    records = results.load_all(finished)
    assert len({json.dumps(r.data, sort_keys=True) for r in records}) == 1
    assert len({(r.config["test_tasks"], r.config["queries"]) for r in records}) == 1


def test_changing_only_the_test_reuses_the_trained_model(finished):
    checkpoints = {p: p.stat().st_mtime_ns for p in (finished / "checkpoints").rglob("*.pt")}
    result = run(finished, "--queries", "1")
    assert result.exit_code == 0
    assert checkpoints == {p: p.stat().st_mtime_ns for p in (finished / "checkpoints").rglob("*.pt")}
    assert {r.scores[0].queries for r in results.load_all(finished) if r.method == "protonets"} == {1, 15}


def test_overwrite_always_runs_again_and_gives_the_same_scores(tmp_path):
    run(tmp_path)
    first = results.load_all(tmp_path)
    path = tmp_path / "records" / first[0].filename
    before = path.stat().st_mtime_ns
    assert run(tmp_path, "--overwrite", "always").exit_code == 0
    assert path.stat().st_mtime_ns != before
    assert [r.scores for r in results.load_all(tmp_path)] == [r.scores for r in first]


def test_it_works_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(Path("some folder")).exit_code == 0
    assert (tmp_path / "some folder" / "tables" / "accuracy.md").exists()


def test_lists_show_what_is_installed():
    for what, names in (
        ("methods", [*registry.method_names(), "Gordon et al. 2019"]),
        ("benches", ["omni5w1s", "mini5w5s", "tiny5w1s", "toy10", "context2", "views5s"]),
        ("protocols", ["accuracy", "nll", "calibration", "ece", "brier", "steps", "one_at_a_time"]),
        ("data", ["omni", "tiny", "mini", "views", "context"]),
    ):
        output = call("list", what).output
        assert all(name in output for name in names), output
    assert call("--version").output.strip().count(".") == 2


def test_real_data_is_verified(data_root):
    result = call("data", "verify", "--data-root", data_root)
    assert result.exit_code == 0
    assert "fingerprint" in result.output


def test_real_omniglot_runs_and_is_marked_real(data_root, tmp_path):
    arguments = ["--methods", "protonets", "--bench", "omni5w1s,tiny5w5s", "--data-root", data_root, *TINY]
    result = call("run", *arguments, "--results", tmp_path)
    assert result.exit_code == 0, result.output
    assert {r.data["source"] for r in results.load_all(tmp_path)} == {"real"}
    assert "stand-in" not in result.output


def test_auto_falls_back_to_the_stand_in_with_a_warning(tmp_path):
    arguments = ["run", "--methods", "protonets", "--bench", "omni5w1s", "--results", tmp_path, *TINY]
    result = call(*arguments)
    assert result.exit_code == 0
    assert "stand-in" in result.output
    assert "procedural" in result.output


BAD = {
    "method": (["--methods", "versaa"], ["unknown method 'versaa'", "'versa'", "maml"]),
    "bench": (["--bench", "mini5w5"], ["unknown bench 'mini5w5'", "mini5w5s"]),
    "bench of no grammar": (["--bench", "imagenet"], ["unknown bench", "way"]),
    "protocol": (["--protocols", "acuracy"], ["unknown protocol 'acuracy'", "'accuracy'"]),
    "norm": (["--norm", "metabm"], ["unknown norm", "'metabn'"]),
    "preset": (["--preset", "fast"], ["unknown preset", "quick"]),
    "source": (["--source", "reel"], ["unknown source", "'real'"]),
    "overwrite": (["--overwrite", "yes"], ["unknown overwrite", "always"]),
    "way": (["--bench", "omni900w1s"], ["way 900 needs 900", "has 640"]),
    "shots and queries": (
        ["--bench", "omni5w10s"],
        ["shots (10) plus queries (15) need 25 images", "Use at most --queries 10"],
    ),
    "queries": (["--queries", "0"], ["--queries must be at least 1"]),
    "iterations": (["--iterations", "-1"], ["iterations must be positive and finite"]),
    "seeds": (["--seeds", "0,x"], ["--seeds takes whole numbers"]),
    "no seeds": (["--seeds", ""], ["at least one seed"]),
    "seed too large": (["--seeds", "99999999999999999999999"], ["seeds must be from 0"]),
    "seed below zero": (["--seeds=-1"], ["seeds must be from 0"]),
    "way beyond any data": (["--bench", "omni99999999999999999999w1s"], ["at most 10000"]),
    "shot beyond the images": (["--bench", "omni5w25s"], ["class 'glyph0001' has 20", "Use at most 19 shots"]),
    "train queries": (["--set", "train_queries=20"], ["Use at most --set train_queries=19"]),
    "upper case": (["--bench", "OMNI5W1S"], ["Did you mean 'omni5w1s'"]),
    "set twice": (["--set", "iterations=5"], ["iterations is set twice, by --iterations and by --set"]),
    "empty results": (["--results", ""], ["--results needs the name of a folder"]),
    "rate that is no number": (["--set", "learning_rate=nan"], ["learning_rate must be a number"]),
    "negative scale": (["--set", "protonets.scale=-1"], ["scale must be positive"]),
    "setting": (["--set", "protonets.scal=3"], ["unknown setting of protonets 'scal'", "'scale'"]),
    "setting's method": (["--set", "mmal.test_steps=3"], ["unknown method in --set 'mmal'", "'maml'"]),
    "setting of an absent method": (["--set", "maml.test_steps=3"], ["'maml' is not among --methods protonets"]),
    "setting without a value": (["--set", "protonets.scale"], ["--set takes [METHOD.]NAME=VALUE"]),
    "setting of another type": (["--set", "protonets.scale=big"], ["protonets.scale must be a number"]),
    "device": (["--device", "tpu"], ["device must be auto, cpu, cuda"]),
    "no method": (["--methods", ","], ["--methods takes names", "Leave it out for the usual"]),
    "split": (["--split", "alphabet"], ["--split must be one of random, vinyals"]),
    "no stand-in": (["--bench", "tiny5w1s"], ["tiny has no stand-in"]),
    "data root": (["--source", "real", "--data-root", "/does/not/exist"], ["the data folder must exist"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error_with_status_2(case, tmp_path):
    arguments, says = BAD[case]
    result = run(tmp_path, *arguments)
    assert result.exit_code == 2, result.output
    assert result.output.count("error:") == 1
    assert "Traceback" not in result.output
    for text in says:
        assert text in result.output
    assert not (tmp_path / "records").exists()


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU here")
def test_cuda_where_there_is_none(tmp_path):
    result = run(tmp_path, "--device", "cuda")
    assert result.exit_code == 2
    assert "--device cuda needs a CUDA GPU" in result.output


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("inner_rate=-1", "inner rates must be positive"),
        ("inner_rate=0.1,0.2", "there are 2 inner rates for at most 1 steps"),
        ("inner_engine=hiher", "maml.inner_engine must be one of native, higher"),
        ("first_order=yes", "maml.first_order must be true or false"),
    ],
)
def test_maml_settings_that_make_no_sense(setting, says, tmp_path):
    result = run(tmp_path, "--set", f"maml.{setting}", methods="maml")
    assert result.exit_code == 2
    assert says in result.output


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


def test_an_interrupt_during_start_up_is_quiet():
    # Importing torch takes seconds; here the import itself is interrupted, at a moment that does not vary.
    code = """
import sys
class Interrupted:
    def find_spec(self, name, *rest):
        if name == "mlpip_bench.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from mlpip_bench.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == ""


def test_nothing_is_cut_in_a_narrow_terminal(finished, data_root):
    narrow = {"COLUMNS": "40"}
    for arguments in (
        ["table", "--results", finished],
        ["list", "methods"],
        ["list", "data", "--data-root", data_root],
    ):
        assert "…" not in call(*arguments, **narrow).output


def test_no_results_to_show(tmp_path):
    result = call("table", "--results", tmp_path)
    assert result.exit_code == 2
    assert "run" in result.output


def test_results_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    result = run(tmp_path / "file")
    assert result.exit_code == 2
    assert "cannot write" in result.output
    assert "--results" in result.output


def test_a_corrupt_record_stops_the_run_before_any_work(tmp_path):
    run(tmp_path)
    path = next((tmp_path / "records").rglob("*.json"))
    path.write_bytes(path.read_bytes()[:100])
    for arguments in (["run", "--methods", "maml", "--bench", "omni5w1s", "--source", "procedural", *TINY], ["table"]):
        result = call(*arguments, "--results", tmp_path)
        assert result.exit_code == 2
        assert str(path) in result.output
    assert not (tmp_path / "checkpoints" / "omni5w1s" / "maml").exists()


def test_a_corrupt_checkpoint_stops_the_run_before_any_work(tmp_path):
    run(tmp_path)
    path = next((tmp_path / "checkpoints").rglob("*.pt"))
    path.write_bytes(path.read_bytes()[:1000])
    result = run(tmp_path, "--overwrite", "always", methods="maml,protonets")
    assert result.exit_code == 2
    assert str(path) in result.output
    assert not (tmp_path / "checkpoints" / "omni5w1s" / "maml").exists()


def test_a_full_disk_while_a_record_is_written_loses_nothing(tmp_path, monkeypatch):
    original = results.save

    def full(record, folder):
        if record.protocol == "nll":
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
                return original(record, folder)
        return original(record, folder)

    with monkeypatch.context() as patch:
        patch.setattr(results, "save", full)
        result = run(tmp_path)
    assert result.exit_code == 2
    assert "No space left on device" in result.output
    assert [r.protocol for r in results.load_all(tmp_path)] == ["accuracy"]
    assert not [p for p in (tmp_path / "records").rglob("*") if p.is_file() and p.suffix != ".json"]
    trained = next((tmp_path / "checkpoints").rglob("*.pt"))
    before = trained.stat().st_mtime_ns
    assert run(tmp_path).exit_code == 0
    assert trained.stat().st_mtime_ns == before
    assert {r.protocol for r in results.load_all(tmp_path)} == {"accuracy", "nll"}


def test_a_loss_that_is_not_finite_stops_its_cell_only(tmp_path, monkeypatch):
    plugin = registry.method("versa")
    honest = plugin.loss
    monkeypatch.setattr(plugin, "loss", lambda self, batch: honest(self, batch) * float("nan"))
    result = run(tmp_path, methods="versa,protonets")
    assert result.exit_code == 1
    assert "failed" in result.output
    assert "is not finite at iteration 0" in result.output
    assert {r.method for r in results.load_all(tmp_path)} == {"protonets"}
    failure = json.loads(next((tmp_path / "failures").rglob("*.json")).read_text())
    assert "not finite" in failure["error"]

    never = run(tmp_path, "--overwrite", "never", methods="versa,protonets")
    assert never.exit_code == 0
    assert "failed before" in never.output
    monkeypatch.setattr(plugin, "loss", honest)
    again = run(tmp_path, methods="versa,protonets")
    assert again.exit_code == 0
    assert {r.method for r in results.load_all(tmp_path)} == {"versa", "protonets"}
    assert not list((tmp_path / "failures").rglob("*.json"))


def test_a_plugin_that_raises_fails_its_cell_only(tmp_path, monkeypatch):
    plugin = registry.method("versa")
    monkeypatch.setattr(plugin, "loss", lambda self, batch: {}["missing"])
    result = run(tmp_path, methods="versa,protonets")
    assert result.exit_code == 1
    assert "KeyError" in result.output
    assert {r.method for r in results.load_all(tmp_path)} == {"protonets"}


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
        ("mlpip_bench.api:Method", "lacks amortize, loss, predictive"),
    ],
)
def test_a_broken_plugin_is_named(value, says, tmp_path, monkeypatch):
    register(monkeypatch, "broken", value)
    result = run(tmp_path, methods="protonets,broken")
    assert result.exit_code == 2
    assert "'broken'" in result.output
    assert says in result.output
    listed = call("list", "methods")
    assert listed.exit_code == 0
    assert "protonets" in listed.output
    assert "broken" in listed.output


def command(folder: Path, iterations: int = 40) -> list[str]:
    return [
        *(sys.executable, "-m", "mlpip_bench", "run", "--methods", "versa", "--bench", "omni5w1s"),
        *("--source", "procedural", "--results", str(folder), "--iterations", str(iterations)),
        *(
            "--test-tasks",
            "4",
            "--set",
            "validation_tasks=2",
            "--set",
            "validate_every=2",
            "--set",
            "tasks_per_batch=1",
        ),
        *("--set", "learning_rate=0.1"),  # at which training wrecks the model, so that the best is not the last
    ]


def test_kill_9_and_the_same_command_give_the_numbers_of_an_uninterrupted_run(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(command(killed), env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(killed.rglob("*.pt")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert results.load_all(killed) == []
    for folder in (killed, whole):
        subprocess.run(command(folder), env=environment, check=True, capture_output=True)
    ours, theirs = results.load_all(killed), results.load_all(whole)
    assert [r.scores for r in ours] == [r.scores for r in theirs]
    assert [r.training["history"] for r in ours] == [r.training["history"] for r in theirs]
    (nll,) = (r for r in ours if r.protocol == "nll")
    by_model = {s.model: s.per_task for s in nll.scores}
    assert nll.training["best_iteration"] < 40
    assert by_model["best"] != by_model["last"]


def test_an_interrupt_is_clean_and_resumable(tmp_path):
    # A shell that starts the tests in the background has its children ignore interrupts; a user's does not.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command(tmp_path, 100_000), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=heed
    )
    try:
        while not list(tmp_path.rglob("*.pt")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()  # or it trains on beside the tests that follow
    assert process.returncode == 130
    assert "goes on from what is saved" in stderr
    assert "Traceback" not in stderr


def make_truncated_archive(root: Path) -> None:
    (root / "omniglot").mkdir()
    (root / "omniglot" / "images_background.zip").write_bytes(b"PK\x03\x04 and no more")


def make_empty_archive(root: Path) -> None:
    (root / "tiny-imagenet-32").mkdir()
    for name in ("train.tar", "val.tar", "test.tar"):
        (root / "tiny-imagenet-32" / name).write_bytes(b"")


def make_wrong_layout(root: Path) -> None:
    (root / "miniimagenet" / "pictures").mkdir(parents=True)
    (root / "miniimagenet" / "readme.txt").write_text("moved")


class Payload:
    """What a hostile pickle would do."""

    def __reduce__(self):
        return (os.mkdir, ("/tmp/mlpip_bench_was_attacked_by_a_pickle",))


def make_hostile_pickle(root: Path) -> None:
    (root / "miniimagenet").mkdir()
    for split in ("train", "val", "test"):
        path = root / "miniimagenet" / f"mini-imagenet-cache-{split}.pkl"
        path.write_bytes(pickle.dumps({"image_data": Payload(), "class_dict": {}}))


@pytest.mark.parametrize(
    ("make", "bench", "says"),
    [
        (make_truncated_archive, "omni5w1s", ["images_background.zip"]),
        (make_empty_archive, "tiny5w1s", [".tar"]),
        (make_wrong_layout, "mini5w5s", ["known layout", "pictures"]),
        (make_hostile_pickle, "mini5w5s", ["mkdir", ".pkl"]),
    ],
)
def test_bad_data_is_one_clear_error_and_never_makes_way_for_the_stand_in(make, bench, says, tmp_path):
    make(tmp_path)
    source = ["--source", "real"] if make is make_wrong_layout else []
    arguments = ["--methods", "protonets", "--bench", bench, "--data-root", tmp_path, *source, *TINY]
    result = call("run", *arguments, "--results", tmp_path / "results")
    assert result.exit_code == 2, result.output
    assert result.output.count("error:") == 1
    for text in says:
        assert text in result.output
    assert not (tmp_path / "results").exists()
    assert not Path("/tmp/mlpip_bench_was_attacked_by_a_pickle").exists()

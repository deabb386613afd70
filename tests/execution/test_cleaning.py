"""What ``clean`` lists and removes."""

import dataclasses
import json

import pytest

from builders import invoke, make_predictions, make_record
from mlpip_bench.execution.cleaning import leftovers, outdated
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION
from mlpip_bench.records import predictions, store
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.locks import locked


def made_by(numbers, method="alpha"):
    record = make_record(method=method)
    return dataclasses.replace(record, environment={**record.environment, "code": {"numbers": numbers}})


@pytest.fixture
def folder(tmp_path):
    store.save(made_by(NUMBERS_VERSION), tmp_path)
    store.save(made_by(NUMBERS_VERSION - 1, "beta"), tmp_path)
    for kind, suffix in (("checkpoints", ".pt"), ("failures", ".json")):  # no record has that one
        file = tmp_path / kind / "omni5w1s" / "alpha" / f"seed0-abc{suffix}"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"trial": "alpha", "error": "it failed"}))
    return tmp_path


def files(folder):
    """The folders that hold files, but those of locks."""
    paths = [path.relative_to(folder).parts for path in folder.rglob("*") if path.is_file()]
    return {parts[0] for parts in paths} - {"locks"}


def test_it_lists_and_removes_nothing_by_itself(folder):
    done = invoke("clean", "--results", folder)
    assert done.exit_code == 0
    assert "2 files to remove with --yes" in done.output
    assert f"made by numbers version {NUMBERS_VERSION - 1}" in done.output
    assert "it failed" in done.output
    assert len(store.load_all(folder)) == 2
    assert files(folder) == {"records", "checkpoints", "failures"}


def test_with_yes_it_removes_what_it_lists_and_keeps_current_records(folder):
    assert invoke("clean", "--results", folder, "--yes").exit_code == 0
    assert [record.method for record in store.load_all(folder)] == ["alpha"]
    assert files(folder) == {"records", "checkpoints"}
    assert leftovers(folder) == []


def test_a_training_to_go_on_with_stays_unless_it_is_named(folder):
    assert invoke("clean", "--results", folder, "--only", "checkpoints", "--yes").exit_code == 0
    assert "checkpoints" in files(folder)
    assert "a training to go on with" in invoke("clean", "--results", folder, "--only", "unfinished").output
    assert invoke("clean", "--results", folder, "--only", "unfinished", "--yes").exit_code == 0
    assert "checkpoints" not in files(folder)


def test_models_of_records_go(tmp_path):
    tiny = ["--iterations=2", "--test-tasks=2", "--set=validation_tasks=2", "--source=procedural"]
    run = invoke("run", "--methods=protonets", "--bench=omni5w1s", *tiny, "--results", tmp_path)
    assert run.exit_code == 0, run.output
    assert {leftover.kind for leftover in leftovers(tmp_path)} == {"checkpoints"}


def test_only_some_kinds(folder):
    assert invoke("clean", "--results", folder, "--only", "failures", "--yes").exit_code == 0
    assert files(folder) == {"records", "checkpoints"}
    wrong = invoke("clean", "--results", folder, "--only", "tables")
    assert wrong.exit_code == 2
    assert "Known: checkpoints, failures, predictions, records, unfinished" in wrong.output


def test_what_a_run_is_at_work_on_stays(folder):
    with locked(folder / "locks" / "omni5w1s" / "alpha" / "seed0-abc.lock"):
        assert {leftover.kind for leftover in leftovers(folder)} == {"records"}


@pytest.fixture
def predicted(tmp_path):
    """A folder with a current record, an outdated one, the predictions of both, and predictions of neither."""
    place = tmp_path / "records" / "omni5w1s" / "alpha"
    for number, seed in ((NUMBERS_VERSION, 0), (NUMBERS_VERSION - 1, 1), (None, 2)):
        of = {("test", 3): make_predictions(seed=seed)}
        named = predictions.save(of, place, predictions.stem(seed, f"{seed}" * 12))
        if number is not None:
            record = dataclasses.replace(made_by(number), seed=seed, key=f"{seed}" * 12, predictions=named)
            store.save(record, tmp_path)
    return tmp_path


def seeds_of(folder):
    return [int(path.name[len("predictions-seed")]) for path in sorted(folder.rglob("*.npz"))]


def test_predictions_go_once_no_record_names_them(predicted):
    assert invoke("clean", "--results", predicted, "--only", "records", "--yes").exit_code == 0
    assert seeds_of(predicted) == [0, 1, 2]
    assert {leftover.why for leftover in leftovers(predicted)} == {"no record that stays names it"}
    assert invoke("clean", "--results", predicted, "--yes").exit_code == 0
    assert seeds_of(predicted) == [0]
    assert [record.seed for record in store.load_all(predicted)] == [0]


def test_predictions_of_an_outdated_record_go_in_the_same_command(predicted):
    assert invoke("clean", "--results", predicted, "--yes").exit_code == 0
    assert seeds_of(predicted) == [0]


def test_predictions_of_an_outdated_record_that_stays_stay(predicted):
    assert invoke("clean", "--results", predicted, "--only", "predictions", "--yes").exit_code == 0
    assert seeds_of(predicted) == [0, 1]


def test_predictions_whose_record_is_about_to_be_written_stay(predicted):
    with locked(predicted / "locks" / "omni5w1s" / "alpha" / f"seed2-{'2' * 12}.lock"):
        assert not [found for found in leftovers(predicted) if "seed2" in found.path.name]


def test_a_file_of_predictions_is_no_record(predicted):
    assert len(store.load_all(predicted)) == 2


def test_a_record_of_a_plugin_that_is_not_installed_is_not_called_outdated():
    record = made_by(NUMBERS_VERSION)
    code = {"numbers": NUMBERS_VERSION, "plugins": {"method nobody": "0" * 12}}
    assert outdated(dataclasses.replace(record, environment={**record.environment, "code": code})) == ""


def test_no_folder_is_one_message(tmp_path):
    with pytest.raises(UserError, match="must exist"):
        leftovers(tmp_path / "nowhere")

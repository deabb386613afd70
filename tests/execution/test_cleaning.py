"""What ``clean`` lists and removes."""

import dataclasses
import json

import pytest

from builders import invoke, make_record
from mlpip_bench.execution.cleaning import leftovers, outdated
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION
from mlpip_bench.records import store
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.locks import locked


def made_by(numbers, method="alpha"):
    record = make_record(method=method)
    return dataclasses.replace(record, environment={**record.environment, "code": {"numbers": numbers}})


@pytest.fixture
def folder(tmp_path):
    store.save(made_by(NUMBERS_VERSION), tmp_path)
    store.save(made_by(NUMBERS_VERSION - 1, "beta"), tmp_path)
    for kind, suffix in (("checkpoints", ".pt"), ("failures", ".json")):
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
    assert "3 files to remove with --yes" in done.output
    assert f"made by numbers version {NUMBERS_VERSION - 1}" in done.output
    assert "it failed" in done.output
    assert len(store.load_all(folder)) == 2
    assert files(folder) == {"records", "checkpoints", "failures"}


def test_with_yes_it_removes_what_it_lists_and_keeps_current_records(folder):
    assert invoke("clean", "--results", folder, "--yes").exit_code == 0
    assert [record.method for record in store.load_all(folder)] == ["alpha"]
    assert files(folder) == {"records"}
    assert leftovers(folder) == []


def test_only_some_kinds(folder):
    assert invoke("clean", "--results", folder, "--only", "failures", "--yes").exit_code == 0
    assert files(folder) == {"records", "checkpoints"}
    wrong = invoke("clean", "--results", folder, "--only", "tables")
    assert wrong.exit_code == 2
    assert "Known: checkpoints, failures, records" in wrong.output


def test_what_a_run_is_at_work_on_stays(folder):
    with locked(folder / "locks" / "omni5w1s" / "alpha" / "seed0-abc.lock"):
        assert {leftover.kind for leftover in leftovers(folder)} == {"records"}


def test_a_record_of_a_plugin_that_is_not_installed_is_not_called_outdated():
    record = made_by(NUMBERS_VERSION)
    code = {"numbers": NUMBERS_VERSION, "plugins": {"method nobody": "0" * 12}}
    assert outdated(dataclasses.replace(record, environment={**record.environment, "code": code})) == ""


def test_no_folder_is_one_message(tmp_path):
    with pytest.raises(UserError, match="must exist"):
        leftovers(tmp_path / "nowhere")

"""The example of a third party: a package with a plugin of each kind, installed as pip does, run and changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders import REPOSITORY
from mlpip_bench.execution.fingerprint import engine_code

EXAMPLE = REPOSITORY / "docs" / "example_plugin"
SMALL = ["--iterations", "2", "--test-tasks", "3", "--set", "validation_tasks=2"]
OURS = ["run", "--methods", "versa", "--bench", "linear5s", *SMALL]
THEIRS = ["run", "--methods", "cosine_means", "--bench", "blobs5w1s", "--backbone", "tinyconv", "--protocols", "margin"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has put the package."""
    folder = tmp_path_factory.mktemp("installed")
    pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(folder), str(EXAMPLE)]
    # pip takes no build constraints, which tox sets, where it does not isolate the build.
    environment = {k: v for k, v in os.environ.items() if k != "PIP_BUILD_CONSTRAINT"}
    done = subprocess.run([sys.executable, "-m", *pip], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def call(*command: object, installed: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


def test_it_passes_the_conformance_suite_and_its_own_tests(installed, tmp_path):
    check = call("mlpip_bench", "check", "cosine_means", installed=installed, folder=tmp_path)
    assert check.returncode == 0, check.stdout + check.stderr
    assert "1 of 1 methods pass" in check.stderr
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "--import-mode=importlib"]
    tests = call("pytest", *options, EXAMPLE / "tests", installed=installed, folder=tmp_path)
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "7 passed" in tests.stdout


def test_a_run_of_all_four_names_them_and_an_edit_of_any_of_its_modules_makes_the_record_outdated(installed, tmp_path):
    def suite(*arguments: object) -> str:
        done = call("mlpip_bench", *arguments, "--results", tmp_path / "runs", installed=installed, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def records() -> dict[str, dict]:
        paths = (tmp_path / "runs").rglob("records/**/*.json")
        return {record["key"]: record for record in (json.loads(path.read_text()) for path in paths)}

    suite(*OURS)
    ours = set(records())
    suite(*THEIRS, *SMALL)
    (theirs,) = set(records()) - ours
    record = records()[theirs]
    assert (record["bench"], record["method"], record["protocol"]) == ("blobs5w1s", "cosine_means", "margin")
    assert record["backbone"]["name"] == "tinyconv"
    assert record["backbone"]["spec"] == {"side": 4, "channels": 8}
    assert record["data"]["source"] == "synthetic"
    code = record["environment"]["code"]
    assert set(code["plugins"]) == {"method cosine_means", "bench blobs", "backbone tinyconv", "protocol margin"}
    assert len(set(code["plugins"].values())) == 1  # of the package, whichever plugin it is
    assert code["packages"].keys() == {"mlpip_bench_example", "mlpip-bench"}
    assert code["packages"]["mlpip_bench_example"] == "0.1.0"
    assert code["build"] == engine_code()
    assert "--overwrite always runs it again" in suite(*THEIRS, *SMALL, "--dry-run")

    sibling = installed / "mlpip_bench_example" / "__init__.py"  # no plugin of its own
    before = sibling.read_text()
    sibling.write_text(before + "# changed\n")
    assert "the code has changed since its records of margin were made" in suite(*THEIRS, *SMALL, "--dry-run")
    suite(*THEIRS, *SMALL)
    (again,) = set(records()) - ours - {theirs}
    plugins = records()[again]["environment"]["code"]["plugins"]
    assert set(plugins.values()).isdisjoint(code["plugins"].values())
    assert "--overwrite always runs it again" in suite(*OURS, "--dry-run")
    assert set(records()) == ours | {theirs, again}

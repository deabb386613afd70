"""The guard of global state: a test that changes something fails with its name, and the next one finds it restored."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import guard

CHANGES = {
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's grad mode": lambda: torch.set_grad_enabled(False),
    "torch's number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "environment variables": lambda: os.environ.update(LEFT_BEHIND="1"),
    "the working directory": lambda: os.chdir(".."),
}


def test_every_change_has_its_test():
    assert set(CHANGES) == set(guard.GUARDED)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_undone(name):
    before = guard.state()
    CHANGES[name]()
    assert guard.state() != before
    (changed,) = guard.restored(before)
    assert changed.startswith(name)
    assert guard.state() == before
    assert guard.restored(before) == []


def test_variables_are_named_whether_set_changed_or_removed(monkeypatch):
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("REMOVED", "before")
    before = guard.state()
    os.environ.update(CHANGED="after", ADDED="after")
    del os.environ["REMOVED"]
    assert guard.restored(before) == ["environment variables ADDED, CHANGED, REMOVED"]
    assert (os.environ["CHANGED"], os.environ["REMOVED"], "ADDED" in os.environ) == ("before", "before", False)


def test_a_directory_that_was_removed_is_left(tmp_path):
    before = guard.state()
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    (changed,) = guard.restored(before)
    assert "no more" in changed
    assert Path.cwd() == Path(before["the working directory"])


TESTS = """
import os
import random

import numpy as np
import torch


def draws():
    return random.random(), float(np.random.random()), float(torch.rand(()))


FOUND = []


def test_a():
    FOUND.append(draws())
    torch.set_default_dtype(torch.float64)
    os.environ["LEFT_BEHIND"] = "1"


def test_b(monkeypatch):
    FOUND.append(draws())
    assert torch.get_default_dtype() == torch.float32
    assert "LEFT_BEHIND" not in os.environ
    monkeypatch.setenv("PUT_BACK", "1")


def test_c():
    assert FOUND == [draws()] * 2
"""


def test_a_test_that_changes_something_fails_and_the_next_does_not_notice(tmp_path):
    here = Path(guard.__file__).parent
    (tmp_path / "conftest.py").write_text((here / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_them.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", "-p", "no:cacheprovider", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(here)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert "3 passed, 1 error" in done.stdout
    assert "torch's default dtype from torch.float32 to torch.float64" in done.stdout
    assert "environment variables LEFT_BEHIND, and must" in done.stdout


def test_seeds_are_fixed():
    first = random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002
    guard.seed()
    assert (random.random(), float(np.random.random()), float(torch.rand(()))) == first  # noqa: NPY002

"""A run that is killed or interrupted at any moment loses nothing, and ends with the numbers of one that was not."""

import functools
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

IMPORTING = 2  # kills; the others come while it runs
MOST_WRITES = 40  # a whole run has 44
# The best model is not the last one at this learning rate, so that both are tested.
SETTINGS = {"validation_tasks": 1, "tasks_per_batch": 1, "validate_every": 1, "train_queries": 1, "learning_rate": 0.1}


def arguments(folder: Path) -> list[str]:
    return [
        *("run", "--methods", "protonets,fomaml", "--bench", "omni5w1s", "--source", "procedural"),
        *("--backbone", "conv4,channels=8"),
        *("--results", str(folder), "--iterations", "12", "--test-tasks", "4"),
        *(part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")),
    ]


def cold(folder: Path, **options) -> subprocess.Popen[str]:
    """The command as a user starts it."""
    command = [sys.executable, "-m", "mlpip_bench", *arguments(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)


def warm(folder: Path, *, killed_at_write: int = 0) -> multiprocessing.process.BaseProcess:
    """The same in a process that has imported everything: 20 restarts would spend 100 seconds on imports.

    If asked to, it is killed at that write, when the file is there under its temporary name.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlpip_bench.cli.app"])
    code = f"""
import itertools, os, signal, sys
from mlpip_bench.cli.app import app
writes = itertools.count(1)
def kill(event, _):
    if event == "os.rename" and next(writes) == {killed_at_write}:
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
app({arguments(folder)!r})
"""
    process = context.Process(target=exec, args=(code, {}))
    process.start()
    return process


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def half_written(folder: Path) -> list[Path]:
    """Files that were being written when their writer was killed."""
    return [Path(where, name) for where, _, names in os.walk(folder) for name in names if name.startswith(".")]


def without_seconds(table: Path) -> str:
    """A table but for how long training took."""
    return re.sub(r"(tasks), [^|]+\|", r"\1 |", table.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_many_times_gives_the_numbers_of_an_uninterrupted_run(tmp_path, numbers, tell, kills):
    moments = random.Random(0)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = warm(whole)  # also starts the server
    process.join()
    began = time.monotonic()
    process = warm(tmp_path / "timed")
    process.join()
    duration = time.monotonic() - began
    expected = numbers(whole)
    assert len(expected) == 4
    assert numbers(tmp_path / "timed") == expected
    assert any(scores[0].per_task != scores[-1].per_task for _, scores, _, _ in expected.values())  # best and last

    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import mlpip_bench.cli.app"], check=True)
    importing = time.monotonic() - began
    for _ in range(IMPORTING):
        with cold(killed) as process:
            time.sleep(moments.uniform(0, importing))
            process.kill()
        assert process.returncode == -signal.SIGKILL

    # Each goes on where the one before was killed, so that moments of all of a run are met.
    killed_so_far, finished, at_a_write = IMPORTING, 0, 0
    while killed_so_far < kills:
        leftovers = set(half_written(killed))
        if killed_so_far % 2:
            process = warm(killed, killed_at_write=moments.randint(1, MOST_WRITES))
            process.join()
        else:
            process = warm(killed)
            process.join(moments.uniform(0, 0.7 * duration))
            process.kill()
            process.join()
        there = numbers(killed)
        assert there.items() <= expected.items()  # whole ones only, each with its numbers
        if process.exitcode == 0:  # it was done before its moment came: another one
            assert there == expected
            finished += 1
            shutil.rmtree(killed)
            continue
        assert process.exitcode == -signal.SIGKILL
        killed_so_far += 1
        at_a_write += bool(set(half_written(killed)) - leftovers)
    process = warm(killed)
    process.join()
    assert process.exitcode == 0
    assert numbers(killed) == expected
    for table in (whole / "tables").glob("*.md"):
        assert without_seconds(killed / "tables" / table.name) == without_seconds(table)
    assert at_a_write
    tell("kills survived", kills)
    tell("of them, kills in the middle of a write", at_a_write)
    tell("runs that came to their end between kills", finished + 1)


def test_an_interrupt_is_clean_and_the_same_command_goes_on(tmp_path, numbers):
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    # A shell that starts the tests in the background has its children ignore interrupts; a user's does not.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with cold(interrupted, preexec_fn=heed) as process:
        while not list(interrupted.rglob("seed0-*.pt")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output.strip().endswith("interrupted; the same command goes on from what is saved")
    assert "Traceback" not in output
    assert len(numbers(interrupted)) < 4
    for folder in (interrupted, whole):
        process = warm(folder)
        process.join()
        assert process.exitcode == 0
    assert numbers(interrupted) == numbers(whole)


def test_an_interrupt_during_start_up_is_quiet():
    # Importing torch takes seconds; here the import itself is interrupted, at a moment that does not vary.
    code = """
import sys
class Interrupted:
    def find_spec(self, name, *rest):
        if name == "mlpip_bench.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from mlpip_bench.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == ""

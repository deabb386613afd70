"""Signals that end a run, and streams that are lost, full or poor in characters, as a shell has them."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlpip_bench.records import store
from mlpip_bench.training.checkpoints import load_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and streams are Linux's here")
LONG = ("--iterations", "1000000", "--set", "validate_every=1000000")
SHORT = ("--iterations", "4", "--set", "validation_tasks=2", "--test-tasks", "4")


def command(folder: Path, *more: str) -> list[str]:
    run = f"run --bench toy5 --methods versa --protocols nll --results {folder}"
    return [sys.executable, "-m", "mlpip_bench", *run.split(), *more]


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    """A run that trains, as its user's shell starts it; ``more`` are options."""

    def heed() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command(folder, *LONG, *more), preexec_fn=heed, env=environment, **pipes)
    # It holds its trial's lock a little before it trains: it imports what its optimizer needs.
    deadline = time.monotonic() + 300
    while not list(folder.glob("locks/toy5/versa/*.lock")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(6)
    return process


# test_killed.py interrupts a run, too.
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", pytest.param("SIGINT", marks=pytest.mark.slow)])
def test_a_signal_saves_a_checkpoint_and_ends_as_an_interrupt_does(name, tmp_path):
    number = getattr(signal, name)
    process = started(tmp_path)
    process.send_signal(number)
    _, output = process.communicate(timeout=120)
    assert process.returncode == 128 + number, output
    assert output.strip().endswith("interrupted; the same command goes on from what is saved")
    assert "Traceback" not in output
    (path,) = tmp_path.rglob("seed0-*.pt")  # long before the first that is due
    assert load_checkpoint(path).iteration > 0
    assert not list((tmp_path / "failures").rglob("*.json"))


def test_processes_of_a_run_that_is_ended_save_too(tmp_path):
    process = started(tmp_path, "--jobs", "2")
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert "Traceback" not in output
    (path,) = tmp_path.rglob("seed0-*.pt")
    assert load_checkpoint(path).iteration > 0


def test_a_second_interrupt_ends_at_once_and_quietly():
    code = """
import atexit, os, signal, sys, time
from mlpip_bench.utils import interrupts
interrupts.install()
atexit.register(lambda: time.sleep(1000))
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1000)
except KeyboardInterrupt:
    print("first", flush=True)
"""
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], preexec_fn=heed, **pipes) as process:
        assert process.stdout.readline() == "first\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == ""


def finished(folder: Path, shell: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run by a shell; ``{run}`` and ``{table}`` are the commands."""
    table = [sys.executable, "-m", "mlpip_bench", "table", "--results", str(folder)]
    line = shell.format(run=" ".join(command(folder, *SHORT)), table=" ".join(table))
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=environment)


def test_streams_that_are_lost_or_full_or_poor_do_not_touch_the_work(tmp_path):
    # Nobody reads standard error; standard output is full; then both are closed, and a console has ASCII alone.
    assert finished(tmp_path / "a", "{run} 2> >(true) >/dev/full; exit $?").returncode == 0
    assert finished(tmp_path / "b", "{run} >&- 2>&-").returncode == 0
    poor = finished(tmp_path / "c", "{run}", PYTHONIOENCODING="ascii", MPLBACKEND="module://no_such_backend")
    assert poor.returncode == 0, poor.stderr
    scores = [store.load_all(tmp_path / name)[0].scores for name in "abc"]
    assert scores[0] == scores[1] == scores[2]
    assert not list(tmp_path.rglob("failures/*/*/*.json"))
    full = finished(tmp_path / "a", "{table} >/dev/full")
    assert full.returncode == 1
    assert full.stderr == "error: what was asked for cannot be written to standard output: No space left on device.\n"
    assert finished(tmp_path / "a", "{table} | true; exit ${{PIPESTATUS[0]}}").stderr == ""

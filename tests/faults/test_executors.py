"""Several processes at work on one results folder, some of which are killed."""

import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from builders import report_once_unlocked
from mlpip_bench.execution import planning, scheduler, status
from mlpip_bench.execution.config import RunConfig
from mlpip_bench.execution.executors import local
from mlpip_bench.execution.executors.base import Job
from mlpip_bench.execution.worker import perform, perform_elsewhere
from mlpip_bench.records import store
from mlpip_bench.utils.locks import is_held, locked
from mlpip_bench.utils.progress import Quiet

METHODS = ("versa", "amortized_vi")
SETTINGS = {"test_tasks": 4, "validation_tasks": 2, "validate_every": 200, "tasks_per_batch": 1, "learning_rate": 0.01}


def config(folder: Path, iterations: int = 2000, **fields) -> RunConfig:
    asked = {"methods": METHODS, "benches": ("toy5",), "protocols": ("nll",), "results": folder}
    return RunConfig(**(asked | {"overrides": {"*": SETTINGS | {"iterations": iterations}}} | fields))


def command(folder: Path, *more: str) -> list[str]:
    """The same run from the command line."""
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    run = f"run --methods {','.join(METHODS)} --bench toy5 --protocols nll --iterations 2000 --results {folder}"
    return [sys.executable, "-m", "mlpip_bench", *run.split(), *settings, *more]


@pytest.fixture(scope="module")
def whole(numbers, tmp_path_factory):
    """The numbers of a run in one process that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    asked = config(folder)
    assert len(scheduler.run(planning.plan_trials(asked), asked, Quiet()).done) == 2
    return numbers(folder)


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def wait_for(condition, seconds: float = 600):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def at_work(pid: int, method: str, folder: Path) -> bool:
    """Whether a process is the one that is at work on a method's trial."""
    with contextlib.suppress(OSError):
        lock = str(folder / "locks" / "toy5" / method)
        return any(lock in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def test_a_process_whose_parent_hears_it_no_more_ends_quietly(tmp_path, capfd):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=local._child, args=(report_once_unlocked, 1, theirs), daemon=True)
    process.start()
    theirs.close()
    gone = tmp_path / "gone"
    ours.send(Job("a job", config(tmp_path), (), (), False, {}, lock=gone))
    assert ours.recv() == local._STARTED
    ours.close()
    gone.touch()
    process.join(60)
    assert process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_local_processes_make_the_same_records_and_one_that_is_killed_is_started_again(
    whole, numbers, tmp_path, one_thread, tell
):
    said: list[str] = []

    class Listening(Quiet):
        def say(self, message: str) -> None:
            said.append(message)

    asked = config(tmp_path)
    executor = local.LocalProcesses(perform_elsewhere, Listening(), processes=2, threads=1)

    def kill() -> None:
        wait_for(lambda: list(tmp_path.glob("checkpoints/toy5/versa/seed*.pt")))
        (pid,) = (pid for pid in children(os.getpid()) if at_work(pid, "versa", tmp_path))
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    summary = scheduler.run(planning.plan_trials(asked), asked, Listening(), executor)
    killer.join()
    assert len(summary.done) == 2
    assert any("SIGKILL" in line and "goes on from its last checkpoint" in line for line in said)
    assert any("goes on from iteration" in line for line in said)
    assert numbers(tmp_path) == whole
    tell("workers killed and started again", 1)


def test_a_job_whose_process_is_always_killed_fails_in_the_end(tmp_path, one_thread, monkeypatch):
    module = "import os, signal\ndef die(job, reporter): os.kill(os.getpid(), signal.SIGKILL)\n"
    (tmp_path / "deadly.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)  # a child has its parent's path, but cannot import a file of tests
    die = importlib.import_module("deadly").die
    asked = config(tmp_path, methods=("versa",))
    executor = local.LocalProcesses(die, Quiet(), processes=2, threads=1)
    summary = scheduler.run(planning.plan_trials(asked), asked, Quiet(), executor)
    assert summary.done == ()
    ((_, message),) = summary.failed
    assert "SIGKILL" in message
    assert "3 times" in message
    (failure,) = (tmp_path / "failures").rglob("*.json")
    assert json.loads(failure.read_text())["error"] == message
    assert not store.load_all(tmp_path)


def test_children_end_with_a_driver_that_is_killed_and_the_same_command_resumes(
    whole, numbers, tmp_path, one_thread, tell
):
    driver = subprocess.Popen(command(tmp_path, "--jobs", "2"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.glob("checkpoints/*/*/seed*.pt")))
    workers = children(driver.pid)
    driver.kill()
    driver.wait()
    wait_for(lambda: not any(at_work(pid, method, tmp_path) for pid in workers for method in METHODS))
    done = subprocess.run(command(tmp_path, "--jobs", "2"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "goes on from iteration" in done.stderr
    assert numbers(tmp_path) == whole
    tell("drivers killed with their workers at work", 1)


def test_two_runs_at_once_never_do_a_trial_twice(whole, numbers, tmp_path, one_thread, tell):
    """Each must do everything again, so that only the other's work can keep it from a trial."""
    again = command(tmp_path, "--overwrite", "always")
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    drivers = [subprocess.Popen(again, **pipes) for _ in range(2)]
    output = [driver.communicate()[1] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], output
    assert numbers(tmp_path) == whole
    trained = [line for text in output for line in text.splitlines() if "training" in line and "2000/2000" in line]
    assert len(trained) == 2, output
    tell("runs at once on one folder", 2)


def test_a_run_takes_over_what_a_killed_one_leaves_and_leaves_what_another_does_if_asked(tmp_path):
    asked = config(tmp_path, iterations=4)
    planned = planning.plan_trials(asked)
    lock = planned[0].path(tmp_path, "locks", ".lock")
    with locked(lock):
        assert is_held(lock)
        summary = scheduler.run(planned, asked, Quiet(), wait=False)
        assert summary.done == (planned[1].title,)
        assert summary.left == (planned[0].title,)
        assert {r.method for r in store.load_all(tmp_path)} == {planned[1].method}
        waiting = threading.Thread(target=scheduler.run, args=(planned, asked, Quiet()))
        waiting.start()
        time.sleep(0.5)
        assert waiting.is_alive()
    waiting.join(timeout=60)
    assert not waiting.is_alive()
    assert {r.method for r in store.load_all(tmp_path)} == set(METHODS)


def test_what_another_run_has_made_meanwhile_is_not_made_again(tmp_path):
    asked = config(tmp_path, iterations=4, methods=("versa",))
    planned = planning.plan_trials(asked)
    again = dataclasses.replace(asked, overwrite="always")
    (standing,) = status.survey(planned, again)
    job = scheduler.trial_job(standing, again, scheduler.stamps(planned, tmp_path))
    assert len(scheduler.run(planned, asked, Quiet()).done) == 1
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")}
    assert perform(job, planned, Quiet()).status == "nothing"
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")} == before


CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def two_nodes(monkeypatch, tmp_path):
    """Address of a Ray cluster of two nodes with one CPU each, on this machine."""
    pytest.importorskip("ray", reason="needs the extra: pip install '.[cluster]'")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # or a token would be written to the home folder
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        (tmp_path / "cluster.log").open("w") as log,
        subprocess.Popen([sys.executable, "-c", CLUSTER], stderr=log, **pipes) as cluster,
    ):
        address = cluster.stdout.readline().strip()
        assert address, (tmp_path / "cluster.log").read_text()
        yield address
        cluster.communicate("")


@pytest.mark.slow
def test_a_cluster_of_two_nodes_makes_the_same_records_and_starts_the_trial_of_a_killed_worker_again(
    two_nodes, whole, numbers, tmp_path, one_thread, tell
):
    folder = tmp_path / "results"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": "/"}
    driver = subprocess.Popen(command(folder, "--ray", two_nodes), **pipes)

    def workers() -> dict[str, int]:
        """The process of each trial, once there are both."""
        found = {method: pid for pid in processes() for method in METHODS if at_work(pid, method, folder)}
        return found if len(found) == len(METHODS) else {}

    found = wait_for(workers)
    nodes = {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] for pid in found.values()}
    assert len(nodes) == 2  # the parent of a worker is its node's own process
    wait_for(lambda: list(folder.glob("checkpoints/toy5/versa/seed*.pt")))
    os.kill(found["versa"], signal.SIGKILL)
    output, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, output
    assert "it goes on from its last checkpoint" in output
    assert numbers(folder) == whole
    tell("workers killed and started again", 1)


def test_a_trial_that_this_machine_can_never_run_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="needs the extra: pip install '.[cluster]'")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    many = command(tmp_path, "--ray", "local", "--cpus", "4096")
    done = subprocess.run(many, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "a trial takes 4096 CPUs" in done.stderr
    assert "Traceback" not in done.stderr

"""A third party's plugin does whatever it wants: its trial fails with a message that names it, the others go on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builders import budget, invoke
from mlpip_bench.records import store

HEAD = """
import os, signal, sys, time
import torch
from mlpip_bench.methods.versa import Versa
{at_import}
class Wild(Versa):
    def loss(self, batch):
        {in_loss}
        return super().loss(batch)
"""


def install(folder: Path, name: str, *, at_import: str = "", in_loss: str = "pass") -> None:
    """A package with a method that is Versa, and what it does besides."""
    (folder / f"{name}_module.py").write_text(HEAD.format(at_import=at_import, in_loss=in_loss))
    info = folder / f"{name}_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mlpip_bench.methods]\n{name} = {name}_module:Wild\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages; what is imported from it is forgotten."""
    before = set(sys.modules)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield folder
    for name in set(sys.modules) - before:
        if name.endswith("_module"):
            del sys.modules[name]


def run(folder: Path, *methods: str, protocols: str = "nll", **more: object):
    options = [part for name, value in more.items() for part in (f"--{name.replace('_', '-')}", value) if part != ""]
    asked = ["--methods", ",".join(methods), "--bench", "toy5", "--protocols", protocols, "--results", folder]
    return invoke("run", *asked, *budget(), *options)


def scores(folder: Path) -> dict[str, object]:
    return {r.method: r.scores for r in store.load_all(folder) if r.protocol == "nll"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a method of the suite scores where nobody else takes part."""
    folder = tmp_path_factory.mktemp("alone")
    assert run(folder, "versa").exit_code == 0
    return scores(folder)["versa"]


WILD = {
    "exit": ("os._exit(0)", "its process ended with status 0, before its work was done"),
    "segmentation fault": ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11 (SIGSEGV)"),
    "GeneratorExit": ("raise GeneratorExit('enough')", "GeneratorExit: enough"),
    "interrupt of its own": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "unspeakable": ("raise type('E', (Exception,), {'__str__': lambda s: s.x})()", "its message cannot be shown"),
    "streams closed": (
        "[stream.close() for stream in (sys.stdout, sys.stderr)]; [os.close(fd) for fd in range(3, 40)]",
        "failed toy5 wild",
    ),
    "threads": ("torch.set_num_threads(3)", "torch's number of threads from 1 to 3"),
    "a function of torch": ("torch.nn.functional.elu = torch.relu", "torch.nn.functional.elu, which it replaced"),
    "recursion limit": ("sys.setrecursionlimit(777)", "the recursion limit from 1000 to 777"),
    "handler": ("signal.signal(signal.SIGUSR1, signal.SIG_IGN)", "a signal's handler (SIGUSR1)"),
}


SOON = ("exit", "threads")
"""Cases that are not left to the slow tests: each takes the start of two processes."""


@pytest.mark.parametrize(
    "case", [case if case in SOON else pytest.param(case, marks=pytest.mark.slow) for case in WILD]
)
def test_whatever_a_plugin_does_fails_its_trial_alone(case, site, tmp_path, alone):
    in_loss, says = WILD[case]
    install(site, "wild", in_loss=in_loss)
    result = run(tmp_path / "results", "wild", "versa")
    assert result.exit_code == 1, result.output
    assert says in result.output
    assert "failed toy5 wild" in result.output
    assert scores(tmp_path / "results") == {"versa": alone}
    (note,) = (tmp_path / "results" / "failures").rglob("*.json")
    assert says in json.loads(note.read_text())["error"] or says.startswith("failed")


@pytest.mark.slow
def test_a_plugin_that_hangs_is_ended(site, tmp_path, alone):
    install(site, "wild", in_loss="signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)")
    result = run(tmp_path / "results", "wild", "versa", time_limit=60)
    assert result.exit_code == 1
    assert "it took longer than --time-limit, 60 seconds" in result.output
    assert scores(tmp_path / "results") == {"versa": alone}


def test_a_plugin_that_behaves_gets_the_numbers_of_the_method_that_it_is(site, tmp_path, alone):
    install(site, "tame")
    assert run(tmp_path / "results", "tame", "versa").exit_code == 0
    assert scores(tmp_path / "results")["versa"] == alone
    assert scores(tmp_path / "results")["tame"] == alone


def test_a_method_of_another_package_that_fails_a_check_is_marked_in_every_table(site, tmp_path):
    install(site, "tame")
    install(site, "summed", in_loss="return super().loss(batch) * batch.query.y.shape[1]")
    folder = tmp_path / "results"
    checked = run(folder, "tame", "summed", "versa", check="")
    assert checked.exit_code == 0, checked.output
    found = {r.method: r.environment["code"].get("checks") for r in store.load_all(folder) if r.protocol == "nll"}
    assert found == {
        "versa": None,
        "tame": {"failed": [], "declared": []},
        "summed": {"failed": ["loss_mean_over_points"], "declared": []},
    }
    for file in ("nll.md", "nll.tex", "paired.md"):
        table = (folder / "tables" / file).read_text()
        assert "summed (fails 1 check)" in table, file
        assert "tame (" not in table.replace("tame (stand-in)", "")
    assert "fails the checks loss_mean_over_points" in (folder / "tables" / "nll.md").read_text()
    assert run(folder, "tame", overwrite="always").exit_code == 0  # small budgets of tests are without the checks
    assert "tame (not checked)" in (folder / "tables" / "nll.md").read_text()


AT_IMPORT = {
    "torch.set_num_threads(7)": "changes torch's number of threads from",
    "torch.set_grad_enabled(False)": "changes autograd's mode from True to False",
    "torch.set_default_dtype(torch.float64)": "changes torch's default dtype from torch.float32 to torch.float64",
    "os.environ['OMP_NUM_THREADS'] = '2'": "changes an environment variable (OMP_NUM_THREADS)",
    "os.umask(0o77)": "changes the umask",
    "os.chdir('/')": "changes the working directory from",
    "Versa.predictive = lambda *_: 0": "changes mlpip_bench.methods.versa.Versa.predictive, which it replaced",
    "torch.Tensor.mean = lambda *_: 0": "changes torch.Tensor.mean, which it replaced",
    "raise GeneratorExit": "cannot be imported: GeneratorExit",
    "os._exit(0)": "cannot be imported: RuntimeError: it ends the process, with status 0",
    "from os import _exit; _exit(3)": "cannot be imported: RuntimeError: it ends the process, with status 3",
    "os.abort()": "cannot be imported: RuntimeError: it ends the process",
}


@pytest.mark.parametrize("change", AT_IMPORT)
def test_an_import_that_changes_the_process_is_refused_each_time_and_set_back(change, site, tmp_path, alone):
    install(site, "wild", at_import=change)
    for _ in range(2):  # the second time the module is there already
        result = invoke("check", "wild")
        assert result.exit_code == 2
        assert AT_IMPORT[change] in result.output
        assert "'wild' (wild_module:Wild of the package wild_package)" in result.output
    assert run(tmp_path / "results", "versa").exit_code == 0
    assert scores(tmp_path / "results") == {"versa": alone}


def test_a_crash_at_import_names_its_place(site):
    install(site, "wild", at_import="signal.raise_signal(signal.SIGSEGV)")
    command = [sys.executable, "-m", "mlpip_bench", "check", "wild"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert str(site / "wild_module.py") in done.stderr


@pytest.mark.slow  # test_timing.py has it in one process
def test_models_that_are_timed_side_by_side_fail_alone(site, tmp_path):
    # A model that holds a lock cannot be copied, and can be built anew; the other fails in its sixth training step,
    # of which training itself has four.
    install(site, "held", at_import="import threading", in_loss="self.lock = threading.Lock()")
    install(site, "late", at_import="calls = []", in_loss="calls.append(1); assert len(calls) < 6, 'too late'")
    folder = tmp_path / "results"

    def timed() -> set[str]:
        return {r.method for r in store.load_all(folder) if r.protocol == "timing"}

    result = run(folder, "held", "late", "versa", protocols="nll,timing")
    assert result.exit_code == 1, result.output
    assert "late metabn seed 0 failed while it was timed: AssertionError: too late" in result.output
    assert timed() == {"held", "versa"}


@pytest.mark.slow
def test_a_crash_in_a_measurement_side_by_side_is_not_the_suites_own_methods_failure(site, tmp_path):
    crash = "calls.append(os.getpid()); calls.count(calls[-1]) < 6 or os.kill(os.getpid(), signal.SIGSEGV)"
    install(site, "crash", at_import="calls = []", in_loss=crash)
    folder = tmp_path / "results"
    result = run(folder, "crash", "versa", protocols="nll,timing")
    assert result.exit_code == 1, result.output
    assert "failed toy5 crash" in result.output
    assert "SIGSEGV" in result.output
    assert {r.method for r in store.load_all(folder) if r.protocol == "timing"} == {"versa"}

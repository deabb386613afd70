"""Faults in the middle of a run: numbers that are not, and a clock that goes back."""

import datetime
import json
import os
import sys
import time

import pytest
import torch

from mlpip_bench import registry
from mlpip_bench.records import store
from mlpip_bench.training import checkpoints, loop

YEAR = 365 * 24 * 3600


def at_step(monkeypatch, name: str, step: int, act) -> None:
    """Let something happen after the loss of a step of a method's training has been computed."""
    plugin = registry.method(name)
    honest, steps = plugin.loss, []

    def loss(self, batch):
        value = honest(self, batch)
        steps.append(1)
        if len(steps) == step:
            act(self)
        return value

    monkeypatch.setattr(plugin, "loss", loss)


def spoil_a_parameter(method: torch.nn.Module) -> None:
    with torch.no_grad():
        next(method.parameters()).view(-1)[0] = torch.nan


@pytest.mark.parametrize("step", [1, 15, 20])  # the first, one between checkpoints, one right before a checkpoint
def test_nan_in_a_parameter(step, tmp_path, run, numbers, whole, tell):
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, "versa", step, spoil_a_parameter)
        result = run(tmp_path)
    assert result.exit_code == 1
    assert result.output.count("failed toy5 versa") == 1
    assert "not finite" in result.output
    assert "Traceback" not in result.output
    assert numbers(tmp_path) == {name: found for name, found in whole.items() if "/versa/" not in name}
    (failure,) = (tmp_path / "failures").rglob("*.json")
    assert "not finite" in json.loads(failure.read_text())["error"]
    saved = list((tmp_path / "checkpoints").rglob("versa/*.pt"))
    assert len(saved) == (step > 10)
    for path in saved:
        state = checkpoints.load_checkpoint(path)
        assert state.iteration == 10
        assert all(value.isfinite().all() for value in [*state.model.values(), *state.best_model.values()])
    assert run(tmp_path).exit_code == 0
    assert numbers(tmp_path) == whole
    assert not list((tmp_path / "failures").rglob("*.json"))
    tell("parameters spoilt", 1)


def test_nan_in_a_statistic_is_never_saved(tmp_path, call, monkeypatch):
    # Training does not read running averages; a checkpoint between validations must not keep a spoilt one.
    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", -1.0)

    def spoil(method: torch.nn.Module) -> None:
        next(b for b in method.buffers() if b.is_floating_point()).view(-1)[0] = torch.nan

    at_step(monkeypatch, "protonets", 2, spoil)
    small = ["--iterations", 4, "--test-tasks", 2, "--set", "validation_tasks=2", "--set", "tasks_per_batch=1"]
    small += ["--set", "train_queries=1", "--norm", "running"]
    trial = ["--bench", "omni5w1s", "--methods", "protonets", "--source", "procedural"]
    result = call("run", *trial, *small, "--results", tmp_path)
    assert result.exit_code == 1
    for path in (tmp_path / "checkpoints").rglob("*.pt"):
        assert all(
            v.isfinite().all() for v in checkpoints.load_checkpoint(path).model.values() if v.is_floating_point()
        )


class Clock:
    """The time of day, as this process sees it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.back = 0
        honest = time.time

        class Datetime(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return cls.fromtimestamp(time.time(), tz)

        patch.setattr(time, "time", lambda: honest() - self.back)
        patch.setattr(time, "time_ns", lambda: int(time.time() * 1e9))
        for name, module in list(sys.modules.items()):
            if name.startswith("mlpip_bench") and getattr(module, "datetime", None) is datetime.datetime:
                patch.setattr(module, "datetime", Datetime)

    def set_back(self, *_: object) -> None:
        self.back += YEAR


class Stopped(BaseException):
    """Stands for a kill: nothing catches it on the way."""


def stop(*_: object) -> None:
    raise Stopped


def test_a_clock_that_goes_back_a_year_in_a_run_and_between_runs(tmp_path, run, numbers, whole, tell):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        for act in (clock.set_back, stop):
            with pytest.MonkeyPatch.context() as fault:
                at_step(fault, "versa", 13, act)
                if act is stop:
                    with pytest.raises(Stopped):
                        run(tmp_path, "--seeds", "1")
                else:
                    assert run(tmp_path).exit_code == 0
        # Now all files lie in the future, and more so after another year back.
        for path in tmp_path.rglob("*"):
            os.utime(path, (path.stat().st_mtime + YEAR,) * 2)
        clock.set_back()
        before = {p: p.read_bytes() for p in (tmp_path / "records").rglob("*.json")}
        assert run(tmp_path, "--seeds", "0,1").exit_code == 0
    assert all(path.read_bytes() == content for path, content in before.items())
    assert {name: numbers(tmp_path)[name] for name in whole} == whole
    found = store.load_all(tmp_path)
    assert len(found) == 8
    assert all(record.seconds >= 0 and record.training["seconds"] >= 0 for record in found)
    assert run(tmp_path, "--seeds", "0,1").output.count("nothing to do for") == 4
    tell("years that the clock went back", 2)

"""Protocols in a run: which apply, and what one that fails may take with it (nothing)."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from builders import invoke
from mlpip_bench import registry
from mlpip_bench.evaluation.metrics import NLL
from mlpip_bench.evaluation.protocol import EvalProtocol
from mlpip_bench.execution import planning
from mlpip_bench.execution.config import RunConfig
from mlpip_bench.records import store


class Good(EvalProtocol):
    description = "the negative log-likelihood"
    metrics = (NLL,)
    handles = ("classification", "regression")

    def measure(self, evaluation: Any) -> Any:
        return evaluation.scores(self.metrics)


class Raises(Good):
    def measure(self, evaluation: Any) -> Any:
        raise RuntimeError("boom\nsecond line")


class Exits(Good):
    def measure(self, evaluation: Any) -> Any:
        raise SystemExit(0)


class Nothing(Good):
    def measure(self, evaluation: Any) -> Any:
        return []


class Few(Good):
    def measure(self, evaluation: Any) -> Any:
        return [evaluation.labeled(NLL, [1.0, 2.0])]


class Images(Good):
    handles = ("classification",)


class Unsure(Good):
    def applies(self, plugin: Any, settings: Any) -> bool:
        raise RuntimeError("who knows")


PLUGINS = {c.__name__.lower(): c for c in (Good, Raises, Exits, Nothing, Few, Images, Unsure)}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.protocol
    monkeypatch.setattr(registry, "protocol", lambda name: PLUGINS.get(name) or real(name))


def run(folder: Path, protocols: str, *arguments: str) -> Result:
    command = ["run", "--bench", "linear5s", "--methods", "exact_linear", "--test-tasks", "4", "--protocols", protocols]
    return invoke(*command, "--results", folder, *arguments)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "protocol raises: RuntimeError: boom"),
        ("exits", "protocol exits: SystemExit: 0"),
        ("nothing", "protocol nothing: measure must return a list of Scores, and at least one; got []"),
        ("few", "protocol few: there must be one score for each of the 4 test tasks; nll has 2"),
    ],
)
def test_a_protocol_that_fails_is_named_and_the_others_are_recorded(name, says, tmp_path):
    done = run(tmp_path, f"nll,{name},good")
    assert done.exit_code == 1
    assert says in " ".join(done.output.split())
    assert sorted(r.protocol for r in store.load_all(tmp_path)) == ["good", "nll"]
    (failure,) = (tmp_path / "failures").rglob("*.json")
    assert json.loads(failure.read_text())["error"].startswith(f"protocol {name}")
    # The records that are there are not made again.
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "records").rglob("*.json")}
    assert run(tmp_path, f"nll,{name},good").exit_code == 1
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "records").rglob("*.json")} == before


def test_a_protocol_that_does_not_apply_is_said_to_be_left_out(tmp_path):
    done = run(tmp_path, "nll,images,steps")
    assert done.exit_code == 0
    assert "does not apply to linear5s exact_linear metabn seed 0: images, steps" in " ".join(done.output.split())


def test_a_protocol_that_applies_to_nothing_is_refused(tmp_path):
    done = run(tmp_path, "images")
    assert done.exit_code == 2
    assert "none of images does to exact_linear on regression" in " ".join(done.output.split())


def test_a_protocol_that_cannot_say_whether_it_applies_is_refused(tmp_path):
    done = run(tmp_path, "nll,unsure")
    assert done.exit_code == 2
    assert "protocol 'unsure' cannot say whether it applies to linear5s: RuntimeError: who knows" in " ".join(
        done.output.split()
    )


def test_steps_are_measured_in_regression_too(tmp_path):
    arguments = ["--iterations", "2", "--set", "nonamortized_vi.test_steps=3", "--set", "validation_tasks=4"]
    done = run(tmp_path, "steps", "--methods", "nonamortized_vi", *arguments)
    assert done.exit_code == 0, done.output
    (record,) = store.load_all(tmp_path)
    best = [s for s in record.scores if s.model == "best"]
    assert [s.condition for s in best] == [{"steps": n} for n in (0, 1, 2, 3)]
    assert {s.metric for s in best} == {"nll"}
    # The last of them is the model as it is otherwise tested; without a step q is the prior.
    assert run(tmp_path, "nll", "--methods", "nonamortized_vi", *arguments).exit_code == 0
    (plain,) = (r for r in store.load_all(tmp_path) if r.protocol == "nll")
    assert best[-1].per_task == plain.scores[0].per_task


def test_a_whole_number_for_a_real_setting_is_the_same_trial(tmp_path):
    keys = []
    for value in (1, 1.0):
        config = RunConfig(
            ("linear5s",), ("amortized_vi",), ("nll",), overrides={"*": {"beta": value}}, results=tmp_path
        )
        (trial,) = planning.plan_trials(config)
        keys.append(trial.training_key)
        assert isinstance(trial.settings.beta, float)
    assert keys[0] == keys[1]

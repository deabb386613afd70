"""Checkpoints belong to one training, and what is in them fits it; else one message names the file."""

import copy
import dataclasses
import math
import os

import pytest
import torch

from builders import make_config, make_method
from mlpip_bench.execution import measuring, planning
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.training import checkpoints
from mlpip_bench.training.checkpoints import TrainingState, add_environment, load_checkpoint, restore, save_checkpoint
from mlpip_bench.training.steps import optimizer_of
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet

PLAN = TrainingPlan(iterations=9, tasks_per_batch=1, train_queries=1, learning_rate=0.01)


def make_state() -> TrainingState:
    """Of a method that has made one step."""
    method = make_method("protonets")
    optimizer = optimizer_of(method, PLAN)
    sum(p.sum() for p in method.parameters()).backward()
    optimizer.step()
    state = TrainingState(3, copy.deepcopy(method.state_dict()), optimizer.state_dict(), key="mine")
    return dataclasses.replace(state, best_model=copy.deepcopy(state.model), best_iteration=2, seconds=1.5)


def load_and_restore(path) -> None:
    method = make_method("protonets")
    restore(load_checkpoint(path, "mine"), path, method, optimizer_of(method, PLAN))


def first(state: TrainingState, model: str = "best_model") -> tuple[dict, str]:
    tensors = getattr(state, model)
    return tensors, next(name for name, value in tensors.items() if value.is_floating_point())


def spoil(state: TrainingState, how: str) -> None:
    tensors, name = first(state, "model" if how.startswith("last") else "best_model")
    match how.removeprefix("last "):
        case "shape":
            tensors[name] = torch.zeros(2, 3)
        case "missing":
            del tensors[name]
        case "too many":
            tensors["surprise"] = torch.zeros(1)
        case "nan":
            tensors[name] = tensors[name] * math.nan
        case "no tensor":
            tensors[name] = 1.0
        case "moments":
            state.optimizer["state"][0]["exp_avg"] = torch.zeros(2, 3)
        case "betas":
            state.optimizer["param_groups"][0]["betas"] = (0.0, 0.0)
        case "parameters":
            state.optimizer["param_groups"][0]["params"].pop()
        case field:
            name, _, value = field.partition(" ")
            setattr(state, name, eval(value, {"inf": math.inf, "nan": math.nan}))


WRONG = [
    "shape", "missing", "too many", "nan", "no tensor", "last shape", "last missing", "last nan", "moments", "betas",
    "parameters", "iteration -5", "iteration True", "iteration 2.0", "best_iteration 4", "seconds inf", "seconds nan",
    "seconds -1", "key 'another'",
]  # fmt: skip


@pytest.mark.parametrize("how", WRONG)
def test_wrong_contents_with_a_right_checksum_are_one_message_that_names_the_file(how, tmp_path):
    state, path = make_state(), tmp_path / "c.pt"
    save_checkpoint(state, path)
    load_and_restore(path)
    spoil(state, how)
    save_checkpoint(state, path)
    with pytest.raises(UserError, match="Delete it to train that model again") as error:
        load_and_restore(path)
    assert str(path) in str(error.value)


def test_contents_that_were_changed_after_they_were_written_are_refused(tmp_path):
    path = tmp_path / "c.pt"
    save_checkpoint(make_state(), path)
    raw = torch.load(path, weights_only=True)
    for change in (
        {"best_model": {name: torch.zeros_like(value) for name, value in raw["best_model"].items()}},
        {"iteration": 4},
        {"key": "another"},
        {"checksum": None},
    ):
        torch.save(raw | change, path)
        with pytest.raises(UserError, match=r"changed after it was written|no checksum"):
            load_checkpoint(path)


def test_a_pipe_in_the_place_of_a_checkpoint_is_refused(tmp_path):
    os.mkfifo(tmp_path / "c.pt")
    with pytest.raises(UserError, match="not a file"):
        load_checkpoint(tmp_path / "c.pt")


def test_another_seeds_checkpoint_in_the_place_of_a_trials_own_is_refused(tmp_path):
    asked = make_config(tmp_path, {"iterations": 2}, seeds=(0, 7))
    trials = planning.plan_trials(asked)
    for trial in trials:
        measuring.train_trial(trial, tmp_path, Quiet(), afresh=False)
    own, other = (trial.checkpoint(tmp_path) for trial in trials)
    own.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match="checkpoint of another training") as error:
        planning.plan_trials(asked)
    assert str(own) in str(error.value)


def test_more_iterations_than_were_asked_for_are_refused(tmp_path):
    asked = make_config(tmp_path, {"iterations": 2})
    (trial,) = planning.plan_trials(asked)
    measuring.train_trial(trial, tmp_path, Quiet(), afresh=False)
    path = trial.checkpoint(tmp_path)
    save_checkpoint(dataclasses.replace(load_checkpoint(path), iteration=10**9), path)
    with pytest.raises(UserError, match=f"at most the iterations of its trial, 2; {path} is of 1000000000"):
        measuring.train_trial(trial, tmp_path, Quiet(), afresh=False)


def test_where_training_went_on_is_kept_for_both(tmp_path):
    state = make_state()
    assert add_environment(state, {"torch": "1", "threads": 2}) == []
    assert add_environment(state, {"torch": "1", "threads": 2}) == []
    assert add_environment(state, {"torch": "2", "threads": 2}) == ["torch 2 in place of 1"]
    save_checkpoint(state, tmp_path / "c.pt")
    assert load_checkpoint(tmp_path / "c.pt").environments == [
        {"iteration": 3, "torch": "1", "threads": 2},
        {"iteration": 3, "torch": "2", "threads": 2},
    ]


def test_a_run_that_goes_on_elsewhere_says_so_and_its_record_names_both(tmp_path, monkeypatch):
    asked = make_config(tmp_path, {"iterations": 4, "validate_every": 2})
    (trial,) = planning.plan_trials(asked)

    class Stopped(BaseException):
        pass

    class Recording(Quiet):
        said: list[str] = []  # noqa: RUF012

        def say(self, message: str) -> None:
            self.said.append(message)

    honest = measuring.train

    def stopping(*args, **options):
        def step(done, note=""):
            if done == 2:
                raise Stopped

        return honest(*args, **{**options, "step": step})

    with monkeypatch.context() as patch:
        patch.setattr(measuring, "train", stopping)
        with pytest.raises(Stopped):
            measuring.train_trial(trial, tmp_path, Quiet(), afresh=False)
    monkeypatch.setattr(measuring, "engine_code", lambda: "another")
    (record,) = measuring.train_and_measure(trial, ["nll"], tmp_path, Recording(), afresh=False)
    first_, then = record.training["environments"]
    assert (first_["iteration"], then["iteration"], then["build"]) == (0, 2, "another")
    assert any("goes on elsewhere" in line and "build another in place of" in line for line in Recording.said)


def test_a_checkpoint_without_a_field_of_today_is_read(tmp_path):
    """As those that were written before validations were timed."""
    path = tmp_path / "old.pt"
    save_checkpoint(TrainingState(3, {}, {}, history=[{"iteration": 3, "loss": 1.0}]), path)
    content = torch.load(path, weights_only=True)
    del content["seconds_at"], content["checksum"]
    torch.save({**content, "checksum": checkpoints._checksum(content)}, path)
    state = load_checkpoint(path)
    assert (state.iteration, state.seconds_at) == (3, {})


@pytest.mark.parametrize("then", [{"fused": True}, {}])
def test_training_goes_on_where_updates_are_computed_in_another_way(then, tmp_path):
    method, path = make_method("protonets"), tmp_path / "c.pt"
    fused = torch.optim.Adam(method.parameters(), lr=0.01, weight_decay=0.0, **({} if then else {"fused": True}))
    sum(p.square().sum() for p in method.parameters()).backward()
    fused.step()
    save_checkpoint(TrainingState(1, method.state_dict(), fused.state_dict(), key="mine"), path)
    other = make_method("protonets")
    plain = torch.optim.Adam(other.parameters(), lr=0.01, weight_decay=0.0, **then)
    restore(load_checkpoint(path, "mine"), path, other, plain)
    assert bool(plain.param_groups[0]["fused"]) == bool(then)
    for model, optimizer in ((method, fused), (other, plain)):
        optimizer.zero_grad()
        sum(p.square().sum() for p in model.parameters()).backward()
        optimizer.step()
    for ours, theirs in zip(method.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)

"""Which model of a training a score is of."""

import copy

import pytest
import torch

from builders import make_config
from mlpip_bench import registry
from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.evaluation.predict import predict, score
from mlpip_bench.execution import measuring
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.reporting.tables.scores import wide_tables
from mlpip_bench.training.checkpoints import TrainingState
from mlpip_bench.utils.progress import Quiet
from mlpip_bench.utils.settings import key_of


def states_of(method, number: int):
    """So many models, no two of which predict the same."""
    found = []
    for seed in range(number):
        torch.manual_seed(seed)
        state = copy.deepcopy(method.state_dict())
        found.append({name: value + 0.3 * torch.randn_like(value) for name, value in state.items()})
    return found


@pytest.mark.parametrize(("by_accuracy", "by_nll"), [(1, 2), (2, 2), (1, 3), (3, 2), (3, 3)])
def test_accuracy_and_nll_are_of_the_models_that_each_chose(by_accuracy, by_nll, tmp_path, monkeypatch):
    config = make_config(tmp_path, settings={"iterations": 3})
    (trial,) = plan_trials(config)
    method, streams = trial.build_method(), trial.streams()
    models = dict(enumerate(states_of(method, 4)))
    trained = TrainingState(
        3, models[3], {}, models[by_accuracy], by_accuracy, 0.5, [],
        best_by={"nll": {"model": models[by_nll], "iteration": by_nll, "score": -1.0}},
    )  # fmt: skip
    monkeypatch.setattr(measuring, "train_trial", lambda *_, **__: (method, trained, streams))
    tested = []
    original = measuring.Evaluation

    def counted(method, model, *rest):
        tested.append(model)
        return original(method, model, *rest)

    monkeypatch.setattr(measuring, "Evaluation", counted)
    protocols = ("accuracy", "nll", "calibration")
    records = list(measuring.train_and_measure(trial, protocols, tmp_path, Quiet(), afresh=False))

    def expected(metric, iteration: int):
        method.load_state_dict(models[iteration])
        return score(metric, predict(method, streams["test"], trial.plan.test_tasks))

    found = {(s.metric, s.model): s for record in records for s in record.scores}
    assert len(found) == 8  # four metrics of two models, each once
    for metric, iteration in ((ACCURACY, by_accuracy), (NLL, by_nll)):
        assert list(found[metric.name, "best"].per_task) == expected(metric, iteration)
        assert list(found[metric.name, "last"].per_task) == expected(metric, 3)
    choices = {name: s.chosen_by for (name, model), s in found.items() if model == "best"}
    assert choices == {"accuracy": "accuracy", "nll": "nll", "brier": "nll", "ece": "nll"}
    assert {s.chosen_by for (_, model), s in found.items() if model == "last"} == {""}
    assert len(tested) == len({by_accuracy, by_nll, 3})  # one model is measured once
    assert records[0].training["chosen"] == {"accuracy": by_accuracy, "nll": by_nll}
    titles = {table.name: table.title for table in wide_tables(records, [])}
    assert titles["nll"].endswith("model: best on validation, by nll)")
    assert titles["accuracy"].endswith("model: best on validation, by accuracy)")
    assert titles["nll_last"].endswith("model: last iteration of training)")


@pytest.mark.parametrize("predictions", [False, True])
@pytest.mark.parametrize("best", [2, 3])
def test_what_is_measured_is_given_before_the_next_protocol_begins(best, predictions, tmp_path, monkeypatch):
    (trial,) = plan_trials(make_config(tmp_path, settings={"iterations": 3}))
    method = trial.build_method()
    models = dict(enumerate(states_of(method, 4)))
    trained = TrainingState(3, models[3], {}, models[best], best, 0.5, [])
    monkeypatch.setattr(measuring, "train_trial", lambda *_, **__: (method, trained, trial.streams()))
    begun, original = [], measuring.scores_of

    def noted(protocol, evaluation):
        begun.append(type(protocol).__name__)
        return original(protocol, evaluation)

    monkeypatch.setattr(measuring, "scores_of", noted)
    records = measuring.train_and_measure(
        trial, ("nll", "versatility"), tmp_path, Quiet(), afresh=False, predictions=predictions
    )
    first = next(records)
    assert first.protocol == "nll"
    assert begun[-1] == "NegativeLogLikelihood"  # a kill from here on loses nothing of it
    assert (first.predictions is not None) == predictions
    (second,) = records
    assert second.protocol == "versatility"
    assert first.predictions == second.predictions  # one file of both


def test_what_is_off_in_training_is_in_no_key_and_no_record(tmp_path):
    (plain,), (spelled,), (other,) = (
        plan_trials(make_config(tmp_path, settings=settings))
        for settings in ({}, {"optimizer": "Adam", "clip_norm": 0.0, "warmup": 0}, {"clip_norm": 1.0})
    )
    assert plain.key == spelled.key != other.key
    assert plain.training_key == spelled.training_key != other.training_key
    assert plain.config == spelled.config
    assert not set(plain.plan.OPTIONAL) & set(plain.config)
    assert other.config["clip_norm"] == 1.0
    for name in ("versa", "amortized_vi", "nonamortized_vi"):
        assert key_of(registry.method(name).Settings()) == {}


def test_too_little_memory_is_said_with_what_takes_less():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)  # more than there are addresses for
    message = measuring.message_of(error.value)
    assert message.startswith("it takes more memory than there is; fewer samples, a smaller tasks_per_batch")
    assert "4611686018427387904 bytes" in message
    assert measuring.message_of(RuntimeError("other")) == "RuntimeError: other"

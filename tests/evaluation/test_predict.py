"""Predictions become scores: of targets that have their shape, and without a log-loss where a probability is 0."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from mlpip_bench.methods.protonets import ProtoNets
from torch.distributions import Categorical, Normal

from builders import CPU, backbone, make_config, make_method, make_pool
from mlpip_bench.evaluation import metrics
from mlpip_bench.evaluation import predict as predicting
from mlpip_bench.evaluation.metrics import ACCURACY, BRIER, NLL, Metric
from mlpip_bench.evaluation.predict import predict, score
from mlpip_bench.execution.measuring import train_and_measure
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.inference.distributions import Delta, to_float64
from mlpip_bench.inference.method import Method
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import TaskStream
from mlpip_bench.utils.errors import TrialError
from mlpip_bench.utils.progress import Quiet
from mlpip_bench.utils.timers import peak_bytes

ALL = {name: m for name, m in vars(metrics).items() if isinstance(m, Metric)}


@pytest.mark.parametrize("name", ALL)
def test_targets_of_another_shape_are_refused_by_every_metric(name):
    if ALL[name] in (metrics.MSE, metrics.SSIM, metrics.SSIM_RANGE_2):
        predictive, y = Delta(torch.rand(2, 3, 1, 8, 8), event_dim=3), torch.rand(2, 3, 1, 8, 8)
    elif ALL[name] is metrics.SQUARED_ERROR:
        predictive, y = Normal(torch.randn(2, 3), 1.0), torch.randn(2, 3)
    else:
        predictive, y = Categorical(logits=torch.randn(2, 3, 5, dtype=torch.float64)), torch.randint(5, (2, 3))
    assert ALL[name].score(predictive, y).shape == (2,)
    for wrong in (y.unsqueeze(-1), y[:1], y[:, :1], y[0], y.transpose(0, 1)):
        with pytest.raises(ValueError, match=f"targets of {ALL[name].name} must have the shape of the predictive"):
            ALL[name].score(predictive, wrong)


def test_a_metric_that_gives_no_score_a_task_is_refused():
    metric = Metric("mine", "fraction", "higher", lambda predictive, y: (predictive.probs.argmax(-1) == y).double())
    with pytest.raises(ValueError, match=r"mine must give one score a task, 2; got the shape \(2, 3\)"):
        metric.score(Categorical(logits=torch.randn(2, 3, 5)), torch.zeros(2, 3, dtype=torch.long))


PROBS = torch.tensor([[[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]], [[0.2, 0.2, 0.6]]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given", ["probs", "logits"])
def test_a_probability_of_0_for_the_right_class_is_one_rule_for_probabilities_and_logits(given, dtype):
    value = PROBS.to(dtype) if given == "probs" else PROBS.to(dtype).log()
    predictive = to_float64(Categorical(**{given: value}))
    wrong, fine = torch.tensor([[0], [1], [2]]), torch.tensor([[0], [0], [2]])
    with pytest.raises(TrialError, match=r"nll is infinite on task 1, and on 0 others of 3.* exactly 0"):
        score(NLL, [(predictive, wrong)])
    assert score(ACCURACY, [(predictive, wrong)]) == [1.0, 0.0, 1.0]
    assert score(BRIER, [(predictive, wrong)]) == pytest.approx([0.5, 2.0, 0.24], rel=1e-6)
    assert score(NLL, [(predictive, fine)]) == pytest.approx([-math.log(0.5), 0.0, -math.log(0.6)], rel=1e-6)


class Sure(ProtoNets):
    """Puts all its probability on the nearest class."""

    given = "probs"

    def predictive(self, q, query_x):
        sure = super().predictive(q, query_x)
        if self.training:
            return sure
        one = torch.nn.functional.one_hot(sure.logits.argmax(-1), sure.logits.shape[-1]).to(query_x)
        return Categorical(probs=one) if self.given == "probs" else Categorical(logits=one.log())


@pytest.mark.parametrize("given", ["probs", "logits"])
def test_a_model_that_rules_out_what_came_keeps_its_accuracy(given, tmp_path):
    plugin = type("Sure", (Sure,), {"given": given})
    config = make_config(tmp_path, methods=("sure",), protocols=("accuracy", "nll"))
    (trial,) = plan_trials(config, methods={"sure": plugin})
    records = train_and_measure(trial, ("accuracy", "nll"), tmp_path, Quiet(), afresh=False)
    record = next(records)
    assert record.protocol == "accuracy"
    assert all("nll" not in entry and 0 <= entry["accuracy"] <= 1 for entry in record.training["history"])
    with pytest.raises(TrialError, match="protocol nll: nll is infinite on task"):
        next(records)


def large_task(way: int) -> tuple[Method, TaskStream]:
    method = make_method("protonets", way=way, spec=backbone("conv4", (1, 28, 28), blocks=2, channels=16))
    images = np.random.default_rng(0).integers(256, size=(way, 11, 1, 28, 28)).astype(np.uint8)
    return method, TaskStream(make_pool(images), TaskShape(way, 1, 10), "test", split="test")


@pytest.mark.parametrize("norm", ["metabn", "transductive"])
def test_queries_of_a_large_task_in_parts_have_the_predictions_of_all_at_once(monkeypatch, norm):
    method, stream = large_task(8)
    method.problem = dataclasses.replace(method.problem, norm=norm)
    ((whole, _),) = predict(method, stream, 1)
    monkeypatch.setattr(predicting, "POINTS_AT_ONCE", 30)
    ((parts, _),) = predict(method, stream, 1)
    assert parts.logits.shape == whole.logits.shape == (1, 80, 8)
    torch.testing.assert_close(parts.logits, whole.logits, rtol=1e-5, atol=1e-6)


def test_memory_does_not_grow_with_the_queries_of_a_task_beyond_a_part_of_them(monkeypatch):
    method, stream = large_task(100)
    whole = peak_bytes(lambda: predict(method, stream, 1), CPU)
    monkeypatch.setattr(predicting, "POINTS_AT_ONCE", 100)
    assert peak_bytes(lambda: predict(method, stream, 1), CPU) < 0.5 * whole

"""What the choice of fixed points is worth stands with the scores; what is done to a test task is compiled once."""

import dataclasses
import statistics

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from builders import make_method, make_pool
from mlpip_bench.evaluation import protocol
from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.evaluation.predict import ZeroProbabilityError, predict, score
from mlpip_bench.evaluation.protocol import SCRAMBLES, Evaluation, compiled_for_tests
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import TaskStream
from mlpip_bench.utils.numerics import Numerics


def tasks_of_test() -> TaskStream:
    images = np.random.default_rng(0).integers(0, 256, (9, 6, 1, 8, 8))
    return TaskStream(make_pool(images.astype(np.uint8)), TaskShape(3, 1, 2), "test")


def test_means_under_several_scrambles_are_recorded():
    method, stream = make_method("versa"), tasks_of_test()
    nll, accuracy = Evaluation(method, "best", stream, 6).scores((NLL, ACCURACY))
    means = nll.detail["scramble_means"]
    assert len(means) == len(accuracy.detail["scramble_means"]) == SCRAMBLES == 3
    assert means[0] == pytest.approx(statistics.fmean(nll.per_task))  # the first is the one that is reported
    for scramble, mean in enumerate(means):
        other = method.with_settings(dataclasses.replace(method.settings, scramble=scramble))
        assert mean == pytest.approx(statistics.fmean(score(NLL, predict(other, stream, 6))))
    assert len(set(means)) == 3
    assert max(means) - min(means) < 1e-2


@pytest.mark.parametrize("name", ["versa", "protonets"])
def test_of_large_tasks_scores_are_kept_and_no_predictions(name, monkeypatch):
    method, stream = make_method(name), tasks_of_test()
    expected = Evaluation(method, "best", stream, 6).scores((NLL, ACCURACY), condition={"way": 3})
    monkeypatch.setattr(protocol, "MOST_KEPT", 0)
    large = Evaluation(method, "best", stream, 6)
    assert large.scores((NLL, ACCURACY), condition={"way": 3}) == expected
    assert not {"predictions", "scrambled"} & vars(large).keys()


@pytest.mark.parametrize("name", ["versa", "protonets"])
def test_all_that_is_kept_of_test_tasks_is_counted(name, monkeypatch):
    method, stream = make_method(name), tasks_of_test()
    evaluation = Evaluation(method, "best", stream, 6)
    evaluation.scores((NLL, ACCURACY))
    passes = (evaluation.predictions, *evaluation.scrambled)
    tensors = [t for kept in passes for predictive, _ in kept for t in vars(predictive).values() if torch.is_tensor(t)]
    size = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
    for most, is_large in ((size, False), (size - 1, True)):
        monkeypatch.setattr(protocol, "MOST_KEPT", most)
        again = Evaluation(method, "best", stream, 6)
        again.scores((NLL,))
        assert ("predictions" not in vars(again)) == is_large


def test_of_large_tasks_a_score_that_is_not_finite_is_refused_too(monkeypatch):
    method = make_method("protonets")
    monkeypatch.setattr(protocol, "MOST_KEPT", 0)
    certain = Categorical(probs=torch.eye(3)[torch.zeros(1, 6, dtype=torch.long)].expand(6, -1, -1))
    monkeypatch.setattr(type(method), "predictive", lambda _, q, x: certain.expand(x.shape[:2]))
    with pytest.raises(ZeroProbabilityError, match="nll is infinite on task 0"):
        Evaluation(method, "best", tasks_of_test(), 6).scores((NLL,))


def test_a_method_without_fixed_points_has_no_such_detail():
    (nll,) = Evaluation(make_method("protonets"), "best", tasks_of_test(), 4).scores((NLL,))
    assert not nll.detail


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("name", ["protonets", pytest.param("maml", marks=pytest.mark.slow)])
def test_a_test_task_of_one_shape_and_precision_is_compiled_once(name, monkeypatch):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, mode: compiler(function, backend="eager"))
    torch._dynamo.reset()
    batch, method = tasks_of_test().batch(0, 2), make_method(name).eval()
    logits: dict[str, torch.Tensor] = {}
    for precision in ("float32", "bf16"):
        numerics = Numerics(precision, compile="default")
        model, graphs = compiled_for_tests(method, numerics), []
        with numerics.applied(), torch.no_grad():
            for _ in range(3):
                predictive = model.predictive(model.amortize(batch.support), batch.query.x)
                graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        assert graphs[0] > 0
        assert graphs[1:] == graphs[:1] * 2
        logits[precision] = predictive.logits
    distance = (logits["bf16"] - logits["float32"]).abs().max()
    assert 0 < distance < 0.1  # each in its own precision, also where the other was compiled before

"""What the choice of fixed points is worth stands with the scores."""

import dataclasses
import statistics

import numpy as np
import pytest

from builders import make_method, make_pool
from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.evaluation.predict import predict, score
from mlpip_bench.evaluation.protocol import SCRAMBLES, Evaluation
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import TaskStream


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


def test_a_method_without_fixed_points_has_no_such_detail():
    (nll,) = Evaluation(make_method("protonets"), "best", tasks_of_test(), 4).scores((NLL,))
    assert not nll.detail

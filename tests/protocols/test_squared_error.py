"""Squared error and predictive bands, against numbers computed by hand."""

import numpy as np
import pytest
import torch
from mlpip_bench.methods.exact_gp import ExactGP
from mlpip_bench.protocols.squared_error import GRID, SHOWN, SquaredError
from torch.distributions import Normal

from builders import CPU, backbone
from mlpip_bench.evaluation.protocol import Evaluation
from mlpip_bench.inference.distributions import MonteCarloMixture
from mlpip_bench.inference.method import Problem
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.gaussian_process import GaussianProcess
from mlpip_bench.tasks.kernels import RBF
from mlpip_bench.tasks.regression import RegressionStream
from mlpip_bench.utils.settings import NoSettings

KERNEL = RBF(0.5)
STREAM = RegressionStream(GaussianProcess(KERNEL, 0.1), TaskShape(1, 5, 8), CPU, "some", "test")
PROBLEM = Problem(backbone("mlp", (1, 1, 1)), "metabn", 1, "regression", 0.1, kernel=KERNEL)


class TwoModes(ExactGP):
    """A mixture of two Gaussians, one 1 above and one 1 below the exact mean."""

    def predictive(self, q, query_x):
        exact = super().predictive(q, query_x)
        means = torch.stack([exact.mean - 1, exact.mean + 1])
        return MonteCarloMixture(Normal(means, exact.stddev.expand_as(means)))


def measured(plugin=ExactGP, tasks: int = 30):
    (scores,) = SquaredError().measure(Evaluation(plugin(PROBLEM, NoSettings()), "best", STREAM, tasks))
    return scores


@pytest.mark.parametrize("plugin", [ExactGP, TwoModes])
def test_the_error_is_that_of_the_mean(plugin):
    scores = measured(plugin)
    batch = STREAM.batch(0, 30)
    method = ExactGP(PROBLEM, NoSettings())
    mean = method.predictive(method.amortize(batch.support), batch.query.x).mean
    by_hand = ((mean - batch.query.y).numpy() ** 2).mean(1)
    np.testing.assert_allclose(scores.per_task, by_hand, rtol=1e-4, atol=1e-6)
    assert (scores.metric, scores.unit, scores.better) == ("mse", "squared error per query", "lower")


def test_bands_are_those_of_a_new_observation_over_the_range():
    detail = {name: np.asarray(values) for name, values in measured(TwoModes).detail.items()}
    batch = STREAM.batch(0, SHOWN)
    x = np.linspace(-2, 2, GRID)
    np.testing.assert_allclose(detail["band_x"], x, atol=1e-4)
    np.testing.assert_allclose(detail["band_support_y"], batch.support.y.flatten(), atol=1e-4)
    np.testing.assert_allclose(detail["band_query_x"], batch.query.x.flatten(), atol=1e-4)
    method = ExactGP(PROBLEM, NoSettings())
    grid = torch.linspace(-2, 2, GRID).expand(SHOWN, -1)[..., None, None, None]
    exact = method.predictive(method.amortize(batch.support), grid)
    np.testing.assert_allclose(detail["band_mean"], exact.mean.flatten(), atol=1e-4)
    np.testing.assert_allclose(detail["band_std"], (exact.variance + 1).sqrt().flatten(), atol=1e-4)


def test_of_fewer_tasks_all_are_kept():
    assert len(measured(tasks=2).detail["band_mean"]) == 2 * GRID

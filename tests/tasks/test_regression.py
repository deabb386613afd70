"""Models of functions: their draws against what the models say, and kernels against scikit-learn's."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import kernels as sklearn_kernels

from builders import CPU
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.gaussian_process import GaussianProcess
from mlpip_bench.tasks.kernels import RBF, LinearKernel, Matern, Periodic
from mlpip_bench.tasks.regression import RegressionStream
from mlpip_bench.tasks.sinusoids import Sinusoids

KERNELS = {
    "rbf": (RBF(0.3), sklearn_kernels.RBF(0.3)),
    "matern": (Matern(0.3), sklearn_kernels.Matern(0.3, nu=2.5)),
    "periodic": (Periodic(0.3), sklearn_kernels.ExpSineSquared(2 * math.pi * 0.3, 1.0)),
    "linear": (LinearKernel(), sklearn_kernels.DotProduct(sigma_0=1.0)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_that_of_scikit_learn(name):
    ours, theirs = KERNELS[name]
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-2, 2, (7, 1)), rng.uniform(-2, 2, (5, 1))
    b[0] = a[0]  # where the distance is 0
    np.testing.assert_allclose(ours(torch.from_numpy(a), torch.from_numpy(b)), theirs(a, b), rtol=1e-12)


def test_a_periodic_kernel_is_the_rbf_at_short_distances_and_repeats():
    x = torch.tensor([[0.0], [0.01], [1.0]], dtype=torch.float64)
    near, far = Periodic(0.3)(x, x), RBF(0.3)(x, x)
    assert float(1 - near[0, 1]) == pytest.approx(float(1 - far[0, 1]), rel=1e-3)
    assert float(near[0, 2]) == pytest.approx(1.0)


def test_sine_curves_have_the_amplitudes_and_phases_of_the_paper():
    """By least squares on many points with little noise, an independent way to them; then their distributions."""
    rng = np.random.default_rng(0)
    x, y = Sinusoids(0.01).draw(rng, 2000, 60)
    assert x.min() >= -5
    assert x.max() <= 5
    assert stats.kstest(x.ravel(), stats.uniform(-5, 10).cdf).pvalue > 1e-3
    design = np.stack([np.sin(x[..., 0]), -np.cos(x[..., 0])], -1)  # a sin(x - p) = a cos(p) sin(x) - a sin(p) cos(x)
    weights = np.stack([np.linalg.lstsq(d, t, rcond=None)[0] for d, t in zip(design, y, strict=True)])
    residual = y - np.einsum("tpw,tw->tp", design, weights)
    assert residual.std() == pytest.approx(0.01 * math.sqrt(58 / 60), rel=0.02)
    amplitude, phase = np.hypot(*weights.T), np.arctan2(weights[:, 1], weights[:, 0])
    assert stats.kstest(amplitude, stats.uniform(0.1, 4.9).cdf).pvalue > 1e-3
    assert stats.kstest(phase, stats.uniform(0, math.pi).cdf).pvalue > 1e-3
    assert abs(stats.spearmanr(amplitude, phase).statistic) < 4 / math.sqrt(2000)


def test_curves_of_a_gaussian_process_have_its_covariance():
    """Whitened by the covariance that scikit-learn gives, targets are independent and standard normal."""
    ours, theirs = KERNELS["matern"]
    x, y = GaussianProcess(ours, 0.2).draw(np.random.default_rng(0), 3000, 6)
    white = np.stack(
        [
            np.linalg.solve(np.linalg.cholesky(theirs(each) + 0.04 * np.eye(6)), target)
            for each, target in zip(x, y, strict=True)
        ]
    )
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-3
    np.testing.assert_allclose(np.cov(white.T), np.eye(6), atol=5 * math.sqrt(2 / 3000))


@pytest.mark.parametrize("model", [Sinusoids(0.1), GaussianProcess(RBF(0.25), 0.1)])
def test_tasks_do_not_depend_on_the_batch_and_cover_the_range(model):
    stream = RegressionStream(model, TaskShape(1, 5, 15), CPU, "some", "test")
    whole = stream.batch(0, 200)
    part = stream.batch(120, 30)
    for a, b in ((part.support, whole.support), (part.query, whole.query)):
        assert torch.equal(a.x, b.x[120:150])
        assert torch.equal(a.y, b.y[120:150])
    for points in (whole.support, whole.query):
        assert points.x.shape[2:] == (1, 1, 1)
        assert float(points.x.min()) < 0.98 * model.low
        assert float(points.x.max()) > 0.98 * model.high


def test_another_model_has_another_fingerprint():
    models = [Sinusoids(0.1), Sinusoids(0.2), *(GaussianProcess(KERNELS[name][0], 0.1) for name in ("rbf", "matern"))]
    models += [GaussianProcess(RBF(0.2), 0.1), GaussianProcess(RBF(0.3), 0.2)]
    assert len({model.fingerprint for model in models}) == len(models)

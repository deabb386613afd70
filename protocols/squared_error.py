"""Squared error: that of the predictive mean of curves, and the predictive bands of a few test tasks.

1/M sum_m (E[y | x_m, D] - y_m)^2. The targets have noise, so that a perfect predictor has its variance, noise_std^2:
MAML's paper, without noise, reports the error less that. Means and standard deviations over the whole range of x are
kept of the first test tasks, with their points, for the figure ``curves``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlpip_bench.benches.regression import CurveFamily
from mlpip_bench.evaluation.metrics import SQUARED_ERROR
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.inference.distributions import to_float64
from mlpip_bench.records.record import Scores
from mlpip_bench.tasks.regression import Curves, RegressionStream

SHOWN = 4
"""Test tasks, the first ones, whose predictives are kept for the figure."""

GRID = 81
"""Inputs at which they are kept."""


class SquaredError(EvalProtocol):
    """Squared error of the predictive mean on the bench's fixed test tasks."""

    description = "squared error of the predictive mean; keeps the predictive bands of some tasks for a figure"
    metrics = (SQUARED_ERROR,)
    handles = ("regression",)
    families = (CurveFamily,)
    default = True

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One score a test task."""
        (scores,) = evaluation.scores(self.metrics)
        return [evaluation.labeled(SQUARED_ERROR, scores.per_task, detail=_bands(evaluation))]


def _bands(evaluation: Evaluation) -> dict[str, tuple[float, ...]]:
    """Mean and standard deviation of a new observation over a grid, and the points, of the tasks that are shown."""
    method, stream = evaluation.method.eval(), evaluation.stream
    assert isinstance(stream, RegressionStream)  # that of a family of curves
    assert isinstance(stream.model, Curves)
    batch = stream.batch(0, min(SHOWN, evaluation.tasks))
    support, query = batch.support, batch.query
    grid = torch.linspace(stream.model.low, stream.model.high, GRID, device=stream.device)
    with torch.no_grad():
        q = method.amortize(support)
        inputs = grid.expand(support.tasks, -1)[..., None, None, None].clone()
        predictive = to_float64(method.predictive(q, inputs))
    shown = {"x": grid, "mean": predictive.mean, "std": predictive.variance.sqrt()}
    points = {"support_x": support.x, "support_y": support.y, "query_x": query.x, "query_y": query.y}
    return {f"band_{name}": _rounded(values) for name, values in (shown | points).items()}


def _rounded(values: Tensor) -> tuple[float, ...]:
    """To what a figure can show."""
    return tuple(round(value, 4) for value in values.flatten().tolist())

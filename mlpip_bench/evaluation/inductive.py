"""Whether a model predicts queries without sight of one another: measured, not declared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlpip_bench.evaluation.predict import POINTS_AT_ONCE, single_query, some_queries
from mlpip_bench.inference.distributions import to_float64, where_float64_is
from mlpip_bench.inference.method import Method
from mlpip_bench.tasks.batch import Labeled, TaskBatch


def is_inductive(method: Method[Any], batch: TaskBatch, queries: int = 5, tolerance: float = 1e-3) -> bool:
    """Whether queries have the same predictions together and one at a time.

    Measured, not declared: a transductive method sees the other queries, for example through batch
    norm, and its accuracy then depends on how many are asked at once.

    Args:
        method: the trained method.
        batch: one or more test tasks.
        queries: how many queries of each task are fed one at a time.
        tolerance: largest difference of a probability, of a density, or of a pixel, that rounding may explain.
    """
    was_training = method.training
    method.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        q = method.amortize(batch.support)

        def answers(query: Labeled) -> Tensor:
            """Probabilities of all classes; the image, in reconstruction, where densities underflow; else a density."""
            predictive = method.predictive(q, query.x)
            if method.problem.kind == "reconstruction":
                return predictive.mean
            if method.problem.kind == "classification":
                probabilities: Tensor = to_float64(predictive).probs  # type: ignore[attr-defined]  # all over classes have
                return probabilities
            density: Tensor = to_float64(predictive).log_prob(where_float64_is(query.y)).exp()
            return density

        asked = some_queries(batch.query, 0, POINTS_AT_ONCE)  # of a large task a part, which has as many others to see
        together = answers(asked)
        worst = 0.0
        for point in range(min(queries, asked.y.shape[1])):
            difference = together[:, point : point + 1] - answers(single_query(asked, point))
            worst = max(worst, float(difference.abs().max()))
    method.train(was_training)
    return worst <= tolerance

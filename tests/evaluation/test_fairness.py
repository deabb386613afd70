"""What a method could learn from the way in which it is asked: the order of the queries."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from builders import make_method, make_pool
from mlpip_bench import registry
from mlpip_bench.evaluation.metrics import ACCURACY
from mlpip_bench.evaluation.protocol import Evaluation
from mlpip_bench.inference.method import Problem
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import HeldOutStream, TaskStream
from mlpip_bench.testing.conformance import check_method

WAY, QUERIES, TASKS = 20, 15, 100


class ReadsPositions(registry.method("protonets")):
    """Where queries may see each other, it gives query ``i`` of ``n`` the class ``i way // n``, and looks at none."""

    def predictive(self, q, query_x):
        if self.training or self.problem.norm != "transductive":
            return super().predictive(q, query_x)
        way, points = q.psi.mean.shape[1], query_x.shape[1]
        classes = (torch.arange(points) * way // points).expand(query_x.shape[:2])
        return Categorical(logits=100.0 * torch.nn.functional.one_hot(classes, way).to(query_x), validate_args=False)


def cheat(way: int = WAY) -> ReadsPositions:
    honest = make_method("protonets", "transductive", way)
    return ReadsPositions(Problem(honest.problem.backbone, "transductive", way), honest.settings)


@pytest.mark.parametrize("held_out", [False, True])
def test_a_method_that_reads_classes_off_positions_guesses(held_out):
    pool = make_pool(np.random.default_rng(0).integers(0, 256, (30, 20, 1, 8, 8)).astype(np.uint8))
    stream = TaskStream(pool, TaskShape(WAY, 1, QUERIES), "omni20w1s", "test")
    asked = HeldOutStream(stream, pool, QUERIES, "omni20w1s", "held out", split="test") if held_out else stream
    (found,) = Evaluation(cheat(), "best", asked, TASKS).scores([ACCURACY])
    # The variance of the number of points that a random order puts where their class is looked for (Hoeffding 1951).
    points = WAY * QUERIES
    variance = QUERIES**2 * (WAY - 1) / (points - 1)
    error = (variance / TASKS) ** 0.5 / points
    assert abs(float(np.mean(found.per_task)) - 1 / WAY) < 4 * error


def test_the_conformance_suite_finds_it_by_the_order_of_the_queries_alone():
    results = {result.name: result for result in check_method(ReadsPositions)}
    failed = {name: result.detail for name, result in results.items() if result.status == "failed"}
    assert set(failed) == {"query_order"}
    assert failed["query_order"].startswith("norm transductive, queries in another order: they differ by 1")

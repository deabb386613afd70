"""Versatility: one trained model at other ways and shots than it was trained for (paper, section 5.2, Fig. 5).

The condition ``way`` is 5, 10, 20, 30, 40, 50, 60, 80 and 100, as far as there are test classes, at the shot
of training; ``way`` and ``shot`` are 5-way at 1, 2, 3, 4, 5, 6, 8, 10, 12 and 15 shots, as the paper varies
them. Queries per class are as many as the largest shot leaves of a class's images, ``--queries`` at most.
Tasks are drawn from the test classes by streams that know nothing of the model, so models of other benches of
the data set see the same ones. For methods whose way and shots may differ between training and test.
"""

from __future__ import annotations

from typing import Any

from mlpip_bench.benches.images import ImageClassification
from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.inference.method import Method
from mlpip_bench.records.record import Scores
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import PoolStream

WAYS = (5, 10, 20, 30, 40, 50, 60, 80, 100)
SHOTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15)
SHOT_WAY = 5
"""Way at which the shot is varied."""


class Versatility(EvalProtocol):
    """Accuracy and NLL at ways of 5 to 100 and shots of 1 to 15, without retraining."""

    description = "accuracy and NLL at ways of 5 to 100 and shots of 1 to 15, without retraining"
    metrics = (ACCURACY, NLL)
    families = (ImageClassification,)

    def applies(self, plugin: type[Method[Any]], settings: Any) -> bool:  # noqa: ARG002
        """Methods for which way and shots at test may differ from training."""
        return "way_and_shot" not in plugin.xfail_checks

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One score a test task for each way and shot; always as many queries per class as the largest shot leaves."""
        stream = evaluation.stream
        assert isinstance(stream, PoolStream)  # that of the image benches
        data, shape = stream.pool.data, stream.shape
        queries = min(shape.queries, int(data.counts.min()) - max(SHOTS))
        trained_shot = max(shape.shots_per_class)
        conditions = [{"way": way} for way in WAYS if way <= stream.pool.most_ways]
        conditions += [{"way": SHOT_WAY, "shot": shot} for shot in SHOTS]
        scores: list[Scores] = []
        for condition in conditions:
            way, shot = condition["way"], condition.get("shot", trained_shot)
            other = stream.reshaped(TaskShape(way, shot, queries, shape.concentration), "versatility", f"{way}w{shot}s")
            scores += evaluation.on(other).scores(self.metrics, condition=condition)
        return scores

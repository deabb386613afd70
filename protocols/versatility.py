"""Versatility: one trained model at other ways and shots than it was trained for (paper, section 5.2, Fig. 5).

The condition ``way`` is 5, 10, 20, 30, 40, 50, 60, 80 and 100, as far as there are test classes, at the shot
of training; ``way`` and ``shot`` are 5-way at 1, 2, 3, 4, 5, 6, 8, 10, 12 and 15 shots, as far as classes have
images, as the paper varies them. The settings ``ways`` and ``shots`` name others
(``--set versatility.ways=20,100,1000``). Queries per class are as many as the largest shot leaves of a class's
images, ``--queries`` at most. Tasks are drawn from the test classes by streams that know nothing of the model,
so models of other benches of the data set see the same ones. For methods whose way and shots may differ between
training and test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mlpip_bench.benches.images import ImageClassification
from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.inference.method import Method
from mlpip_bench.records.record import Scores
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import PoolStream
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.utils.errors import UserError

SHOT_WAY = 5
"""Way at which the shot is varied; as many as there are test classes, where these are fewer."""


@dataclass(frozen=True)
class Settings:
    """What is asked for.

    Attributes:
        ways: at the shot of training.
        shots: at 5 ways; none for none.
    """

    ways: tuple[int, ...] = (5, 10, 20, 30, 40, 50, 60, 80, 100)
    shots: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15)

    def __post_init__(self) -> None:
        if not self.ways or min(self.ways) < 2 or min((1, *self.shots)) < 1:
            raise ValueError(f"ways are from 2 up and shots from 1 up; got {self.ways} and {self.shots}")
        for name, values in (("ways", self.ways), ("shots", self.shots)):
            if len(set(values)) < len(values):
                raise ValueError(f"each of the {name} is measured once; got {values}")


class Versatility(EvalProtocol):
    """Accuracy and NLL at ways of 5 to 100 and shots of 1 to 15, without retraining."""

    description = "accuracy and NLL at ways of 5 to 100 and shots of 1 to 15, without retraining"
    metrics = (ACCURACY, NLL)
    families = (ImageClassification,)
    Settings: ClassVar = Settings

    def applies(self, plugin: type[Method[Any]], settings: Any) -> bool:  # noqa: ARG002
        """Methods for which way and shots at test may differ from training."""
        return "way_and_shot" not in plugin.xfail_checks

    def check(self, test: Stream) -> None:
        """Ways and shots that were asked for must be there; of the usual ones some may be missing."""
        pool = _of_pool(test).pool
        for name, most in (("ways", pool.most_ways), ("shots", int(pool.counts.min()) - 1)):
            asked, usual = getattr(self.settings, name), getattr(Settings, name)
            if asked != usual and max(asked, default=0) > most:
                raise UserError(
                    f"{name} of versatility are at most {most} here, what the test classes allow; got {max(asked)}. "
                    f"Use smaller ones (--set versatility.{name}=...)."
                )

    def note(self, test: Stream) -> str:
        """Fewer queries than asked, ways and shots that there are not."""
        asked, (ways, shots, queries) = _of_pool(test).shape.queries, self._conditions(test)
        parts = [f"{queries} queries a class, which the largest shot leaves, not {asked}"] if queries < asked else []
        for name, there in (("ways", ways), ("shots", shots)):
            if missing := [value for value in getattr(self.settings, name) if value not in there]:
                parts.append(f"no {name} {', '.join(map(str, missing))}, which the test classes do not allow")
        return "; ".join(parts)

    def _conditions(self, test: Stream) -> tuple[list[int], list[int], int]:
        """Ways and shots that there can be, and queries per class: as many as the largest shot leaves."""
        stream = _of_pool(test)
        images = int(stream.pool.counts.min())
        ways = [way for way in self.settings.ways if way <= stream.pool.most_ways]
        shots = [shot for shot in self.settings.shots if shot < images]
        return ways, shots, min(stream.shape.queries, images - max([*stream.shape.shots_per_class, *shots]))

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One score a test task for each way and shot."""
        stream = _of_pool(evaluation.stream)
        pool, shape = stream.pool, stream.shape
        trained_shot = max(shape.shots_per_class)
        ways, shots, queries = self._conditions(stream)
        conditions = [{"way": way} for way in ways]
        conditions += [{"way": min(SHOT_WAY, pool.most_ways), "shot": shot} for shot in shots]
        scores: list[Scores] = []
        for condition in conditions:
            way, shot = condition["way"], condition.get("shot", trained_shot)
            asked = TaskShape(way, shot, queries, shape.concentration)
            other = stream.reshaped(asked, "versatility", f"{way}w{shot}s")
            scores += evaluation.on(other).scores(self.metrics, condition=condition)
        return scores


def _of_pool(stream: Stream) -> PoolStream:
    assert isinstance(stream, PoolStream)  # that of the image benches
    return stream

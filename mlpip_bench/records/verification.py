"""Whether records are consistent: their scores made again from the predictions that they name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mlpip_bench.records import store
from mlpip_bench.records.predictions import Array, Predictions, load
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.records.rescoring import SCORES, of_model, possible
from mlpip_bench.utils.errors import UserError

TOLERANCES: Mapping[str, float] = {"accuracy": 1e-9, "nll": 1e-5, "brier": 1e-3, "ece": 1e-3}
"""Largest difference that the precision of kept predictions explains: of a task's score (of an NLL above 1 nat, of its
ratio to the score), and of the mean for ``ece``, of which a query at a bin's edge may change a task's part."""


@dataclass(frozen=True)
class Verdict:
    """What came of a record.

    Attributes:
        path: its file.
        status: ``consistent``; ``inconsistent``; or ``unverified``, where no score can be made again.
        detail: what was made again, or what is wrong.
    """

    path: Path
    status: Literal["consistent", "inconsistent", "unverified"]
    detail: str


def record_files(places: Iterable[Path]) -> Iterator[Path]:
    """Records that are named, and those of results folders that are.

    Raises:
        UserError: a place that is neither.
    """
    for place in places:
        found = [place] if place.is_file() else list(store.record_paths(place))
        if not found:
            raise UserError(f"verify takes records and results folders; {place} is none, or has no record.")
        yield from found


def verify(path: Path) -> Verdict:
    """Whether a record is whole and its scores are those of its predictions."""
    try:
        record = store.load(path)
        if record.predictions is None:
            return Verdict(path, "unverified", "no predictions were kept")
        found = load(record, path.parent)
        asked = [score for score in record.scores if _of_predictions(record, score)]
        pairs = [(score, of_model(record, found, "test", score.model, path.parent, score.chosen_by)) for score in asked]
    except UserError as error:
        return Verdict(path, "inconsistent", str(error))
    made = [(score, predictions) for score, predictions in pairs if score.metric in possible(predictions)]
    unequal = "query_concentration" in record.config
    if wrong := [fault for score, predictions in made if (fault := _fault(score, predictions, unequal=unequal))]:
        return Verdict(path, "inconsistent", "; ".join(wrong))
    if not made:
        return Verdict(path, "unverified", "no score of its own conditions can be made of its predictions")
    return Verdict(path, "consistent", ", ".join(f"{score.metric} ({score.model})" for score, _ in made))


def _of_predictions(record: Record, score: Scores) -> bool:
    """Whether a score is of what was predicted under the bench's own conditions."""
    own = tuple(record.config.get(name) for name in ("way", "shot", "queries"))
    condition = not score.condition and score.over == "tasks" and (score.way, score.shot, score.queries) == own
    return condition and score.metric in TOLERANCES


def _fault(score: Scores, predictions: Predictions, *, unequal: bool) -> str:
    """Why recorded scores are not those of predictions; empty where they are.

    Args:
        score: the recorded ones.
        predictions: of the same tasks.
        unequal: whether a task's classes may have unequal numbers of queries.
    """
    name, recorded = f"{score.metric} ({score.model})", np.array(score.per_task)
    tasks, points = predictions.of_target.shape
    if tasks != len(recorded) or points != score.way * score.queries:
        return (
            f"{name} is of {len(recorded)} tasks of {score.way * score.queries} queries, and its predictions are of "
            f"{tasks} tasks of {points}"
        )
    drawn = predictions.targets
    if drawn is not None and not _as_drawn(drawn, score.way, score.queries, unequal=unequal):
        return f"{name} is of {score.queries} queries of each of {score.way} classes, and its predictions are of others"
    again = SCORES[score.metric](predictions)
    if score.metric == "ece":
        again, recorded = again.mean(keepdims=True), recorded.mean(keepdims=True)
    difference = np.abs(again - recorded)
    if (difference <= TOLERANCES[score.metric] * np.maximum(1, np.abs(recorded))).all():
        return ""
    worst = int(np.nanargmax(np.where(np.isnan(difference), np.inf, difference)))
    where = "its mean" if score.metric == "ece" else f"that of task {worst}"
    return f"{name} is not that of its predictions: {where} is {recorded[worst]:.6g}, and should be {again[worst]:.6g}"


def _as_drawn(targets: Array, way: int, queries: int, *, unequal: bool) -> bool:
    """Whether targets are classes of the tasks, and, if they must, each has as many queries."""
    if targets.max() >= way or unequal:
        return bool(targets.max() < way)
    of_class = np.bincount((targets + way * np.arange(len(targets), dtype=np.int64)[:, None]).ravel())
    return bool((of_class == queries).all() and len(of_class) == way * len(targets))

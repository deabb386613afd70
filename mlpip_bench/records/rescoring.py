"""Scores made again from kept predictions: other bins, recalibration, selective prediction, ensembles over seeds.

Sources: Guo, Pleiss, Sun & Weinberger 2017 (expected calibration error; temperature scaling, their section 4.2);
Brier 1950; Geifman & El-Yaniv 2017 (risk and coverage), whose area is that of Geifman, Uziel & El-Yaniv 2019;
Lakshminarayanan, Pritzel & Blundell 2017 (ensembles: the mean of the members' probabilities).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from mlpip_bench.records import store
from mlpip_bench.records.left_out import left_out
from mlpip_bench.records.predictions import Array, OfTrial, Predictions, load, of_classes
from mlpip_bench.records.record import Model, Record, facts
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.utils.errors import UserError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

Over: TypeAlias = Literal["tasks", "classes"]
"""What an interval is over."""

BINS = 15
"""Equal-width bins of the top probability, as the protocol ``calibration`` has them."""

# --------------------------------------------------------------------------------------------- scores, one a task


def accuracy(p: Predictions) -> Array:
    """Share of queries whose class is the most probable one, ``[task]``."""
    found: Array = _hits(p).mean(1)
    return found


def nll(p: Predictions) -> Array:
    """Mean negative log predictive density of the queries, ``[task]``, in nats."""
    found: Array = _losses(p).mean(1)
    return found


def brier(p: Predictions) -> Array:
    """Sum over classes of (probability - [class is right])^2, averaged over queries, ``[task]``."""
    found: Array = _squares(p).mean(1)
    return found


def ece(p: Predictions, bins: int = BINS) -> Array:
    """Expected calibration error with bins that pool all tasks, as parts of tasks whose mean it is, ``[task]``."""
    confidence = np.exp(_top(p))
    member = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence)  # a bin is (lower, upper]
    gap = confidence - _hits(p)
    signs = np.sign(np.bincount(member.ravel(), gap.ravel(), minlength=bins))
    found: Array = (gap * signs[member]).mean(1)
    return found


def aurc(p: Predictions) -> Array:
    """Area under the curve of risk over coverage, as parts of tasks whose mean it is, ``[task]``.

    The risk at coverage k/n is the share of errors among the k queries of all tasks with the largest top probability;
    the area is its mean over k = 1..n. So the i-th query has the weight sum_{k>=i} 1/k. Queries of equal confidence
    have the mean of their weights, that of all their orders.
    """
    confidence, wrong = _top(p), 1 - _hits(p)
    values, group, counts = np.unique(-confidence.ravel(), return_inverse=True, return_counts=True)
    weights = np.cumsum(1 / np.arange(confidence.size, 0, -1))[::-1]
    mean_weights = np.add.reduceat(weights, np.cumsum(counts) - counts) / counts
    assert len(mean_weights) == len(values)
    found: Array = (wrong * mean_weights[group].reshape(wrong.shape)).mean(1)
    return found


SCORES: Mapping[str, Callable[..., Array]] = {
    "accuracy": accuracy,
    "nll": nll,
    "brier": brier,
    "ece": ece,
    "aurc": aurc,
}
"""All of them; a mean over tasks is the score."""


def by_class(p: Predictions, of_query: Callable[[Predictions], Array]) -> Array:
    """Mean of a score over the queries of each class that occurs, ``[class]``.

    Args:
        p: the predictions.
        of_query: gives the score of each query, ``[task, point]``.

    Raises:
        ValueError: it is not known which classes they are of.
    """
    if p.classes is None:
        raise ValueError("they do not say which of the data set's classes their tasks have; measure them again")
    _, members, counts = np.unique(
        np.take_along_axis(p.classes, _classes(p), 1), return_inverse=True, return_counts=True
    )
    found: Array = np.bincount(members.ravel(), of_query(p).ravel()) / counts
    return found


def possible(p: Predictions) -> tuple[str, ...]:
    """The scores that kept predictions can give."""
    if p.targets is None:
        return ("nll",)
    return tuple(name for name in SCORES if name != "brier" or p.log_probs is not None)


def _losses(p: Predictions) -> Array:
    found: Array = -p.of_target.astype(np.float64)
    return found


def _squares(p: Predictions) -> Array:
    probs = np.exp(_full(p))
    right = np.take_along_axis(probs, _classes(p)[..., None], -1)[..., 0]
    found: Array = np.square(probs).sum(-1) - 2 * right + 1
    return found


def _classes(p: Predictions) -> Array:
    if p.targets is None:
        raise ValueError("predictions of numbers have no classes")
    return p.targets.astype(np.int64)


def _hits(p: Predictions) -> Array:
    right: Array = np.equal(np.asarray(p.choices), _classes(p))
    return right.astype(np.float64)


def _top(p: Predictions) -> Array:
    """Log-probability of the most probable class; where that is right, in the precision of the target's."""
    assert p.choices is not None
    if p.log_probs is not None:
        top = np.take_along_axis(p.log_probs, p.choices.astype(np.int64)[..., None], -1)[..., 0]
    else:
        assert p.of_choice is not None
        top = p.of_choice
    return np.where(p.choices == p.targets, p.of_target, top.astype(np.float64))


def _full(p: Predictions) -> Array:
    """All log-probabilities in float64, those of targets in the precision in which they are kept.

    The others are rounded more coarsely, by which one may come to be above the most probable: it is set to that.
    """
    if p.log_probs is None or p.choices is None:
        raise ValueError("they have the probabilities of two classes alone, or of none")
    full = p.log_probs.astype(np.float64)
    np.put_along_axis(full, _classes(p)[..., None], p.of_target[..., None].astype(np.float64), -1)
    choices = p.choices.astype(np.int64)[..., None]
    most = np.maximum(np.take_along_axis(full, choices, -1), p.of_target[..., None])
    np.put_along_axis(full, choices, most, -1)
    return np.minimum(full, most)


_OF_QUERIES: Mapping[str, Callable[[Predictions], Array]] = {"accuracy": _hits, "nll": _losses, "brier": _squares}
"""Scores that are means over queries, each of its own."""

# ------------------------------------------------------------------------------------------- other predictions


LOG_TEMPERATURES = (-5.0, 5.0)
"""Ends of what is searched. A model at chance has an end: no temperature is too high for it."""


def temperature(validation: Predictions) -> float:
    """The temperature T of softmax(log p / T) that has the least NLL on validation predictions.

    Raises:
        ValueError: they are not of classes, have not all probabilities, or one of a target is 0.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    full, classes = _full(validation), _classes(validation)[..., None]
    if not np.isfinite(validation.of_target).all():
        raise ValueError("a validation query's class has the probability 0, which no temperature changes")

    def of(log_temperature: float) -> float:
        tempered = log_softmax(full / math.exp(log_temperature), axis=-1)
        return -float(np.take_along_axis(tempered, classes, -1).mean())

    return math.exp(minimize_scalar(of, bounds=LOG_TEMPERATURES, method="bounded", options={"xatol": 1e-6}).x)


def tempered(p: Predictions, temperature: float) -> Predictions:
    """Predictions under a temperature; the most probable classes stay what they are."""
    from scipy.special import log_softmax

    found = of_classes(_classes(p), log_softmax(_full(p) / temperature, axis=-1), p.choices)
    return replace(found, classes=p.classes)


def ensemble(members: Sequence[Predictions]) -> Predictions:
    """The mean of the members' probabilities, or densities, query by query.

    Raises:
        ValueError: they are not predictions of the same queries, or have not all probabilities.
    """
    from scipy.special import logsumexp

    first = members[0]
    for other in members[1:]:
        same = first.of_target.shape == other.of_target.shape and (first.targets is None) == (other.targets is None)
        if not same or not (first.targets is None or np.array_equal(first.targets, _classes(other))):
            raise ValueError("members of an ensemble must predict the same queries; their targets differ")
    if first.targets is None:
        mean = logsumexp([m.of_target.astype(np.float64) for m in members], axis=0) - math.log(len(members))
        return Predictions(mean.astype("<f4"))
    mean = logsumexp([_full(m) for m in members], axis=0) - math.log(len(members))
    found = of_classes(_classes(first), mean - logsumexp(mean, axis=-1, keepdims=True))
    return replace(found, classes=first.classes)


# -------------------------------------------------------------------------------------------------- of records


@dataclass(frozen=True, eq=False)
class Source:
    """A trained model whose predictions are kept.

    Attributes:
        record: one of its records.
        folder: where that lies.
    """

    record: Record
    folder: Path

    def predictions(self, split: Any, model: Model, chosen_by: str = "") -> Predictions:
        """Those of one split and model, as :func:`of_model` has them.

        Raises:
            UserError: they are not there, or damaged.
        """
        return of_model(self.record, load(self.record, self.folder), split, model, self.folder, chosen_by)


CHOSEN_BY = {"accuracy": "accuracy", "nll": "nll", "brier": "nll", "ece": "nll", "aurc": "nll"}
"""The validation metric by which the best model is chosen for each score, as the metrics of protocols have it."""


def iteration_of(record: Record, model: Model, chosen_by: str = "") -> int:
    """After which iteration a model of a training is: the last one, or the best by a validation metric."""
    training = record.training
    best: int = training.get("chosen", {}).get(chosen_by, training["best_iteration"])
    return training["iterations"] if model == "last" else best


def of_model(
    record: Record, found: OfTrial, split: Any, model: Model, folder: Path, chosen_by: str = ""
) -> Predictions:
    """The predictions of one model and split among those of a trial.

    Args:
        record: of the trial.
        found: its predictions.
        split: of tasks.
        model: the best on validation, or the last.
        folder: where the record lies.
        chosen_by: the validation metric by which it is best; left out, or not among the trial's, the first one.

    Raises:
        UserError: there are none.
    """
    key = split, iteration_of(record, model, chosen_by)
    if key not in found:
        assert record.predictions is not None
        raise UserError(
            f"scores are made from kept predictions; {folder / record.predictions.file} has none of the {model} model "
            f"(iteration {key[1]}) on {split} tasks. Choose another model, or run the record's command again."
        )
    return found[key]


def sources(folders: Iterable[Path]) -> tuple[list[Source], int]:
    """Trained models of results folders whose predictions are kept, and how many records have none."""
    found: dict[tuple[str, str, str], Source] = {}
    without = 0
    for folder in folders:
        for path in store.record_paths(folder):
            record = store.load(path)
            if record.predictions is None:
                without += 1
            else:
                found.setdefault((record.bench, record.method, record.predictions.file), Source(record, path.parent))
    return list(found.values()), without


def rescore(
    models: Sequence[Source],
    *,
    bins: int = BINS,
    temperatures: bool = False,
    ensembles: bool = False,
    model: Model = "best",
    over: Over = "tasks",
) -> pd.DataFrame:
    """Scores of test predictions, a row for each trained model and, if wanted, each ensemble over seeds.

    Args:
        models: from :func:`sources`.
        bins: of the expected calibration error.
        temperatures: whether to fit a temperature on the validation predictions, and to apply it.
        ensembles: whether seeds of one configuration are put together, too.
        model: of training, which is measured.
        over: what intervals are over: test tasks, or the classes of the test split. Where these are few, most tasks
            share classes, and an interval over tasks says nothing of other classes.

    Returns:
        ``bench``, ``method``, ``settings`` (what tells configurations of a method from each other), ``seeds``,
        ``members``, ``model``, ``tasks``, ``temperature``, and for each of :data:`SCORES` its mean and, but for
        ``aurc``, which is no mean of independent tasks, ``NAME_ci95``: the Student-t half-width over tasks. Over
        classes it is that of the classes' means, of which there are ``classes``; those of ``ece`` are left out, too.
        What cannot be had is missing.

    Raises:
        UserError: predictions are damaged, or have not what was asked for.
    """
    import pandas as pd

    if not 1 <= bins <= 10_000:
        raise UserError(f"bins must be from 1 to 10000; got {bins}.")
    if over not in get_args(Over):
        raise unknown_name("unit of intervals", over, get_args(Over))
    if model not in get_args(Model):
        raise unknown_name("model", model, get_args(Model))
    if not models:
        raise UserError(
            "scores are made again from kept predictions; no record there names any. Run with --predictions."
        )
    rows = []
    for settings, members in _configurations(models):
        groups = [[member] for member in members] + ([members] if ensembles and len(members) > 1 else [])
        for group in groups:
            head = {
                "bench": group[0].record.bench,
                "method": group[0].record.method,
                "settings": settings,
                "seeds": ",".join(str(member.record.seed) for member in group),
                "members": len(group),
                "model": model,
            }
            try:
                rows.append(head | _row(group, bins, model, over, temperatures=temperatures))
            except ValueError as error:
                kept = group[0].record.predictions
                assert kept is not None
                raise UserError(
                    f"predictions must have what is asked of them; those of {group[0].folder / kept.file} have not: "
                    f"{error}. Leave that out, or choose others by --bench and --methods."
                ) from error
    return pd.DataFrame(rows)


def _row(group: Sequence[Source], bins: int, model: Model, over: Over, *, temperatures: bool) -> dict[str, Any]:
    @functools.cache
    def together(split: str, chosen_by: str) -> Predictions:
        found = [member.predictions(split, model, chosen_by) for member in group]
        return found[0] if len(found) == 1 else ensemble(found)

    test = together("test", "nll")
    fitted = temperature(together("validation", "nll")) if temperatures and test.targets is not None else 1.0
    row: dict[str, Any] = {"tasks": len(test.of_target), "temperature": fitted}
    for name in possible(test):
        test = together("test", CHOSEN_BY[name])
        if CHOSEN_BY[name] == "nll" and fitted != 1.0:  # which moves no most probable class
            test = tempered(test, fitted)
        per_task = SCORES[name](test, bins) if name == "ece" else SCORES[name](test)
        row[name], half_width = mean_ci95(per_task.tolist())
        if over == "classes":
            if name in _OF_QUERIES:
                means = by_class(test, _OF_QUERIES[name])
                row[f"{name}_ci95"], row["classes"] = mean_ci95(means.tolist())[1], len(means)
        elif name != "aurc":
            row[f"{name}_ci95"] = half_width
    return row


def _configurations(models: Sequence[Source]) -> Iterator[tuple[str, list[Source]]]:
    """Models that differ in their seed alone, with the facts that tell them from others of their bench and method."""
    by_method: dict[tuple[str, str], dict[str, tuple[dict[str, str], list[Source]]]] = {}
    for source in models:
        record = source.record
        known = {k: _text(v) for k, v in facts(record, record.scores[0]).items() if k not in ("protocol", "inductive")}
        key = json.dumps(known, sort_keys=True)
        by_method.setdefault((record.bench, record.method), {}).setdefault(key, (known, []))[1].append(source)
    for _, configurations in sorted(by_method.items()):
        defaults = {n: _text(v) for n, v in left_out(("", known) for known, _ in configurations.values())[""].items()}
        every = [{**defaults, **known} for known, _ in configurations.values()]
        names = sorted({name for known in every for name in known})
        telling = [name for name in names if len({known.get(name) for known in every}) > 1]
        for known, (_, members) in zip(every, configurations.values(), strict=True):
            settings = ", ".join(f"{n.removeprefix('settings.')} {known.get(n, 'unset')}" for n in telling)
            yield settings, sorted(members, key=lambda member: member.record.seed)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)

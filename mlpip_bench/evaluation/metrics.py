"""What is measured: functions (predictive distribution, targets) -> one score a task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot

from mlpip_bench.inference.method import TaskKind
from mlpip_bench.records.record import Better
from mlpip_bench.records.statistics import mean_ci95


def _no_score(predictive: Distribution, y: Tensor) -> Tensor:  # noqa: ARG001
    raise TypeError("this metric is no function of a predictive and its targets")


def _checked(
    name: str, score: Callable[[Distribution, Tensor], Tensor], predictive: Distribution, y: Tensor
) -> Float[Tensor, " task"]:
    """The score, of targets that have the predictive's shape: others would be broadcast, and give a number."""
    shape = predictive.batch_shape + predictive.event_shape
    if y.shape != shape:
        raise ValueError(
            f"targets of {name} must have the shape of the predictive, {tuple(shape)}; got {tuple(y.shape)}"
        )
    scores = score(predictive, y)
    if scores.shape != shape[:1]:
        raise ValueError(f"{name} must give one score a task, {shape[0]}; got the shape {tuple(scores.shape)}")
    return scores


@dataclass(frozen=True)
class Metric:
    """A score with its unit and its direction.

    Attributes:
        name: lower case with underscores, as in the table's long form.
        unit: ``fraction``, ``nats per query``, ``seconds``, ...
        better: which way is good.
        score: (predictive with batch shape ``(task, point)``, targets ``[task, point]``) -> ``[task]``; left
            out where a protocol computes the scores from something else.
        chosen_by: the metric of validation that chooses the model which is measured, where validation has that one;
            else the first does.
    """

    name: str
    unit: str
    better: Better
    score: Callable[[Distribution, Tensor], Float[Tensor, " task"]] = _no_score
    chosen_by: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", functools.partial(_checked, self.name, self.score))


def _accuracy(predictive: Distribution, y: Tensor) -> Tensor:
    probs: Tensor = predictive.probs  # type: ignore[attr-defined]  # every distribution over classes has it
    return (probs.argmax(-1) == y).to(torch.float64).mean(-1)


def _above_chance(predictive: Distribution, y: Tensor) -> Tensor:
    chance = 1 / predictive.probs.shape[-1]  # type: ignore[attr-defined]
    above: Tensor = (_accuracy(predictive, y) - chance) / (1 - chance)
    return above


def _nll(predictive: Distribution, y: Tensor) -> Tensor:
    log_density: Tensor = predictive.log_prob(y)
    return -log_density.mean(-1)


def _brier(predictive: Distribution, y: Tensor) -> Tensor:
    probs: Tensor = predictive.probs  # type: ignore[attr-defined]
    return (probs - one_hot(y, probs.shape[-1])).square().sum(-1).mean(-1)


def _mse(predictive: Distribution, y: Tensor) -> Tensor:
    return (predictive.mean - y).double().square().flatten(2).mean((1, 2))


def _squared_error(predictive: Distribution, y: Tensor) -> Tensor:
    return (predictive.mean - y).double().square().mean(-1)


def _ssim(predictive: Distribution, y: Tensor, data_range: float) -> Tensor:
    from skimage.metrics import structural_similarity  # here, since it takes a second to import

    images, targets = (t.double().cpu().flatten(0, 1).numpy() for t in (predictive.mean, y))
    scores = [
        structural_similarity(image, target, data_range=data_range, channel_axis=0)
        for image, target in zip(images, targets, strict=True)
    ]
    return torch.tensor(scores, dtype=torch.float64).view(y.shape[:2]).mean(-1)


def _binned(predictive: Distribution, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Top probability and whether its class is right, ``[task, point]``, and membership ``[task, point, bin]``.

    On the CPU, whose sums do not depend on the order of parallel work.
    """
    probs: Tensor = predictive.probs.cpu()  # type: ignore[attr-defined]
    confidence, choice = probs.max(-1)
    inner_edges = torch.linspace(0, 1, ECE_BINS + 1, dtype=probs.dtype)[1:-1]
    member = one_hot(torch.bucketize(confidence, inner_edges), ECE_BINS)  # a bin is (lower, upper]
    return confidence, (choice == y.cpu()).to(probs.dtype), member.to(probs.dtype)


def _ece(predictive: Distribution, y: Tensor) -> Tensor:
    confidence, hit, member = _binned(predictive, y)
    gap = (confidence - hit).unsqueeze(-1) * member
    return (gap * gap.sum((0, 1)).sign()).sum(-1).mean(-1)


def reliability(predictive: Distribution, y: Tensor) -> dict[str, tuple[float, ...]]:
    """The bins of :data:`ECE` that a reliability diagram shows; 0 throughout where a bin is empty.

    Args:
        predictive: over classes, with batch shape ``(task, point)``: all test tasks at once.
        y: targets ``[task, point]``.

    Returns:
        For each bin ``count`` of its queries, their mean ``confidence`` and ``accuracy``, and
        ``accuracy_ci95``, the Student-t 95 % half-width over the tasks that have queries in the bin.
        Accuracy is a ratio of two sums over tasks, right queries / queries, so its half-width is that
        of the mean of the ratio's linearization, (right - accuracy x queries) / (queries a task). That
        sees no spread where all are right, or all wrong: there it is the exact binomial bound for as many
        tasks. It is at most 1, which says nothing of an accuracy, as for a bin with queries of one task.
    """
    confidence, hit, member = _binned(predictive, y)
    queries, right = member.sum(1), (hit.unsqueeze(-1) * member).sum(1)  # [task, bin]
    count = queries.sum(0)
    accuracy = right.sum(0) / count.clamp(min=1)
    residual = right - accuracy * queries
    ci95 = [0.0] * ECE_BINS
    for b in count.nonzero().flatten().tolist():
        in_bin = residual[queries[:, b] > 0, b]
        tasks = len(in_bin)
        half_width = mean_ci95((in_bin * tasks / count[b]).tolist())[1]
        ci95[b] = min(half_width, 1.0) if 0 < accuracy[b] < 1 else 1 - 0.025 ** (1 / tasks)
    return {
        "count": tuple(count.tolist()),
        "confidence": tuple(((confidence.unsqueeze(-1) * member).sum((0, 1)) / count.clamp(min=1)).tolist()),
        "accuracy": tuple(accuracy.tolist()),
        "accuracy_ci95": tuple(ci95),
    }


ACCURACY = Metric("accuracy", "fraction", "higher", _accuracy)
"""Share of queries whose class is the argmax of the mean predictive probability (not of mean raw logits)."""

ABOVE_CHANCE = Metric("accuracy_above_chance", "0 at chance, 1 if all are right", "higher", _above_chance)
"""Accuracy as (accuracy - 1/way) / (1 - 1/way): the same scale for tasks of any way. Below 0 is worse than chance.

Where all classes have as many queries it is Cohen's kappa (1960), whatever the answers."""

NLL = Metric("nll", "nats per query", "lower", _nll, "nll")
"""Negative log predictive density, averaged over a task's queries (paper, Table 1).

A probability of exactly 0 for the right class makes it infinite, whether the predictive has probabilities or logits:
there is then no NLL of the model, and its other scores stand. Nothing is clipped.
"""

BRIER = Metric("brier", "squared error per query", "lower", _brier, "nll")
"""Sum over classes of (probability - [class is right])^2, from 0 to 2, averaged over a task's queries (Brier 1950)."""

ECE_BINS = 15
"""Equal-width bins of the top probability, as in Guo et al. 2017."""

ECE = Metric("ece", "fraction", "lower", _ece, "nll")
"""Expected calibration error (Guo et al. 2017): |accuracy - mean confidence| of a bin, weighted by its queries.

The bins pool the queries of all tasks that come in one call, which must be all test tasks: a task has too few queries
to fill the bins, and noise in a bin adds to its error whatever its sign. Since |accuracy - confidence| of a bin is
sign x (confidence - accuracy), the error is exactly the mean over queries of s (confidence - hit), where hit is 0 or 1
and s the sign of the query's pooled bin. A task's score is that mean over its own queries. It may be negative, but
the mean over tasks is the pooled error, and the Student-t interval over tasks is the delta method's, with the signs
held fixed. A perfectly calibrated model still scores a little above 0.
"""

MSE = Metric("mse", "squared error per pixel", "lower", _mse)
"""Squared error of the mean predicted image, pixels in [0, 1], averaged over pixels and a task's views."""

SQUARED_ERROR = Metric("mse", "squared error per query", "lower", _squared_error)
"""Squared error of the predictive's mean, averaged over a task's queries; the variance of their noise is in it."""

SSIM = Metric("ssim", "index", "higher", functools.partial(_ssim, data_range=1.0))
"""Structural similarity (Wang et al. 2004) of the mean predicted image, averaged over a task's views: scikit-image's,
with a uniform window of 7x7 pixels and the data range 1 that pixels have."""

SSIM_RANGE_2 = Metric("ssim_range_2", "index", "higher", functools.partial(_ssim, data_range=2.0))
"""The same with a data range of 2, which the paper's code has and which makes it larger."""

VALIDATION: Mapping[TaskKind, tuple[Metric, ...]] = MappingProxyType(
    {"classification": (ACCURACY, NLL), "regression": (NLL,), "reconstruction": (MSE,)}
)
"""What validation measures. The first metric chooses the best model; scores of probabilities are of NLL's choice."""

"""What differences decide: all pairs of the configurations that are compared, corrected for their number.

The family of Holm's correction is all pairs of one metric and one bench, whichever of them are shown. So a difference
and its interval depend on its two configurations alone; its corrected p, and with it the verdict, depends on how many
configurations there are, and on nothing else: not on their names or their order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from mlpip_bench.records.record import Better, Scores
from mlpip_bench.records.statistics import Estimate, holm, verdict
from mlpip_bench.reporting.entries import Entry, difference_of
from mlpip_bench.utils.errors import UserError

Margins: TypeAlias = Mapping[str, float]
"""By metric, how large a difference must be to matter: percentage points of a fraction, else the metric's own unit."""

NO_MARGINS: Margins = MappingProxyType({})


@dataclass(frozen=True)
class Decision:
    """A difference, first less second, and what it says.

    Attributes:
        estimate: the difference with its interval, which is not corrected.
        seeds: that both have; empty where they have none in common.
        better: whether a high score is good.
        p_holm: of the test that it is zero, corrected for all pairs.
        p_equal: of the tests that it is the margin or more, corrected; not a number without a margin.
        margin: in words.
    """

    estimate: Estimate
    seeds: tuple[int, ...]
    better: Better
    p_holm: float
    p_equal: float
    margin: str

    @property
    def verdict(self) -> str:
        """On the first."""
        return verdict(self.estimate.mean, self.p_holm, self.better, self.p_equal, self.margin)

    @property
    def of_methods(self) -> bool:
        """Whether it is over two trainings or more; one says nothing of a method, only of two trained models."""
        return self.estimate.trainings > 1

    def reversed(self) -> Decision:
        """Second less first."""
        found = self.estimate
        turned = Estimate(
            -found.mean, found.standard_error, found.freedom, found.trainings, found.tasks, found.half_width,
            found.reach,
        )  # fmt: skip
        return Decision(turned, self.seeds, self.better, self.p_holm, self.p_equal, self.margin)


def parse_margins(text: str | None) -> Margins:
    """Margins such as ``accuracy=0.5,nll=0.01``.

    Raises:
        UserError: it is written otherwise, or a margin is no positive number.
    """
    margins = numbers_of_metrics(text, "--margin", "accuracy=0.5,nll=0.01")
    for metric, margin in margins.items():
        if margin <= 0:
            raise UserError(
                "--margin takes positive numbers, of percentage points for shares and else of the metric's unit; got "
                f"{metric}={margin:g}. Leave {metric} out where no difference is too small to matter."
            )
    return margins


def numbers_of_metrics(text: str | None, option: str, example: str) -> dict[str, float]:
    """What an option says of metrics, each once; nothing where it is not given.

    Raises:
        UserError: it is written otherwise, names a metric twice, or says something else than a number.
    """
    found: dict[str, float] = {}
    if text is None:
        return found
    for part in [part for part in text.split(",") if part.strip()] or [text]:
        metric, equals, written = (piece.strip() for piece in part.partition("="))
        try:
            number = float(written)
        except ValueError:
            number = math.nan
        if not equals or not metric or not math.isfinite(number):
            raise UserError(
                f"{option} takes METRIC=NUMBER, several with commas between them, as in {example}; got "
                f"{part!r}. Write it so, or leave the option out."
            )
        if metric in found:
            raise UserError(
                f"{option} takes one number a metric; got {metric} twice, {found[metric]:g} and {number:g}. Leave one "
                "of them out."
            )
        found[metric] = number
    return found


def check_margins(margins: Margins, metrics: set[str]) -> None:
    """Whether margins are of metrics that there are.

    Raises:
        UserError: one is of another.
    """
    if strange := sorted(margins.keys() - metrics):
        raise UserError(
            f"--margin names metrics of the records, {', '.join(sorted(metrics))}; got {', '.join(strange)}."
        )


def decide(family: Sequence[tuple[Sequence[int], Estimate, Scores]], margins: Margins = NO_MARGINS) -> list[Decision]:
    """Decisions on differences, corrected for their number.

    Args:
        family: of each difference the seeds, the estimate, and a score of its metric.
        margins: what is practically equal.
    """
    wanted = [_margin(score, margins) for _, _, score in family]
    equal = [e.p_within(width) if words else math.nan for (_, e, _), (width, words) in zip(family, wanted, strict=True)]
    return [
        Decision(found, tuple(seeds), score.better, p, p_equal, words)
        for (seeds, found, score), p, p_equal, (_, words) in zip(
            family, holm([e.p for _, e, _ in family]), holm(equal), wanted, strict=True
        )
    ]


def _margin(score: Scores, margins: Margins) -> tuple[float, str]:
    if score.metric not in margins:
        return math.nan, ""
    margin = margins[score.metric]
    if score.unit == "fraction":
        return margin / 100, f"{margin:g} points"
    return margin, f"{margin:g} nats" if score.unit.startswith("nats") else f"{margin:g}"


def all_pairs(
    configurations: Sequence[Sequence[Entry]], margins: Margins = NO_MARGINS
) -> dict[tuple[int, int], Decision]:
    """Decisions on each two configurations of one metric and bench, by their places in both orders.

    Args:
        configurations: the entries of each, one a seed.
        margins: what is practically equal.
    """
    places = list(itertools.combinations(range(len(configurations)), 2))
    family = [(*difference_of(configurations[i], configurations[j]), configurations[i][0].score) for i, j in places]
    found = dict(zip(places, decide(family, margins), strict=True))
    return found | {(j, i): decision.reversed() for (i, j), decision in found.items()}


def models_note(decisions: Sequence[Decision]) -> str:
    """What verdicts are about, where some rest on one training; empty where none does."""
    single = sum(not decision.of_methods for decision in decisions)
    if not single:
        return ""
    which = (
        "Verdicts are"
        if single == len(decisions)
        else f"{single} of {len(decisions)} verdicts rest on one seed and are"
    )
    return (
        f"{which} about these two trained models, not about the methods: the interval is over test tasks, and one "
        "training says nothing of another. Train with several --seeds to compare methods."
    )

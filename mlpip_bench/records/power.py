"""How many seeds and test tasks it takes to decide on a difference, from the variances of records that there are.

A difference of two methods on shared tasks is d[seed, task] = mean + seed + task + rest, two-way random effects. With S
seeds and n tasks its mean has SE^2 = (MS_seed + MS_task - MS_rest) / (S n), with Satterthwaite's degrees of freedom
(Searle, Casella & McCulloch, Variance Components, 1992); with one seed it is a paired t test over tasks, of the two
trained models. Power is that of the t test, by the noncentral t distribution (Cohen, Statistical Power Analysis, 1988).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlpip_bench.records.record import Record, Scores, facts

POWER = 0.8
"""The chance to find a difference as large as the margin at the 5 % level, two-sided."""

MOST = 1_000_000
"""Tasks, or seeds, beyond which nobody goes."""


@dataclass(frozen=True)
class Variances:
    """Variances of a paired difference, in its unit squared.

    Attributes:
        seed: between trainings; None where one seed was trained, which leaves it open.
        task: between test tasks; with one seed what the rest is cannot be separated, and is in it.
        rest: of what is particular to a seed and a task.
    """

    seed: float | None
    task: float
    rest: float = 0.0


def variances(differences: Sequence[Sequence[float]]) -> Variances:
    """Variance components of differences ``[seed, task]``, by the analysis of variance; none is below 0.

    Raises:
        ValueError: there are fewer than two tasks.
    """
    d = np.asarray(differences, dtype=float)
    seeds, tasks = d.shape
    if tasks < 2:
        raise ValueError("a variance over tasks takes two tasks")
    by_task, by_seed = d.mean(0), d.mean(1)
    if seeds == 1:
        return Variances(None, float(by_task.var(ddof=1)))
    rest = d - by_task - by_seed[:, None] + d.mean()
    ms_rest = float((rest**2).sum()) / ((seeds - 1) * (tasks - 1))
    seed = float(by_seed.var(ddof=1)) - ms_rest / tasks
    task = float(by_task.var(ddof=1)) - ms_rest / seeds
    return Variances(max(seed, 0.0), max(task, 0.0), ms_rest)


def power(of: Variances, margin: float, seeds: int, tasks: int) -> float:
    """The chance that a difference of the margin is found by so many seeds and tasks.

    Args:
        of: variances of the difference; with one seed that between seeds is left out.
        margin: the true difference, in its unit.
        seeds: trained of both; several need a known variance between them.
        tasks: test tasks.
    """
    from scipy import stats  # a second, which the start has not

    if seeds == 1:
        squared, freedom = (of.task + of.rest) / tasks, float(tasks - 1)
    else:
        assert of.seed is not None
        ms_seed, ms_task = of.rest + tasks * of.seed, of.rest + seeds * of.task
        total = ms_seed + ms_task - of.rest
        parts = ((ms_seed, seeds - 1), (ms_task, tasks - 1), (of.rest, (seeds - 1) * (tasks - 1)))
        spread = sum(ms**2 / f for ms, f in parts)
        squared, freedom = total / (seeds * tasks), total**2 / spread if spread else math.inf
    if squared == 0:
        return 1.0
    away = margin / math.sqrt(squared)
    if away > 30:  # where the distribution is not computed, and the answer is plain
        return 1.0
    least = float(stats.t.ppf(0.975, freedom))
    with np.errstate(divide="ignore"):  # scipy 1.11 divides by zero on its way to the right number
        return float(stats.nct.sf(least, freedom, away) + stats.nct.cdf(-least, freedom, away))


def tasks_needed(of: Variances, margin: float, seeds: int = 1) -> int | None:
    """The least number of test tasks, from 2, for a power of 0.8; None where no number does, as with too few seeds."""
    return _least(lambda tasks: power(of, margin, seeds, tasks))


def seeds_needed(of: Variances, margin: float, tasks: int) -> int | None:
    """The least number of seeds, from 2, for a power of 0.8; None where the spread between seeds is not known."""
    return None if of.seed is None else _least(lambda seeds: power(of, margin, seeds, tasks))


def _least(power_of: Callable[[int], float]) -> int | None:
    """The least number whose power is enough; power grows with it."""
    high = 2
    while power_of(high) < POWER:
        if high >= MOST:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= POWER else (middle, high)
    return high


# ---------------------------------------------------------------------------------------------------- of records


@dataclass(frozen=True)
class Need:
    """What a margin needs on a bench, for the pair of methods that needs most.

    Attributes:
        bench, metric: where.
        margin: in the unit of tables.
        pairs: how many paired differences are known from records.
        pair: the methods of the one that needs most.
        variances: of that one, in the unit of tables squared.
        tasks: test tasks for a verdict on two trained models, with one seed.
        seeds: for a verdict on methods, with ``test_tasks`` tasks; None where records have one seed, or no number does.
        test_tasks: of those records.
    """

    bench: str
    metric: str
    margin: float
    pairs: int
    pair: str
    variances: Variances
    tasks: int | None
    seeds: int | None
    test_tasks: int


def needs(records: Iterable[Record], benches: Sequence[str], margins_: Mapping[str, float]) -> list[Need]:
    """What margins need on benches, from what is known of them; benches and metrics without a pair are left out."""
    at_hand = list(records)
    found = []
    for bench, (metric, margin) in itertools.product(benches, margins_.items()):
        known = _pairs([record for record in at_hand if record.bench == bench], metric)
        made = [
            Need(
                bench,
                metric,
                margin,
                len(known),
                name,
                of,
                tasks_needed(of, margin),
                seeds_needed(of, margin, tasks),
                tasks,
            )
            for name, of, tasks in known
        ]
        if made:
            found.append(max(made, key=lambda need: (need.seeds or 0, need.tasks or MOST)))
    return found


_OWN = ("method", "protocol", "inductive", "parameters", "swept", "tuned")


def _pairs(records: Iterable[Record], metric: str) -> list[tuple[str, Variances, int]]:
    """Paired differences of two methods under the same conditions: their names, variances and test tasks."""
    runs: dict[str, dict[tuple[str, str], dict[int, Scores]]] = {}
    for record in records:
        for score in record.scores:
            if (score.metric, score.model, score.over) == (metric, "best", "tasks") and not score.condition:
                known = {name: str(value) for name, value in facts(record, score).items()}
                shared = {k: v for k, v in known.items() if k not in _OWN and not k.startswith("settings.")}
                own = (record.method, json.dumps(known, sort_keys=True))
                group = runs.setdefault(json.dumps([shared, score.way, score.shot], sort_keys=True), {})
                group.setdefault(own, {})[record.seed] = score
    found = []
    for group in runs.values():
        for ((a, _), first), ((b, _), second) in itertools.combinations(sorted(group.items()), 2):
            seeds = sorted(first.keys() & second.keys())
            tasks = {len(run[seed].per_task) for run in (first, second) for seed in seeds}
            if a == b or len(tasks) != 1 or tasks == {1}:
                continue
            unit = 100.0 if first[seeds[0]].unit == "fraction" else 1.0
            differences = [unit * np.subtract(first[seed].per_task, second[seed].per_task) for seed in seeds]
            found.append((f"{a} and {b}", variances([list(row) for row in differences]), tasks.pop()))
    return found

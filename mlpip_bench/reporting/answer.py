"""The answer: who leads on each bench, by how much, whether that is decided, at what cost, on what data and budget."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Better, Record, Scores
from mlpip_bench.reporting.decisions import NO_MARGINS, Decision, Margins, all_pairs
from mlpip_bench.reporting.entries import COMPARABLE, Entry, comparable_groups, estimate_of, of_best_models
from mlpip_bench.reporting.tables.paired import Configuration, best_first, configurations
from mlpip_bench.reporting.wording import budget_in_words, duration, interval_cell, number_text, stand_in_mark

_FIRST = ("accuracy", "nll", "mse", "kl")
_MOST = 2  # metrics of a bench
_SHORT = 0.5  # of the published training tasks


@dataclass(frozen=True)
class Answer:
    """Who leads on a bench in one metric, in words.

    Attributes:
        bench, metric: where.
        better: whether higher or lower is better.
        leader: the configuration with the best mean.
        score: its mean with the interval and unit.
        ahead: by how much of which next one; empty where there is no other.
        decided: whether that is more than noise, and of what it is said.
        cost: of the leader.
        data: with whether it is real.
        budget: of training, and whether it is short.
        stand_in: whether the data stand in for others.
    """

    bench: str
    metric: str
    better: Better
    leader: str
    score: str
    ahead: str
    decided: str
    cost: str
    data: str
    budget: str
    stand_in: bool

    @property
    def sentence(self) -> str:
        """All of it."""
        lead = f"{self.leader} leads, {self.score}" if self.ahead else f"{self.leader} has {self.score}"
        first = ", ".join(filter(None, (lead, self.ahead)))
        where = f"{self.bench}, {self.metric} ({self.better} is better)"
        return f"{where}: {first}; {self.decided}. {self.cost}. {self.data}; {self.budget}."


def answers(records: Sequence[Record], quoted: Iterable[Published], margins: Margins = NO_MARGINS) -> list[Answer]:
    """One for each bench and its main metrics, of the models that are best on validation.

    Args:
        records: what was run, under the names that are shown.
        quoted: what the paper reports, under the same names: how long it trained.
        margins: what is practically equal.
    """
    rated = [e for e in of_best_models(records) if e.score.better != "neither"]
    tasks = {(row.bench, row.method): row.training_tasks for row in quoted if row.training_tasks}
    found = []
    for group in comparable_groups(rated, (*COMPARABLE, "protocol")):
        metrics = {e.score.metric for e in rated if e.bench == group[0].bench}
        main = [m for m in _FIRST if m in metrics][:_MOST] or sorted(metrics)[:1]
        if group[0].score.metric in main:
            found.append(_answer(group, records, tasks, margins))
    order = {bench: place for place, bench in enumerate(dict.fromkeys(e.bench for e in rated))}
    return sorted(found, key=lambda a: (a.stand_in, order[a.bench], _place(a.metric)))


def _place(metric: str) -> int:
    return _FIRST.index(metric) if metric in _FIRST else len(_FIRST)


def _answer(
    group: Sequence[Entry], records: Sequence[Record], tasks: Mapping[tuple[str, str], int], margins: Margins
) -> Answer:
    runs = best_first(configurations(group))
    leader, score = runs[0], group[0].score
    record = leader.first.record
    mark = stand_in_mark(record.data["source"])
    origin = f"{record.data['source']}{', a stand-in' if mark else ''}"
    other = record.data.get("test_on")
    elsewhere = f", tested on {other['name']}" if other else ""
    ahead, decided = "", "nothing was measured to compare it with"
    if len(runs) > 1:
        pairs = all_pairs([run.entries for run in runs], margins)
        gap = interval_cell(pairs[0, 1].estimate, score.unit).text.lstrip("-")
        unit = "points" if score.unit == "fraction" else score.unit
        ahead = f"{gap} {unit} ahead of {runs[1].label}"
        decided = _decided(runs, [pairs[0, i] for i in range(1, len(runs))])
    return Answer(
        bench=leader.first.bench,
        metric=score.metric,
        better=score.better,
        leader=leader.label,
        score=f"{interval_cell(estimate_of(leader.entries), score.unit).text} {_unit(score)}",
        ahead=ahead,
        decided=decided,
        cost=_cost(leader, records),
        data=f"Data: {record.data.get('name', '')} ({origin}){elsewhere}",
        budget=_budget(runs, tasks),
        stand_in=bool(mark),
    )


def _unit(score: Scores) -> str:
    return "%" if score.unit == "fraction" else score.unit


def _decided(runs: Sequence[Configuration], decisions: Sequence[Decision]) -> str:
    """Of the leader against all others."""
    open_ = [run.label for run, d in zip(runs[1:], decisions, strict=True) if d.verdict != "better"]
    equal = [run.label for run, d in zip(runs[1:], decisions, strict=True) if d.verdict.startswith("equal")]
    over = min(d.estimate.trainings for d in decisions)
    of = (
        f"over {over} trainings each" if over > 1 else "between these trained models, not between the methods: one seed"
    )
    if not open_:
        return f"decided {of}"
    if equal:
        words = next(d.verdict for d in decisions if d.verdict.startswith("equal"))
        undecided = [label for label in open_ if label not in equal]
        rest = f", undecided against {', '.join(undecided)}" if undecided else ""
        return f"{words}: {', '.join(equal)}{rest} ({of})"
    return f"undecided against {', '.join(open_)} ({of})"


def _cost(leader: Configuration, records: Sequence[Record]) -> str:
    own = [entry.record for entry in leader.entries]
    trials = {(record.bench, record.method, record.seed) for record in own}
    seconds = statistics.fmean(float(record.training.get("seconds", 0)) for record in own)
    earlier = statistics.fmean(float(record.training.get("pretraining", {}).get("seconds", 0)) for record in own)
    before = f"{duration(earlier)} to pre-train" if earlier else ""
    training = f"{duration(seconds)} to train" if own[0].training.get("tasks_seen") else before or "no training"
    if own[0].training.get("outside"):
        training = "trained outside"
    parts = [training, *([before] if before and before != training else []), f"{own[0].parameters:,} parameters"]
    paces = [
        statistics.median(score.per_task)
        for record in records
        if (record.bench, record.method, record.seed) in trials
        for score in record.scores
        if score.metric == "tasks_per_second" and dict(score.condition) == {"regime": "latency"}
    ]
    if paces and min(paces) > 0:
        parts.append(f"{number_text(1000 / statistics.median(paces), 'ms', 1)} ms to adapt and predict a task")
    return f"Cost: {', '.join(parts)}"


def _budget(runs: Sequence[Configuration], tasks: Mapping[tuple[str, str], int]) -> str:
    """Of the leader, and its part of the published training tasks, which differs between methods."""
    facts = runs[0].first.facts
    words = f"budget: {budget_in_words(facts['preset'], facts['iterations'], 'iterations')}"
    leaders, *others = (_share(run.first.record, tasks) for run in runs)
    known = sorted(share for share in others if share)
    if leaders:
        words += f", {_percent(leaders)} of the training tasks of its published result"
        if known:
            words += f"; the others {' to '.join(dict.fromkeys(map(_percent, (known[0], known[-1]))))} of theirs"
        return words + (" (short)" if min(leaders, *known, _SHORT) < _SHORT else "")
    return words + (" (short)" if facts["preset"] == "quick" else "")


def _share(record: Record, tasks: Mapping[tuple[str, str], int]) -> float:
    """Of the training tasks of the method's published result; 0 where that is not known."""
    theirs, config = tasks.get((record.bench, record.method)), record.config
    if not theirs or not all(isinstance(config.get(name), int) for name in ("iterations", "tasks_per_batch")):
        return 0.0
    share: float = config["iterations"] * config["tasks_per_batch"] / theirs
    return share


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"

"""Paired differences: each two methods, or settings of one, that were measured in the same way, task by task."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlpip_bench.records.record import Better, Record
from mlpip_bench.records.statistics import LEVEL, combined
from mlpip_bench.reporting.decisions import NO_MARGINS, Decision, Margins, all_pairs, models_note
from mlpip_bench.reporting.entries import (
    COMPARABLE,
    NORM_FACTS,
    Entry,
    Natural,
    comparable_groups,
    conflicts,
    estimate_of,
    grouped,
    natural,
    of_best_models,
    row_groups,
    seeds_of,
    shown_of,
    telling_facts,
)
from mlpip_bench.reporting.table import ATTRIBUTES, Cell, Row, WideTable
from mlpip_bench.reporting.wording import (
    NO_INTERVAL_NOTE,
    STAND_IN_NOTE,
    budget_in_words,
    fact_in_words,
    finite,
    in_words,
    named,
    qualities_of_differences,
    signed_cell,
    span,
    stand_in_mark,
    varies,
)
from mlpip_bench.utils.encoding import csv_text
from mlpip_bench.utils.errors import UserError, unknown_name


@dataclass(frozen=True)
class Configuration:
    """A method with its settings, as a row and a column of a matrix.

    Attributes:
        entries: one a seed.
        label: the method, with what tells it from the others of the matrix.
        names: facts that tell it from the other configurations of its method, without the norm.
    """

    entries: Sequence[Entry]
    label: str
    names: Sequence[str]

    @property
    def first(self) -> Entry:
        """What names it."""
        return self.entries[0]


@dataclass(frozen=True)
class Comparison:
    """A paired difference on one bench: the first's scores minus the second's.

    Attributes:
        matrix: what tells the matrix that it belongs to from others: a number.
        first, second: the two configurations.
        metric, unit, better: of the scores.
        method, against: the first and the second; two configurations of one method with what differs in brackets.
        attributes: how both were measured, by name of the column.
        differs: what was not the same for both, beyond settings that only one of them has; empty if nothing.
        decision: the difference with its interval, and what it says.
        unpaired_ci95: the half-width that it would have if each of the two had tasks of its own.
    """

    matrix: int
    first: Configuration
    second: Configuration
    metric: str
    unit: str
    better: Better
    method: str
    against: str
    attributes: Mapping[str, str]
    differs: str
    decision: Decision
    unpaired_ci95: float

    @property
    def mean(self) -> float:
        """Of the difference."""
        return self.decision.estimate.mean

    @property
    def ci95(self) -> float:
        """Half-width of its 95 % interval, not corrected."""
        return self.decision.estimate.ci95

    @property
    def verdict(self) -> str:
        """On the first, corrected."""
        return self.decision.verdict


def method_differences(
    records: Sequence[Record], against: str | None = None, margins: Margins = NO_MARGINS
) -> list[Comparison]:
    """Differences of each two methods that were measured in the same way, of the models that are best on validation.

    Configurations of a method that differ are compared separately, and with each other where nothing but settings of
    the method or the norm differs. Two methods are compared under one norm, and under two where one's came with its
    network. A difference is over the seeds that both have.

    Args:
        records: what was run.
        against: only differences to this method; the correction is for all pairs in any case.
        margins: what is practically equal.

    Returns:
        By metric, bench and condition of measurement; empty if no two were measured in the same way.

    Raises:
        UserError: no record is of the method ``against``.
    """
    methods = {record.method for record in records}
    if against is not None and against not in methods:
        raise unknown_name("method for --against", against, methods)
    entries = of_best_models(records)
    data_keys = sorted(n for n in conflicts(entries, lambda e: (e.facts["source"], e.bench)) if n.startswith("data."))
    found = []
    for matrix, group in enumerate(comparable_groups(entries, (*COMPARABLE, "protocol"))):
        runs = configurations(group)
        runs.sort(key=lambda run: run.first.record.method == against)  # so that it is the second of a pair
        decisions = all_pairs([run.entries for run in runs], margins)
        for i, j in sorted(
            itertools.combinations(range(len(runs)), 2), key=lambda ij: _pair_order(*(runs[k] for k in ij))
        ):
            a, b = runs[i].first, runs[j].first
            choices = _differing_choices(a, b) if a.record.method == b.record.method else []
            same_norm = _has_no_choice(a) or _has_no_choice(b) or a.facts["norm"] == b.facts["norm"]
            pairs = bool(choices) or (a.record.method != b.record.method and same_norm)
            if pairs and against in (None, b.record.method):
                settings = _settings(runs[i], runs[j], choices, data_keys)
                found.append(_comparison(matrix, (runs[i], runs[j]), choices, settings, decisions[i, j]))
    return found


def _has_no_choice(entry: Entry) -> bool:
    """Whether its norm came with its network, from a pre-training or from elsewhere."""
    return entry.facts["norm"] == "own" or bool(entry.record.training.get("outside"))


_IN_OTHER_WORDS = ("pretrained.what", "pretrained.saw")
"""Facts that the digest of a file, or the settings of a pre-training, tell as well."""


def configurations(group: Sequence[Entry]) -> list[Configuration]:
    """The configurations among entries of one metric on one bench, by name."""
    telling, runs = telling_facts(group), []
    for part, keys in row_groups(group, set()):
        own = telling[part[0].record.method]
        # The norm has columns of its own, but tells rows of a matrix.
        known = (name for name in shown_of(part[0], own) if name not in (*NORM_FACTS, *_IN_OTHER_WORDS))
        names = [*known, *({"record"} & set(keys))]
        norm = ["norm"] if "norm" in own else []
        runs.append(Configuration(part, named(part[0], [*norm, *names]), names))
    return sorted(runs, key=lambda run: natural(run.label))


def best_first(runs: Iterable[Configuration]) -> list[Configuration]:
    """Configurations by their means."""

    def order(run: Configuration) -> tuple[float, Natural]:
        mean = estimate_of(run.entries).mean
        return (-mean if run.first.score.better == "higher" else mean), natural(run.label)

    return sorted(runs, key=order)


def _pair_order(a: Configuration, b: Configuration) -> tuple[bool, Natural]:
    """Pairs of methods by norm, then those within a method."""
    within = a.first.record.method == b.first.record.method
    return within, natural("" if within else a.first.facts["norm"])


def _settings(a: Configuration, b: Configuration, choices: Sequence[str], data_keys: Sequence[str]) -> str:
    if choices:
        varied = [in_words(a.first, [name for name in a.names if name not in choices])]
    else:
        varied = [f"{run.first.record.method} {in_words(run.first, run.names)}" for run in (a, b) if run.names]
    return "; ".join(filter(None, (*varied, in_words(a.first, data_keys))))


_CHOICES = (*NORM_FACTS, "method code", "recalibrated")
"""Facts that configurations of a method may differ in, as in its settings, and be compared."""


def _differing_choices(a: Entry, b: Entry) -> list[str]:
    """What of :data:`_CHOICES` and of its settings two configurations of a method differ in; nothing if in more."""
    names = {n for n in a.facts.keys() | b.facts.keys() if a.facts.get(n) != b.facts.get(n)} - {"record"}
    if any(name not in _CHOICES and not name.startswith("settings.") for name in names):
        return []
    return sorted(names - {"inductive"})


def nothing_to_pair(records: Sequence[Record]) -> UserError:
    """The error where :func:`method_differences` finds nothing: what there is, and why that is not enough."""
    names = ("norm", *COMPARABLE, "protocol", "data.fingerprint")
    have = dict.fromkeys(f"{e.bench} {e.record.method} ({in_words(e, names)})" for e in of_best_models(records))
    return UserError(
        "a paired difference needs two methods measured in the same way on one bench: same norm, queries, preset, "
        "source, test tasks, protocol and data; or one method twice, with nothing but its settings, the norm or its "
        f"code changed. There are: {'; '.join(have) or 'none'}. Run another method in the same way."
    )


def _comparison(
    matrix: int, runs: tuple[Configuration, Configuration], choices: Sequence[str], settings: str, decision: Decision
) -> Comparison:
    first, second = (run.entries for run in runs)
    score = first[0].score
    method, against = (named(entries[0], choices) for entries in (first, second))
    facts, others = first[0].facts, second[0].facts
    differs = [
        fact_in_words(name, {method: facts[name], against: others[name]})
        for name in sorted(facts.keys() & others.keys() - {"method", "method code", "record"})
        if facts[name] != others[name] and not choices
    ]
    each = {method: seeds_of(first), against: seeds_of(second)}
    differs += [fact_in_words("seeds", each)] if varies(each) else []
    both = ("norm", "inductive", "queries", "device", "protocol", "source")
    attributes = {
        **{name: "/".join(dict.fromkeys((facts[name], others[name]))) for name in both},
        "bench": first[0].bench,
        "budget": budget_in_words(facts["preset"], span((facts["iterations"], others["iterations"]))),
        "settings": settings,
        "seeds": ",".join(map(str, decision.seeds)) or "none in common",
        "tasks": facts["test_tasks"],
    }
    unpaired = combined([estimate_of(first), estimate_of(second)], [1.0, -1.0]).ci95
    return Comparison(
        matrix, *runs, score.metric, score.unit, score.better, method, against, attributes, "; ".join(differs),
        decision, unpaired,
    )  # fmt: skip


def paired_tables(comparisons: Iterable[Comparison]) -> list[WideTable]:
    """One matrix for each metric and bench: row less column, best first.

    Args:
        comparisons: as :func:`method_differences` gives them.
    """
    return [_matrix(group) for group in grouped(comparisons, lambda c: c.matrix).values()]


def _matrix(comparisons: Sequence[Comparison]) -> WideTable:
    one = comparisons[0]
    shown = {c.first.label: c.first for c in comparisons} | {c.second.label: c.second for c in comparisons}
    labels = [run.label for run in best_first(shown.values())]
    pairs = {(c.first.label, c.second.label): c.decision for c in comparisons}
    pairs |= {(b, a): decision.reversed() for (a, b), decision in pairs.items()}
    against = {c.second.label for c in comparisons}
    columns = against if len(against) == 1 and len(labels) > 2 else set(labels)
    rows = [
        Row(
            label + stand_in_mark(shown[label].first.facts["source"]),
            _attributes(shown[label]),
            {c: _cell(pairs[label, c], one.unit) for c in labels if (label, c) in pairs and c in columns},
            frozenset(c for c in labels if (label, c) in pairs and pairs[label, c].p_holm < LEVEL),
        )
        for label in labels
        if any((label, c) in pairs and c in columns for c in labels)
    ]
    bench = one.attributes["bench"]
    return WideTable(
        name=f"paired_{one.metric}",
        title=f"{one.metric} on {bench}, row less column ({qualities_of_differences(one.unit, one.better)})",
        benches=tuple(label for label in labels if label in columns),
        rows=tuple(rows),
        published=(),
        notes=tuple(_notes(comparisons, shown)),
        row_name="row less column",
        heading=f"{one.metric} on {bench}, row less column",
    )


def _attributes(run: Configuration) -> dict[str, str]:
    facts = run.first.facts
    return {
        **{name: facts[name] for name in ("norm", "inductive", "queries", "device", "protocol", "source")},
        "budget": budget_in_words(facts["preset"], facts["iterations"]),
        "seeds": seeds_of(run.entries),
        "tasks": facts["test_tasks"],
    }


def _cell(decision: Decision, unit: str) -> Cell:
    cell = signed_cell(decision.estimate, unit)
    return Cell(cell.mean, cell.ci95, cell.text, spread=decision.verdict)


def _notes(comparisons: Sequence[Comparison], shown: Mapping[str, Configuration]) -> Iterable[str]:
    decisions = [c.decision for c in comparisons]
    trainings = {d.estimate.trainings for d in decisions}
    over = "the test tasks" if trainings == {1} else f"{span(map(str, trainings))} trainings and the test tasks"
    yield (
        f"Mean over {over} of the row's score less the column's on the same task; ± is the 95 % half-width of this "
        "difference, not corrected."
    )
    total = len(shown) * (len(shown) - 1) // 2
    yield (
        "In brackets what it says of the row: better, worse, or undecided, by a t test at 5 % after Holm's correction "
        f"for all pairs of the methods on this bench{f' ({total})' if total else ''}; bold where it differs from zero. "
        "undecided does not say that two are equal: --margin does."
    )
    if margin := next((d.margin for d in decisions if d.margin), ""):
        yield (
            f"equal within {margin}: two one-sided tests at 5 %, Holm-corrected, show that the difference is smaller, "
            "be it zero or not."
        )
    if note := models_note(decisions):
        yield note
    facts = {
        name: {label: run.first.facts.get(name) for label, run in shown.items()} for name in ("iterations", "device")
    }
    unlike = {name: {k: v for k, v in values.items() if v} for name, values in facts.items()}
    each = {label: seeds_of(run.entries) for label, run in shown.items()}
    words = [fact_in_words(name, values) for name, values in {**unlike, "seeds": each}.items() if varies(values)]
    if words:
        yield f"Measured differently: {'; '.join(words)}. A difference is over the seeds that both have."
    if any(d.estimate.tasks == 1 for d in decisions):
        yield NO_INTERVAL_NOTE
    if any(stand_in_mark(c.attributes["source"]) for c in comparisons):
        yield STAND_IN_NOTE


def paired_csv(comparisons: Iterable[Comparison]) -> str:
    """Paired differences as CSV; floats in full and in the metric's own unit."""
    import pandas as pd  # here, since figures and tables do without

    rows = [
        {
            "metric": c.metric,
            "method": c.method,
            "against": c.against,
            **{name: c.attributes[name] for name in ATTRIBUTES if name in c.attributes},
            "differs": c.differs,
            "difference": c.mean,
            "ci95": finite(c.ci95),
            "ci95_unpaired": finite(c.unpaired_ci95),
            "trainings": c.decision.estimate.trainings,
            "p": c.decision.estimate.p,
            "p_holm": c.decision.p_holm,
            "p_equal_holm": c.decision.p_equal,
            "margin": c.decision.margin,
            "verdict": c.verdict,
            "about": "methods" if c.decision.of_methods else "these trained models",
            "unit": c.unit,
        }
        for c in comparisons
    ]
    return csv_text(pd.DataFrame(rows))

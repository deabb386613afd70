"""Several benches together, against scipy's ranks and sums over tasks by hand."""

import numpy as np
import pytest
from scipy import stats

from builders import make_record, make_scores
from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import estimate
from mlpip_bench.reporting.tables.overall import (
    average_ranks,
    benches_together,
    overall_tables,
    probability_of_improvement,
)

BENCHES, METHODS = ("omni5w1s", "mini5w1s", "tiny5w1s"), ("alpha", "beta", "gamma")


def made(
    metric: str = "accuracy", seeds: int = 1, methods: tuple[str, ...] = METHODS
) -> tuple[list[Record], np.ndarray]:
    """Records, and their scores ``[bench, method, seed, task]``."""
    rng = np.random.default_rng(0)
    scores = rng.normal(0.5, 0.1, (len(BENCHES), len(methods), seeds, 20)).round(2)
    records = [
        make_record(make_scores(scores[b, m, s], metric, bench=bench), bench=bench, method=method, seed=s)
        for b, bench in enumerate(BENCHES) for m, method in enumerate(methods) for s in range(seeds)
    ]  # fmt: skip
    return records, scores


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", -1), ("nll", 1)])
def test_average_ranks_are_scipys(metric: str, sign: int) -> None:
    records, scores = made(metric)
    (benches,) = benches_together(records).values()
    expected = stats.rankdata(sign * scores.mean((2, 3)), axis=1).mean(0)
    assert average_ranks(benches) == pytest.approx(dict(zip(METHODS, expected, strict=True)))


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
def test_the_probability_of_improvement_is_the_share_of_tasks_done_better(metric: str) -> None:
    records, scores = made(metric)
    (benches,) = benches_together(records).values()
    x, y = scores[:, 0, 0], scores[:, 1, 0]
    assert (x == y).any()  # a tie is half
    better = (x > y) if metric == "accuracy" else (x < y)
    shares = better + 0.5 * (x == y)
    found = probability_of_improvement(benches, "alpha", "beta")
    assert found.mean == pytest.approx(shares.mean())
    errors = [stats.sem(row) for row in shares]
    assert found.standard_error == pytest.approx(np.sqrt(np.square(errors).sum()) / 3)
    back = probability_of_improvement(benches, "beta", "alpha")
    assert (back.mean, back.ci95) == pytest.approx((1 - found.mean, found.ci95))


def test_several_seeds_are_in_its_interval() -> None:
    records, scores = made(seeds=3)
    (benches,) = benches_together(records).values()
    x, y = scores[:, 0], scores[:, 1]
    parts = [estimate(((1 + np.sign(a - b)) / 2).tolist(), (0, 1)) for a, b in zip(x, y, strict=True)]
    found = probability_of_improvement(benches, "alpha", "beta")
    assert found.trainings == 3
    assert found.standard_error == pytest.approx(np.sqrt(sum(p.standard_error**2 for p in parts)) / 3)


def test_adding_a_method_moves_no_other_probability_and_one_bench_has_no_table() -> None:
    records, _ = made()
    more = [*records, *(make_record(make_scores(bench=b), bench=b, method="delta") for b in BENCHES[:2])]
    (table,) = overall_tables(records)
    (same,) = overall_tables(more)  # of which one bench lacks the new method
    assert table == same
    assert table.benches[0] == "average rank"
    assert overall_tables(records[:3]) == []


def test_stand_ins_are_never_averaged_with_real_data() -> None:
    records, _ = made()
    stand_in = [
        make_record(make_scores(bench=b), bench=b, method=m, source="procedural") for b in BENCHES for m in METHODS
    ]
    names = [[row.label for row in table.rows] for table in overall_tables([*records, *stand_in])]
    assert len(names) == 2
    assert any(all(label.endswith("(stand-in)") for label in labels) for labels in names)

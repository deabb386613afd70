"""Performance profiles against shares counted by hand."""

import numpy as np
import pytest

from builders import drawn, make_record, make_scores
from mlpip_bench.reporting.figures.profile import profile, reached
from mlpip_bench.reporting.tables.overall import benches_together

SCORES = {"omni5w1s": (0.2, 0.4, 0.9, 0.9), "omni5w5s": (0.6, 0.7, 0.8, 1.0)}


def records(*methods: str):
    return [
        make_record(make_scores(scores, bench=bench), bench=bench, method=method)
        for bench, scores in SCORES.items()
        for method in methods
    ]


def test_a_line_is_the_share_of_tasks_that_reach_an_accuracy():
    made = records("alpha", "beta")
    (benches,) = benches_together(made).values()
    assert [reached(benches, "alpha", level).mean for level in (0.1, 0.5, 0.9)] == pytest.approx([1, 0.75, 0.375])
    (axes,) = drawn(profile(made)).axes
    x, y = axes.lines[0].get_data()
    expected = [np.mean([np.mean(np.array(s) >= level / 100 - 1e-12) for s in SCORES.values()]) for level in x]
    np.testing.assert_allclose(y, np.multiply(100, expected), atol=13)  # at a step, a level may lie on either side
    assert (np.diff(y) <= 1e-9).all()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["alpha", "beta"]


def test_one_bench_or_one_method_has_none():
    assert profile(records("alpha")) is None
    assert profile(records("alpha", "beta")[:2]) is None

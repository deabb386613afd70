"""What the figures that compare methods show, against the records they are made from and independent numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from builders import drawn, make_record, make_scores
from mlpip_bench.records import published
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.reporting.figures import comparison, writing
from mlpip_bench.reporting.figures.scores import scores

HISTORY = [{"iteration": 50, "loss": 2.0, "accuracy": 0.5}, {"iteration": 100, "loss": 1.0, "accuracy": 0.7}]


def record(*scores: Scores, history: Sequence[dict[str, float]] = (), session: str = "", **changes: Any) -> Record:
    environment = {"session": session, "processor": "Abacus", "threads": 2} if session else {}
    scores = scores or (make_scores((0.2, 0.4, 0.9)),)
    return make_record(*scores, training={"history": list(history)}, environment=environment, test_tasks=3, **changes)


def bars(axes: Axes, label: str) -> np.ndarray:
    """Of one series ``[point, (place, mean, low, high)]``, from the top."""
    (found,) = [c for c in axes.containers if c.get_label() == label]
    assert isinstance(found, matplotlib.container.ErrorbarContainer)
    ends = np.array([segment[:, 0] for segment in found.lines[2][-1].get_segments()])
    points = np.hstack([found.lines[0].get_xydata()[:, ::-1], ends])
    return points[points[:, 0].argsort()]


def ticks(axes: Axes) -> list[str]:
    return [tick.get_text() for tick in axes.get_yticklabels()]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    return float(np.mean(values)), float(low), float(high)


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


# ---------------------------------------------------------------------------------------------------------- scores


def test_scores_are_means_with_student_t_intervals_a_panel_a_bench_and_metric_and_a_line_a_method() -> None:
    low, high = (0.20, 0.30, 0.50), (0.6, 0.7, 0.5)
    records = [
        record(make_scores(low, "accuracy"), make_scores((1.0, 1.5, 1.2), "nll"), bench="tiny5w1s"),
        record(make_scores(high, "accuracy"), bench="tiny20w1s"),
        record(make_scores(high, "accuracy"), bench="tiny5w1s", method="beta"),
    ]
    figure = drawn(scores(records))
    accuracy, nll, wider, _ = figure.axes
    assert accuracy.get_xlabel() == "accuracy\n(%)\nhigher is better"
    assert nll.get_xlabel() == "negative log-likelihood\n(nats per query)\nlower is better"
    titles = [axes.get_title(loc="left") for axes in (accuracy, wider)]
    assert titles == ["tiny5w1s, quick, 1,500 it", "tiny20w1s, quick, 1,500 it"]
    assert (ticks(accuracy), ticks(wider)) == (["alpha", "beta"], ["alpha"])
    assert accuracy.get_ylim()[0] > 1 > 0 > accuracy.get_ylim()[1]  # the first on top
    shown = ((bars(accuracy, "alpha"), 0, low), (bars(wider, "alpha"), 0, high), (bars(accuracy, "beta"), 1, high))
    for (point,), place, values in shown:
        np.testing.assert_allclose(point, [place, *np.multiply(100, interval(values))])
    np.testing.assert_allclose(bars(nll, "alpha")[0, 1:], interval((1.0, 1.5, 1.2)))
    title = "bar: 95 % Student-t interval over test tasks"
    assert figure.legends[0].get_title().get_text() == f"{title}; norm metabn, queries 15"
    other = drawn(scores([*records, record(bench="tiny5w1s", method="gamma", norm="running")]))
    assert other.legends[0].get_title().get_text() == title


def test_a_unit_with_brackets_is_a_unit() -> None:
    own = make_scores((1.0, 2.0), "cost", unit="steps (inner)", better="lower")
    (axes,) = drawn(scores([record(own)])).axes
    assert axes.get_xlabel() == "cost\n(steps (inner))\nlower is better"


def test_figures_are_as_wide_as_a_column_of_text() -> None:
    many = [record(make_scores((0.2, 0.4), m)) for m in ("accuracy", "nll", "ece")]
    for figure in (scores(many), comparison.learning([record(history=HISTORY)]), comparison.cost([record(), timed(9)])):
        assert drawn(figure).get_figwidth() <= 397 / 72.27


def test_seeds_are_averaged_task_by_task_before_the_interval() -> None:
    first, second = (0.2, 0.3, 0.5), (0.4, 0.7, 0.3)
    records = [record(make_scores(values, "accuracy"), seed=seed) for seed, values in enumerate((first, second))]
    figure = drawn(scores(records))
    shown = bars(figure.axes[0], "alpha")[0, 1:]
    np.testing.assert_allclose(shown, np.multiply(100, interval(np.mean([first, second], axis=0))))
    assert ticks(figure.axes[0]) == ["alpha, mean of 2 seeds"]


def test_near_all_and_near_nothing_the_scales_spread_what_would_fall_together() -> None:
    right, wrong = (0.97, 0.98, 1.0), (1.0, 1.0, 1.0)
    records = [
        record(make_scores(right, "accuracy"), make_scores((0.01, 0.03, 0.02), "nll")),
        record(make_scores(wrong, "accuracy"), make_scores((0.1, 0.0001, 0.5), "nll"), method="beta"),
    ]
    accuracy, nll = drawn(scores(records)).axes
    assert (accuracy.get_xscale(), nll.get_xscale()) == ("logit", "log")
    assert "logit scale" in accuracy.get_xlabel()
    assert ", log scale" in nll.get_xlabel()
    mean, low, high = interval(right)
    assert high > 1
    np.testing.assert_allclose(bars(accuracy, "alpha")[0, 1:], [mean, low, 0.9999])
    exact = stats.binomtest(3, 3).proportion_ci(0.95, "exact").low  # all tasks score the same
    np.testing.assert_allclose(bars(accuracy, "beta")[0, 1:], [0.9999, exact, 0.9999])
    mean, low, high = interval((0.1, 0.0001, 0.5))
    assert low < 0
    np.testing.assert_allclose(bars(nll, "beta")[0, 1:], [mean, 0.01, high])  # ends at half of the lowest mean
    assert 0 < nll.get_xlim()[0] <= 0.01


def test_the_papers_numbers_stand_gray_and_hollow_next_to_the_same_method_and_bench() -> None:
    records = [record(method="versa"), record(method="versa", norm="transductive"), record(method="zeta")]
    figure = drawn(scores(records, published.load()))
    (axes,) = figure.axes
    label = "published (conditions differ)"
    (shown,) = bars(axes, label)
    np.testing.assert_allclose(shown[1:], [0.9970, 0.9950, 0.9990])  # Table 3: 99.70 +- 0.20
    ours = [bars(axes, name)[0, 0] for name in ("versa, norm metabn", "versa, norm transductive", "zeta")]
    assert ours == [0, 1, 2]
    assert 1 < shown[0] < 2
    (line,) = [c.lines[0] for c in axes.containers if c.get_label() == label]
    assert line.get_markerfacecolor() == "white"
    assert legend(figure) == [label]


@pytest.mark.parametrize("changes", [{"source": "procedural"}, {"bench": "omni7w1s"}, {"method": "alpha"}])
def test_nothing_published_is_shown_next_to_what_it_is_not_of(changes: dict[str, str]) -> None:
    figure = drawn(scores([record(**{"method": "versa", **changes})], published.load()))
    assert not [text for text in legend(figure) if "published" in text]


@pytest.mark.parametrize(
    "other",
    [
        make_scores((0.5, 0.6), "accuracy", model="last"),
        make_scores((0.5, 0.6), "accuracy", condition={"asked": "one at a time"}),
        make_scores((0.5, 0.6), "coverage"),
    ],
)
def test_scores_of_other_models_and_conditions_and_without_a_direction_are_left_out(other: Scores) -> None:
    assert scores([record(other)]) is None


def test_one_task_has_no_bar() -> None:
    (axes,) = drawn(scores([record(make_scores([0.3], "accuracy"))])).axes
    np.testing.assert_allclose(bars(axes, "alpha")[0, 1:], 30)


# -------------------------------------------------------------------------------------------------------- learning


def curve(*accuracies: float) -> list[dict[str, float]]:
    return [{"iteration": 50 * i, "loss": 9.0, "accuracy": a} for i, a in enumerate(accuracies, 1)]


def test_a_curve_is_validation_against_tasks_seen_once_a_trial() -> None:
    records = [record(history=HISTORY, protocol=p, queries=q) for p, q in (("accuracy", 15), ("nll", 15), ("nll", 1))]
    figure = drawn(comparison.learning(records))
    (axes,) = figure.axes
    (line,) = axes.lines
    np.testing.assert_allclose(line.get_xydata(), [[200, 50], [400, 70]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training tasks seen", "validation accuracy\n(%)")
    assert legend(figure) == ["alpha"]


def test_seeds_are_a_mean_in_a_band_of_their_range() -> None:
    curves = [(0.2, 0.6), (0.4, 0.7), (0.3, 0.2)]
    records = [record(history=curve(*c), seed=seed) for seed, c in enumerate(curves)]
    figure = drawn(comparison.learning(records))
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 100 * np.mean(curves, axis=0))
    corners = axes.collections[0].get_paths()[0].vertices
    for x, low, high in ((200, 20, 40), (400, 20, 70)):
        at = corners[corners[:, 0] == x, 1]
        np.testing.assert_allclose([at.min(), at.max()], [low, high])
    assert legend(figure) == ["alpha, mean of 3 seeds"]
    assert figure.legends[0].get_title().get_text() == "band: range of the seeds"


def test_a_seed_that_was_validated_less_often_is_shown_where_all_were() -> None:
    histories = ([*HISTORY, {"iteration": 150, "loss": 1.0, "accuracy": 0.8}], HISTORY[1:])
    records = [record(history=history, seed=seed) for seed, history in enumerate(histories)]
    (axes,) = drawn(comparison.learning(records)).axes
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[400, 70]])


@pytest.mark.parametrize("parameters", [0, 10])
def test_seeds_without_a_common_validation_have_no_line(parameters: int) -> None:
    records = [record(history=[HISTORY[i]], seed=i, parameters=parameters) for i in (0, 1)]
    (axes,) = drawn(comparison.learning(records)).axes
    assert not axes.lines


def test_losses_alone_are_no_curve() -> None:
    assert comparison.learning([record(history=[{"iteration": 50, "loss": 2.0}])]) is None


def test_metrics_have_panels_and_configurations_lines_that_differ_without_color() -> None:
    def both(start: float) -> list[dict[str, float]]:
        return [{**entry, "nll": start + i} for i, entry in enumerate(HISTORY)]

    names = [f"method{i:02}" for i in range(14)]
    records = [record(method=name, history=both(i)) for i, name in enumerate(names)]
    accuracy, nll = drawn(comparison.learning(records)).axes
    assert nll.get_ylabel() == "validation nll"  # no record says its unit
    np.testing.assert_allclose([line.get_ydata()[0] for line in nll.lines], range(14))
    looks = [(line.get_marker(), line.get_linestyle()) for line in accuracy.lines]
    assert len(set(looks)) == 14


def test_what_has_no_parameters_is_a_level_line() -> None:
    (axes,) = drawn(comparison.learning([record(history=curve(0.3), parameters=0)])).axes
    (line,) = axes.lines
    assert list(line.get_ydata()) == [30, 30]
    assert line.get_transform() == axes.get_yaxis_transform(which="grid")  # from edge to edge
    assert comparison.learning([record()]) is None


# ------------------------------------------------------------------------------------------------------------ cost


def timed(*rates: float, session: str = "2026-01-01 10:00:00", **changes: Any) -> Record:
    """Tasks a second, one at a time and, misleadingly faster, many at once."""
    over: dict[str, Any] = {"unit": "tasks per second", "better": "higher", "over": "repeats"}
    fast = [1000 * rate for rate in rates]
    return record(
        make_scores(rates, "tasks_per_second", condition={"regime": "latency"}, **over),
        make_scores(fast, "tasks_per_second", condition={"regime": "throughput"}, **over),
        make_scores(fast, "tasks_per_second", condition={"regime": "latency", "steps": 1}, **over),
        protocol="timing",
        session=session,
        **changes,
    )


def test_cost_is_the_median_time_of_a_task_with_quartiles() -> None:
    rates = (100, 50, 20, 40, 25)  # 10, 20, 50, 25 and 40 ms
    figure = drawn(comparison.cost([record(), timed(*rates), record(method="beta"), timed(8, method="beta")]))
    (axes,) = figure.axes
    alpha, beta = axes.containers
    across, up = alpha.lines[2]
    mean, low, high = np.multiply(100, interval((0.2, 0.4, 0.9)))
    np.testing.assert_allclose(alpha.lines[0].get_xydata(), [[25, mean]])
    np.testing.assert_allclose(across.get_segments()[0][:, 0], [20, 40])
    np.testing.assert_allclose(up.get_segments()[0][:, 1], [low, high])
    assert beta.lines[0].get_xydata()[0, 0] == 125
    assert axes.get_xscale() == "log"
    assert not axes.get_title()
    assert legend(figure) == ["alpha", "beta"]


def test_sessions_have_panels_of_their_own() -> None:
    records = [record(), timed(10, session="1"), record(method="beta"), timed(20, session="2", method="beta")]
    first, second = drawn(comparison.cost(records)).axes
    assert [axes.containers[0].lines[0].get_xdata()[0] for axes in (first, second)] == [100, 50]
    assert [axes.get_title() for axes in (first, second)] == ["session 1", "session 2"]


@pytest.mark.parametrize("other", [{"iterations": 2}, {"settings": {"steps": 5}}, {"seed": 1}, {"method": "beta"}])
def test_a_time_of_another_model_is_not_shown_with_an_accuracy(other: dict[str, Any]) -> None:
    assert comparison.cost([record(), timed(10, **other)]) is None


# --------------------------------------------------------------------------------------------------------- writing


def everything(**changes: Any) -> list[Record]:
    return [
        made
        for method in ("alpha", "beta")
        for seed in (0, 1)
        for made in (
            record(method=method, seed=seed, history=curve(0.2, 0.3 + seed), **changes),
            timed(10, 20, method=method, seed=seed, **changes),
        )
    ]


def test_a_figure_on_stand_in_data_says_so() -> None:
    found = {stem: figure.get_suptitle() for stem, figure in writing.draw_figures(everything(source="procedural"))}
    assert found == {
        "scores-omni-stand-in": "Scores on omni, stand-in data",
        "learning-omni5w1s-stand-in": "Learning curves on omni5w1s, stand-in data",
        "cost-omni5w1s-stand-in": "Cost against accuracy on omni5w1s, stand-in data",
    }


def test_the_same_records_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    first = writing.write_figures(everything(), tmp_path / "a")
    second = writing.write_figures(everything()[::-1], tmp_path / "b")
    assert len(first) == 2 * 3
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_curve_of_one_validation_has_one_tick() -> None:
    (axes,) = drawn(comparison.learning([record(history=HISTORY[:1], iterations=50)])).axes
    assert axes.get_xticks().tolist() == [200]  # 50 iterations of 4 tasks

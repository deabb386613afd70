"""What figures show, against the records they are made from and numbers computed independently."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from scipy import stats

from builders import drawn, invoke, make_record, make_scores
from mlpip_bench.records import store
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.reporting.figures import calibration, steps, writing
from mlpip_bench.reporting.figures.style import COLORS, despine
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.provenance import STAND_INS

GAPS = (0.1, 0.4, 0.25)
BINS = {  # two bins of four are filled
    "count": (0.0, 10.0, 0.0, 30.0),
    "confidence": (0.0, 0.4, 0.0, 0.9),
    "accuracy": (0.0, 0.3, 0.0, 0.6),
    "accuracy_ci95": (0.0, 0.34, 0.0, 0.05),
}


def record(*scores: Scores, **changes: Any) -> Record:
    scores = scores or (make_scores(GAPS, "ece", detail=BINS),)
    return make_record(*scores, **({"protocol": "calibration", "iterations": 100} | changes))


def stepped(**changes: Any) -> Record:
    by_steps = {0: (0.2, 0.1, 0.3), 1: (0.5, 0.6, 0.4), 10: (0.9, 0.8, 1.0)}
    return record(
        *(make_scores(values, "accuracy", condition={"steps": n}) for n, values in by_steps.items()),
        *(make_scores([1 - v for v in values], "nll", condition={"steps": n}) for n, values in by_steps.items()),
        **changes,
    )


def points(axes: Axes, bar: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Positions ``[point, (x, y)]`` and ends of the bars ``[point, (low, high)]`` of an error-bar line."""
    container = axes.containers[bar]
    assert isinstance(container, matplotlib.container.ErrorbarContainer)
    line, _, (bars,) = container.lines
    return np.array(line.get_xydata()), np.array([segment[:, 1] for segment in bars.get_segments()])


def half_width(values: Sequence[float]) -> float:
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    return float(high - low) / 2


# ----------------------------------------------------------------------------------------------------------- looks


def test_figures_look_as_seaborns_ticks_and_colorblind() -> None:
    import seaborn  # type: ignore[import-untyped]

    wanted = {name: value for name, value in seaborn.axes_style("ticks").items() if name != "image.cmap"}
    with matplotlib.style.context(writing.STYLE):
        assert {name: matplotlib.rcParams[name] for name in wanted} == wanted
    assert seaborn.color_palette("colorblind").as_hex() == COLORS


def test_despined_axes_are_seaborns() -> None:
    import seaborn

    ours, theirs = matplotlib.figure.Figure().subplots(1, 2)
    despine(ours)
    seaborn.despine(ax=theirs)
    for side, spine in theirs.spines.items():
        assert ours.spines[side].get_visible() == spine.get_visible(), side


# ----------------------------------------------------------------------------------------------------- reliability


def test_a_panel_shows_the_bins_that_have_queries() -> None:
    diagram, counts = drawn(calibration.reliability([record()])).axes
    shown, bars = points(diagram)
    assert shown.tolist() == [[0.4, 0.3], [0.9, 0.6]]
    np.testing.assert_allclose(bars, [[0.0, 0.64], [0.55, 0.65]])  # the first would begin below 0
    assert [(p.get_x(), p.get_width(), p.get_height()) for p in counts.patches] == [
        (0.0, 0.25, 0), (0.25, 0.25, 10), (0.5, 0.25, 0), (0.75, 0.25, 30),
    ]  # fmt: skip
    assert diagram.get_title() == f"alpha\nECE 25.00 ± {100 * half_width(GAPS):.2f} %"
    assert (diagram.get_ylabel(), counts.get_ylabel(), counts.get_xlabel()) == ("accuracy", "queries", "confidence")


def test_a_bin_whose_interval_says_nothing_is_hollow_and_has_none() -> None:
    wide = BINS | {"accuracy_ci95": (0.0, 0.5, 0.0, 0.05)}
    figure = drawn(calibration.reliability([record(make_scores(GAPS, "ece", detail=wide))]))
    shown, _ = points(figure.axes[0])
    assert shown.tolist() == [[0.9, 0.6]]
    (hollow,) = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert hollow.get_xydata().tolist() == [[0.4, 0.3]]
    assert hollow.get_label() in [text.get_text() for text in figure.legends[0].get_texts()]


def test_seeds_are_averaged_by_their_queries_and_bins_that_one_seed_lacks_are_kept() -> None:
    other = {"count": (0.0, 30.0, 2.0, 0.0), "confidence": (0.0, 0.44, 0.6, 0.0)}
    other |= {"accuracy": (0.0, 0.7, 0.5, 0.0), "accuracy_ci95": (0.0, 0.1, 0.3, 0.0)}
    second = record(make_scores((0.3, 0.0, 0.15), "ece", detail=other), seed=1)
    diagram, counts = drawn(calibration.reliability([record(), second])).axes
    shown, bars = points(diagram)
    np.testing.assert_allclose(shown, [[0.43, 0.6], [0.6, 0.5], [0.9, 0.6]])
    np.testing.assert_allclose(bars, [[0.44, 0.76], [0.2, 0.8], [0.55, 0.65]])
    assert [p.get_height() for p in counts.patches] == [0, 20, 1, 15]
    assert diagram.get_title() == f"alpha, mean of 2 seeds\nECE 20.00 ± {100 * half_width((0.2, 0.2, 0.2)):.2f} %"


def test_configurations_of_a_method_are_separate_and_say_what_differs() -> None:
    records = [record(norm="transductive"), record(), record(method="beta", settings={"rate": 1})]
    titles = [axes.get_title().split("\n")[0] for axes in drawn(calibration.reliability(records)).axes]
    assert [t for t in titles if t] == ["alpha, norm metabn", "alpha, norm transductive", "beta"]
    rates = [record(settings={"inner_rate": r}) for r in (0.1, 0.4)]
    titles = [axes.get_title().split("\n")[0] for axes in drawn(calibration.reliability(rates)).axes]
    assert [t for t in titles if t] == ["alpha, inner rate 0.1", "alpha, inner rate 0.4"]


def test_one_task_has_no_interval() -> None:
    diagram, _ = drawn(calibration.reliability([record(make_scores([0.1], "ece", detail=BINS))])).axes
    assert diagram.get_title().endswith("ECE 10.00 ± n/a %")


@pytest.mark.parametrize(
    "other",
    [
        make_scores(GAPS, "ece", detail=BINS, model="last"),
        make_scores(GAPS, "ece", detail=BINS, condition={"asked": "one at a time"}),
        make_scores(GAPS, "accuracy"),
    ],
)
def test_other_scores_are_not_shown(other: Scores) -> None:
    assert calibration.reliability([record(other)]) is None
    assert steps.steps([record(other)]) is None


# ----------------------------------------------------------------------------------------------------------- steps


def test_a_line_shows_means_and_intervals_by_number_of_steps() -> None:
    figure = drawn(steps.steps([stepped(), stepped(method="beta")]))
    accuracy, nll = figure.axes
    assert accuracy.get_ylabel() == "accuracy (%)"
    assert nll.get_ylabel() == "negative log-likelihood (nats per query)"
    width = half_width((0.2, 0.1, 0.3))
    for axes, means, unit in ((accuracy, [20, 50, 90], 100), (nll, [0.8, 0.5, 0.1], 1)):
        shown, bars = points(axes)
        np.testing.assert_allclose(shown, np.array([[0, 1, 10], means]).T)
        np.testing.assert_allclose(bars, [[m - unit * width, m + unit * width] for m in means])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["alpha", "beta"]


@pytest.mark.parametrize("methods", [4, 14])
def test_equal_scores_of_several_methods_are_drawn_next_to_each_other(methods: int) -> None:
    figure = drawn(steps.steps([stepped(method=f"method{i:02}") for i in range(methods)]))
    figure.draw_without_rendering()  # which lays out the axes
    for axes in figure.axes:
        low, high = axes.get_window_extent().intervalx
        lines = [c.lines[0] for c in axes.containers if isinstance(c, matplotlib.container.ErrorbarContainer)]
        assert {line.get_markerfacecolor() for line in lines} == {"none"}
        for point in range(3):
            positions = [line.get_transform().transform(line.get_xydata())[point, 0] for line in lines]
            gaps = np.diff(positions) * 72 / figure.dpi  # in points
            assert min(gaps) > 1.5
            assert sum(gaps) < 30
            assert low < min(positions)
            assert max(positions) < high
            at = axes.transData.transform((axes.containers[0].lines[0].get_xdata()[point], 0))[0]
            assert np.mean(positions) == pytest.approx(at)


def test_a_method_has_one_look_in_both_panels_and_no_other_has_it() -> None:
    names = [f"method{i:02}" for i in range(14)]
    records = [stepped(method=name) for name in names]
    records[0] = record(*(s for s in records[0].scores if s.metric == "nll"), method=names[0])
    looks = []
    for axes in drawn(steps.steps(records)).axes:
        lines = {c.get_label(): c.lines[0] for c in axes.containers}
        looks.append({n: (line.get_color(), line.get_marker(), line.get_linestyle()) for n, line in lines.items()})
    assert len(set(looks[1].values())) == 14
    assert looks[0].items() < looks[1].items()


# --------------------------------------------------------------------------------------------------------- writing


def test_every_bench_and_source_has_files_of_its_own(tmp_path: Path) -> None:
    records = [record(), record(source="procedural"), stepped(bench="mini5w5s")]
    paths = writing.write_figures(records, tmp_path)
    stems = (
        "scores-omni", "scores-omni-stand-in", "reliability-omni5w1s", "reliability-omni5w1s-stand-in",
        "steps-mini5w5s",
    )  # fmt: skip
    assert paths == [tmp_path / "figures" / f"{stem}.{suffix}" for stem in stems for suffix in ("png", "pdf")]
    assert [path.read_bytes()[:4] for path in paths] == [b"\x89PNG", b"%PDF"] * 5


@pytest.mark.parametrize("name", ["reliability", "steps"])
@pytest.mark.parametrize("source", ["real", "synthetic", *sorted(STAND_INS)])
def test_a_figure_on_stand_in_data_says_so(name: str, source: str) -> None:
    records = [record(*record().scores, *stepped().scores, source=source)]
    stand_in = source in ("procedural", "bundled")
    found = {stem: figure.get_suptitle() for stem, figure in writing.draw_figures(records)}
    title = found[f"{name}-omni5w1s-stand-in" if stand_in else f"{name}-omni5w1s"]
    assert title.endswith("on omni5w1s, stand-in data" if stand_in else "on omni5w1s")


def test_data_sets_are_separate_and_named_where_there_are_several() -> None:
    records = [record(), record(data="others", method="beta"), record(source="procedural"), record(bench="mini5w5s")]
    found = dict(writing.draw_figures(records))
    assert {stem: figure.get_suptitle() for stem, figure in found.items() if "scores" not in stem} == {
        "reliability-mini5w5s": "Reliability on mini5w5s",
        "reliability-omni5w1s-letters": "Reliability on omni5w1s (letters)",
        "reliability-omni5w1s-others": "Reliability on omni5w1s (others)",
        "reliability-omni5w1s-stand-in": "Reliability on omni5w1s, stand-in data",
    }
    for data, method in (("letters", "alpha"), ("others", "beta")):
        assert found[f"reliability-omni5w1s-{data}"].axes[0].get_title().startswith(f"{method}\n")


def test_configurations_are_in_the_order_of_their_numbers() -> None:
    records = [record(settings={"samples": n}) for n in (100, 5, 20)] + [record(settings={"samples": 0.05})]
    titles = [axes.get_title().split("\n")[0] for axes in drawn(calibration.reliability(records)).axes]
    assert [t for t in titles if t] == [f"alpha, samples {n}" for n in (0.05, 5, 20, 100)]


@pytest.mark.parametrize("methods", [1, 7])
def test_the_same_records_give_the_same_bytes_in_any_order(
    methods: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FIGURES", {"reliability": writing.FIGURES["reliability"]})
    names = [f"method{i:02}" for i in range(methods)]
    records = [r for name in names for r in (record(method=name, seed=0), record(method=name, seed=1))]
    first = writing.write_figures(records, tmp_path / "a")
    second = writing.write_figures(records[::-1], tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert not any(b"CreationDate" in path.read_bytes() for path in first)


def test_drawing_leaves_nothing_behind(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    writing.write_figures([record()], tmp_path)
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_a_dollar_in_a_name_begins_no_formula(tmp_path: Path) -> None:
    records = [make_record(make_scores(), method=method, settings={"$a_{": "$"}) for method in ("$x_{$", "a$^{b$")]
    assert all(path.is_file() for path in writing.write_figures(records, tmp_path))


def test_nothing_to_show_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none below .*records that .*\. Make some first.*--protocols calibration"):
        writing.write_figures([record(make_scores(GAPS, "accuracy", model="last"))], tmp_path)
    assert not (tmp_path / "figures").exists()


def test_the_command_makes_figures_from_records_alone(tmp_path: Path) -> None:
    store.save(record(), tmp_path)
    done = invoke("figures", "--results", tmp_path)
    assert done.exit_code == 0, done.output
    stems = ("scores-omni", "reliability-omni5w1s")
    expected = [tmp_path / "figures" / f"{stem}.{suffix}" for stem in stems for suffix in ("png", "pdf")]
    assert done.stdout.splitlines() == [str(path) for path in expected]
    assert all(path.exists() for path in expected)


def test_the_command_without_records_says_what_to_do(tmp_path: Path) -> None:
    done = invoke("figures", "--results", tmp_path, COLUMNS="400")
    assert done.exit_code == 2
    assert "figures are made from records" in done.stderr

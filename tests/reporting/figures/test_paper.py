"""What the paper's figures show, against the records they are made from and numbers computed independently."""

import base64
import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from scipy import stats

from builders import drawn, make_record, make_scores
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.reporting.figures import paper, pictures, style, writing


def score(metric: str, per_task: Sequence[float], detail: Mapping[str, Any] | None = None, **changes: Any) -> Scores:
    last = metric in ("kl", "variance_ratio")
    defaults = {"unit": "fraction", "better": "neither", "way": 1, "shot": 5, "model": "last" if last else "best"}
    kept = {k: v if isinstance(v, str) else tuple(map(float, np.ravel(v))) for k, v in (detail or {}).items()}
    return make_scores(per_task, metric, detail=kept, **(defaults | changes))


def record(*scores: Scores, bench: str, **changes: Any) -> Record:
    return make_record(*scores, bench=bench, **({"protocol": "any", "data": "d", "iterations": 100} | changes))


def interval(values: Sequence[float]) -> tuple[float, float]:
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    return float(low), float(high)


def bars(axes: Axes, label: str | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Points ``[point, (x, y)]`` and ends ``[point, (low, high)]`` of each error-bar line, or of those so labeled."""
    found = [c for c in axes.containers if isinstance(c, matplotlib.container.ErrorbarContainer)]
    return [
        (np.array(c.lines[0].get_xydata()), np.array([s[:, 1] for s in c.lines[2][0].get_segments()]))
        for c in found
        if label is None or c.get_label() == label
    ]


# ------------------------------------------------------------------------------------------------------- posterior

OBSERVATIONS = [[0.0, 2.0], [-1.0, 1.0], [3.0, 4.0]]
TRUTH = {"true_mean": [0.5, 0.0, 2.0], "true_std": [0.6, 0.6, 0.6], "observations": OBSERVATIONS}


def recovered(
    q_mean: Sequence[float] = (0.4, 0.1, 2.2), q_std: Sequence[float] = (0.5, 0.7, 0.6), bench: str = "toy2", **kw: Any
) -> Record:
    kl = score("kl", [0.1, 0.2, 0.6], TRUTH | {"q_mean": q_mean, "q_std": q_std}, unit="nats", shot=2)
    return record(kl, bench=bench, source="synthetic", **kw)


def test_posteriors_are_the_densities_of_the_records() -> None:
    other = recovered((0.3, 0.0, 2.0), (0.2, 0.3, 0.4), method="beta")
    figure = drawn(paper.posterior([recovered(), other]))
    assert len(figure.axes) == 3
    for task, axes in enumerate(figure.axes):
        true, alpha, beta, observed = axes.lines
        for line, mean, std in (
            (true, TRUTH["true_mean"][task], 0.6),
            (alpha, (0.4, 0.1, 2.2)[task], (0.5, 0.7, 0.6)[task]),
            (beta, (0.3, 0.0, 2.0)[task], (0.2, 0.3, 0.4)[task]),
        ):
            psi, density = line.get_data()
            np.testing.assert_allclose(density, np.exp(-(((psi - mean) / std) ** 2) / 2) / std / np.sqrt(2 * np.pi))
            assert psi.min() <= mean - 4 * std + 1e-9
            assert psi.max() >= mean + 4 * std - 1e-9
        assert observed.get_xdata().tolist() == OBSERVATIONS[task]
        assert max(observed.get_ydata()) < 0
    half = (lambda ends: (ends[1] - ends[0]) / 2)(interval([0.1, 0.2, 0.6]))
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    kl = f"KL 0.3000 ± {half:.4f} nats"
    assert legend == ["true posterior", f"alpha\n{kl}", f"beta\n{kl}", "observations"]
    assert figure.axes[0].get_ylabel() == "density"


def test_four_unseen_tasks_are_shown_at_most_and_a_near_point_mass_does_not_set_the_scale() -> None:
    detail = {name: np.full(6, value) for name, value in (("true_mean", 0.0), ("q_mean", 0.1), ("true_std", 0.5))}
    detail |= {"q_std": np.full(6, 1e-4), "observations": np.arange(12.0)}
    point_mass = record(score("kl", [9.0] * 6, detail, shot=2), bench="toy2", source="synthetic")
    figure = drawn(paper.posterior([point_mass]))
    assert len(figure.axes) == 4
    highest = 1 / 0.5 / np.sqrt(2 * np.pi)
    axes = figure.axes[3]
    assert axes.lines[1].get_ydata().max() == pytest.approx(1e4 / np.sqrt(2 * np.pi))
    assert highest < axes.get_ylim()[1] < 3 * highest
    assert axes.lines[-1].get_xdata().tolist() == [6, 7]


def test_of_several_seeds_the_first_is_shown_and_named() -> None:
    records = [recovered(seed=4), recovered((0, 0, 0), seed=1)]
    figure = drawn(paper.posterior(records))
    assert figure.legends[0].get_texts()[1].get_text().startswith("alpha, seed 1\n")
    psi, density = figure.axes[2].lines[1].get_data()
    assert psi[density.argmax()] == pytest.approx(0)


def test_a_divergence_without_posteriors_is_not_shown() -> None:
    assert paper.posterior([record(score("kl", [0.1, 0.2]), bench="linear5s")]) is None


# --------------------------------------------------------------------------------------------------------- samples


def swept(ratios: Mapping[int, Sequence[float]], bench: str = "toy5", **kw: Any) -> list[Record]:
    """Records by L, a seed a ratio, each the mean over two tasks."""
    return [
        record(
            score("variance_ratio", [ratio - 0.1, ratio + 0.1], unit="ratio", shot=int(bench[3:])), bench=bench,
            seed=seed,
            settings={"samples": n, "eval_samples": n and 100}, **kw,
        )
        for n, by_seed in ratios.items()
        for seed, ratio in enumerate(by_seed)
    ]  # fmt: skip


def test_the_variance_is_drawn_against_l_with_intervals_over_seeds() -> None:
    ratios = {1: (0.1, 0.2, 0.15), 10: (0.4, 0.3, 0.5), 100: (0.9, 0.8, 1.0), 0: (1.0, 1.1, 0.9)}
    figure = drawn(paper.samples([*swept(ratios), *swept({10: (0.05,), 0: (1.0,)}, bench="toy10")]))
    (axes,) = figure.axes
    assert axes.get_title() == "alpha, mean of 1 or 3 seeds"
    assert axes.get_xscale() == "log"
    swept5, closed5, swept10, closed10 = bars(axes)
    for points, ends, values in (
        (*swept5, [ratios[n] for n in (1, 10, 100)]),
        (*closed5, [ratios[0]]),
    ):
        np.testing.assert_allclose(points[:, 1], [np.mean(v) for v in values])
        np.testing.assert_allclose(ends, [interval(v) for v in values])
    assert swept5[0][:, 0].tolist() == [1, 10, 100]
    np.testing.assert_allclose(swept10, ([[10, 0.05]], [[0.05, 0.05]]))  # one seed has no interval
    labels = dict(zip(axes.get_xticks(), [t.get_text() for t in axes.get_xticklabels()], strict=True))
    assert labels[closed5[0][0, 0]] == labels[closed10[0][0, 0]] == "closed\nform"
    assert closed5[0][0, 0] == max(labels)
    optima = {line.get_label(): line for line in axes.lines if "optimum" in str(line.get_label())}
    assert optima["toy5, optimum of Eq. 4"].get_xydata().tolist() == [
        [1, 0], [5, 0], [10, 0.25], [20, 0.65], [50, 0.85], [100, 0.95], [500, 1],
    ]  # fmt: skip
    assert optima["toy10, optimum of Eq. 4"].get_xydata()[-1].tolist() == [100, 0.9]
    assert {line.get_markerfacecolor() for line in optima.values()} == {"none"}
    assert [line.get_ydata()[0] for line in axes.lines if line.get_label() == "true variance"] == [1]


@pytest.mark.parametrize("observations", [5, 10])
def test_the_optima_are_those_of_the_objective(observations: int) -> None:
    """Eq. 4 by common random numbers; sigma_psi = sigma_y = 1, and q has the true mean."""
    rng = np.random.default_rng(0)
    ratios = np.linspace(0, 1, 11)
    variance = 1 / (1 + observations)  # of the true posterior
    y = rng.normal(scale=np.sqrt(variance + 1), size=(100_000, 1))
    for samples in (5, 10, 20):
        noise = rng.normal(size=(len(y), samples))
        losses = [-np.log(np.exp(-((y - np.sqrt(r * variance) * noise) ** 2) / 2).mean(-1)).mean() for r in ratios]
        best = ratios[np.argmin(losses)]
        assert best == pytest.approx(paper._OPTIMA[observations][samples], abs=0.11)


def test_two_values_of_l_are_no_sweep_and_other_methods_are_left_out() -> None:
    assert paper.samples(swept({1: (0.1,), 10: (0.2,)})) is None
    three = swept({1: (0.1,), 10: (0.2,), 100: (0.9,)})
    exact = record(score("variance_ratio", [1, 1]), bench="toy5", method="exact")
    figure = drawn(paper.samples([*three, exact, *swept({1: (0.1,), 10: (0.2,)}, method="beta")]))
    assert [axes.get_title() for axes in figure.axes] == ["alpha"]


# ----------------------------------------------------------------------------------------------------- versatility

ACCURACY = {
    ("way", 5, 1): (0.90, 0.96), ("way", 20, 1): (0.7, 0.8), ("way", 100, 1): (0.5, 0.6),
    ("shot", 5, 1): (0.90, 0.96), ("shot", 5, 10): (0.98, 0.99),
}  # fmt: skip


def versatile(bench: str, way: int, less: float = 0.0, **kw: Any) -> Record:
    scores = [
        score(
            "accuracy",
            [v - less for v in values],
            way=w,
            shot=s,
            better="higher",
            condition={"way": w} if varied == "way" else {"way": w, "shot": s},
        )
        for (varied, w, s), values in ACCURACY.items()
    ]
    return record(*scores, bench=bench, way=way, shot=1, **kw)


def test_accuracy_is_drawn_by_way_and_by_shot_a_row_a_method_and_a_color_a_bench() -> None:
    records = [versatile("omni20w1s", 20, 0.2), versatile("omni5w1s", 5), versatile("omni5w1s", 5, method="beta")]
    figure = drawn(paper.versatility(records))
    assert [axes.get_title() for axes in figure.axes] == ["alpha", "alpha", "beta", "beta"]
    by_way, by_shot, beta_way, _ = figure.axes
    (small, small_ends), (large, _) = bars(by_way)  # omni5w1s comes before omni20w1s
    np.testing.assert_allclose(small, [[5, 0.93], [20, 0.75], [100, 0.55]])
    np.testing.assert_allclose(large, [[5, 0.73], [20, 0.55], [100, 0.35]])
    narrow = interval((0.7, 0.8))
    np.testing.assert_allclose(small_ends[1], [narrow[0], min(narrow[1], style.ALL)])
    np.testing.assert_allclose(bars(by_shot)[0][0], [[1, 0.93], [10, 0.985]])
    chance = [line for line in by_way.lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(chance[0].get_xydata(), [[5, 0.2], [20, 0.05], [100, 0.01]])
    colors = [c.lines[0].get_color() for c in (*by_way.containers, *beta_way.containers)]
    assert colors[0] == colors[2] != colors[1]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["omni5w1s", "omni20w1s", "chance"]
    filled = [line.get_xydata().tolist() for line in by_way.lines if line.get_linestyle() == "None"]
    filled = [points[0][0] for points in filled if len(points) == 1]
    assert filled == [5, 20]  # as trained
    texts = [label.get_text() for label in by_way.get_yticklabels()]
    assert texts == [f"{100 * tick:g}" for tick in by_way.get_yticks()]
    assert {"20", "99.5"} < set(texts)


def test_seeds_are_averaged_by_task_and_an_accuracy_of_all_is_drawn() -> None:
    def perfect(seed: int, values: Sequence[float]) -> Record:
        return record(
            score("accuracy", values, way=5, shot=1, condition={"way": 5}), bench="omni5w1s", seed=seed,
        )  # fmt: skip

    figure = drawn(paper.versatility([perfect(0, (0.5, 0.9, 0.8)), perfect(1, (0.7, 0.9, 0.6))]))
    points, ends = bars(figure.axes[0])[0]
    np.testing.assert_allclose(points, [[5, np.mean([0.6, 0.9, 0.7])]])
    np.testing.assert_allclose(ends[0], np.clip(interval([0.6, 0.9, 0.7]), 0, style.ALL))
    assert figure.axes[0].get_title() == "alpha, mean of 2 seeds"

    figure = drawn(paper.versatility([perfect(0, (1.0, 1.0, 1.0))]))
    (point,), _ = bars(figure.axes[0])[0]
    low, high = figure.axes[0].get_ylim()
    assert low < 0.2 < point[1] < high < 1


# --------------------------------------------------------------------------------------------------------- weights

CLASSES = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]]


def weighed(dimensions: int, centers: Sequence[Sequence[float]] | None = None, **kw: Any) -> tuple[Record, np.ndarray]:
    rng = np.random.default_rng(dimensions)
    middle = np.array(centers if centers is not None else rng.normal(size=(4, dimensions)) * 5)
    means = middle[np.array(CLASSES)] + 0.1 * rng.normal(size=(4, 3, dimensions))
    detail = {"weights": means, "classes": CLASSES}
    share = score("within_class_share", [0.1, 0.2, 0.15, 0.15], detail, way=3, shot=20)
    return record(share, bench=f"context{dimensions}", **kw), means


SQUARE = ((0, 0), (10, 0), (10, 1), (0, 10))  # 1 and 2 are closest


def test_in_two_dimensions_polygons_join_the_classes_of_a_task() -> None:
    made, means = weighed(2, SQUARE)
    figure = drawn(pictures.weights([made]))
    all_tasks, held = figure.axes
    assert all_tasks.get_title() == "all 4 tasks"
    assert held.get_title() == "the 2 tasks with 1 and 2, whose means are closest"
    for axes, chosen in ((all_tasks, [0, 1, 2, 3]), (held, [0, 1])):
        corners = [p.get_xy()[:-1] for p in axes.patches]
        assert len(corners) == len(chosen)
        for polygon, task in zip(corners, chosen, strict=True):
            assert sorted(map(tuple, polygon)) == sorted(map(tuple, means[task]))
        nodes = {line.get_marker(): line for line in axes.lines}
        for digit in range(4):
            expected = [means[t, w] for t in chosen for w in range(3) if CLASSES[t][w] == digit]
            np.testing.assert_allclose(nodes[f"${digit}$"].get_xydata(), expected)
        assert np.ptp(axes.get_xlim()) == pytest.approx(np.ptp(axes.get_ylim()))
    low, high = interval([0.1, 0.2, 0.15, 0.15])
    (part,) = figure.subfigs
    assert part.get_suptitle() == f"alpha: 15.0 ± {50 * (high - low):.1f} % of the variance is within classes"


def test_the_closest_classes_are_of_those_that_meet() -> None:
    made = record(
        score(
            "within_class_share", [0.1, 0.1], way=2,
            detail={"classes": [[0, 1], [2, 3]], "weights": [[[0, 0], [5, 0]], [[0, 1], [9, 9]]]},
        ),
        bench="context2",
    )  # fmt: skip
    _, held = drawn(pictures.weights([made])).axes
    assert held.get_title() == "the task with 0 and 1, whose means are closest"  # 0 and 2 are in no task


def test_in_more_dimensions_a_map_and_the_weights_grouped_by_class_are_shown() -> None:
    made, means = weighed(6)
    figure = drawn(pictures.weights([made]))
    plane, image, bar = figure.axes
    grouped = np.array(
        [means[t, w] for digit in range(4) for t in range(4) for w in range(3) if CLASSES[t][w] == digit]
    )
    np.testing.assert_allclose(image.images[0].get_array(), grouped.T)
    limits = image.images[0].get_clim()
    assert limits == (-np.abs(means).max(), np.abs(means).max())
    assert [t.get_text() for t in image.get_xticklabels()] == ["0", "1", "2", "3"]
    assert image.get_xticks().tolist() == [1, 4, 7, 10]
    assert [line.get_xdata()[0] for line in image.lines] == [2.5, 5.5, 8.5]
    assert {line.get_marker(): len(line.get_xdata()) for line in plane.lines} == {f"${d}$": 3 for d in range(4)}
    assert bar.get_ylabel() == "mean of q"


def test_the_map_keeps_classes_together() -> None:
    rng = np.random.default_rng(0)
    classes = np.stack([rng.permutation(10)[:5] for _ in range(50)])
    means = rng.normal(size=(10, 16))[classes] + 0.05 * rng.normal(size=(50, 5, 16))
    detail = {"weights": means, "classes": classes}
    made = record(score("within_class_share", [0.1, 0.2], detail, way=5), bench="context16")
    plane = drawn(pictures.weights([made])).axes[0]
    groups = [np.array(line.get_xydata()) for line in plane.lines]
    assert sum(map(len, groups)) == 250
    centers = np.array([group.mean(0) for group in groups])
    for i, group in enumerate(groups):
        assert (np.linalg.norm(group[:, None] - centers, axis=-1).argmin(-1) == i).all()


@pytest.mark.parametrize("dimensions", [1, 3])
def test_few_weights_of_any_dimension_can_be_mapped(dimensions: int) -> None:
    assert len(drawn(pictures.weights([weighed(dimensions)[0]])).axes) == 3


def test_configurations_have_rows_and_the_first_seed_is_shown() -> None:
    records = [weighed(2, SQUARE, norm=norm, seed=seed)[0] for norm in ("a", "b") for seed in (0, 1)]
    figure = drawn(pictures.weights(records))
    titles = [part.get_suptitle().split(":")[0] for part in figure.subfigs]
    assert titles == ["alpha, norm a, seed 0", "alpha, norm b, seed 0"]


# -------------------------------------------------------------------------------------------------- reconstruction


def png(cells: np.ndarray) -> str:
    """``[row, column, side, side]`` as the records have it."""
    rows, columns, side, _ = cells.shape
    buffer = io.BytesIO()
    Image.fromarray(cells.swapaxes(1, 2).reshape(rows * side, columns * side)).save(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()


def views(seed: int, columns: int = 12, objects: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (objects, columns, 4, 4), dtype=np.uint8)


def reconstructed(
    images: np.ndarray, shot: int = 1, truth: int = 0, method: str = "alpha", data: str = "coil100", **kw: Any
) -> Record:
    detail = {"images": png(images), "truth": png(views(truth)), "given": png(views(99 + truth, shot))}
    made = score("mse", [0.1, 0.2, 0.3], detail, shot=shot, better="lower")
    return record(made, bench=f"views{shot}s", method=method, data=data, **kw)


def cell(mosaic: np.ndarray, row: int, column: int) -> np.ndarray:
    return np.asarray(mosaic)[5 * row : 5 * row + 4, 5 * column : 5 * column + 4]


@pytest.mark.parametrize("shot", [1, 5, 7])
def test_views_stand_under_their_angles_and_next_to_the_given_ones(shot: int) -> None:
    alpha, beta = views(1), views(2)
    figure = drawn(pictures.reconstruction([reconstructed(beta, shot, method="beta"), reconstructed(alpha, shot)]))
    assert len(figure.axes) == 6
    for i in range(3):
        given, rows = figure.axes[2 * i : 2 * i + 2]
        assert [t.get_text() for t in rows.get_yticklabels()] == ["alpha", "beta", "truth"]
        assert [t.get_text() for t in rows.get_xticklabels()] == [f"{30 * k}°" for k in range(12)]
        mosaic, shown = rows.images[0].get_array(), given.images[0].get_array()
        for row, source in enumerate((alpha, beta, views(0))):
            for column in range(12):
                np.testing.assert_array_equal(cell(mosaic, row, column), source[i, column])
        for k in range(min(shot, 5)):
            np.testing.assert_array_equal(cell(shown, k % 3, k // 3), views(99, shot)[i, k])
        assert shown.shape == (15, 5 if shot <= 3 else 10)
        if shot > 1:
            assert (cell(shown, 2, 1) == 255).all()  # five are shown in two columns of three
        assert [t.get_text() for t in given.get_xticklabels()] == ["given"]
        np.testing.assert_allclose(rows.get_yticks(), [1.5, 6.5, 11.5])
        np.testing.assert_allclose(rows.get_xticks()[:2], [1.5, 6.5])
        assert rows.images[0].get_clim() == (0, 255)


def test_other_objects_are_not_shown_above_a_truth_that_is_not_theirs() -> None:
    one, two = reconstructed(views(1)), reconstructed(views(2), truth=3, method="beta")
    figure = drawn(pictures.reconstruction([one, two]))
    rows = [axes for axes in figure.axes if axes.get_yticklabels()]
    assert [[t.get_text() for t in axes.get_yticklabels()] for axes in rows] == [["alpha", "truth"]] * 3 + [
        ["beta", "truth"]
    ] * 3
    np.testing.assert_array_equal(cell(rows[3].images[0].get_array(), 1, 0), views(3)[0, 0])


def test_the_first_seed_is_reconstructed_and_scores_without_images_are_left_out() -> None:
    unseen = score("mse", [0.1], {"images": png(views(5))}, condition={"views": "unseen"})
    assert pictures.reconstruction([record(unseen, score("mse", [0.1]), bench="views1s")]) is None
    records = [reconstructed(views(8), seed=2), reconstructed(views(7), seed=1)]
    axes = drawn(pictures.reconstruction(records)).axes[1]
    assert axes.get_yticklabels()[0].get_text() == "alpha, seed 1"
    np.testing.assert_array_equal(cell(axes.images[0].get_array(), 0, 3), views(7)[0, 3])


# --------------------------------------------------------------------------------------------------------- writing


def everything() -> list[Record]:
    return [
        recovered(bench="toy2"),
        *swept({1: (0.1,), 10: (0.2,), 100: (0.9,)}, source="synthetic"),
        versatile("omni5w1s", 5, source="procedural"),
        versatile("omni20w1s", 20, source="procedural"),
        versatile("mini5w1s", 5),
        weighed(2, SQUARE, source="bundled")[0],
        weighed(6)[0],
        weighed(6, method="beta")[0],
        reconstructed(views(1)),
        reconstructed(views(1), data="shapenet"),
        reconstructed(views(1), data="solids", source="procedural"),
    ]


TITLES = {
    "scores-views-coil100": "Scores on views (coil100)",
    "scores-views-shapenet": "Scores on views (shapenet)",
    "scores-views-solids-stand-in": "Scores on views (solids), stand-in data",
    "posterior-toy2": "Posteriors given 2 observations on toy2",
    "samples-toy": "Posterior variance on toy",
    "versatility-mini": "Versatility on mini",
    "versatility-omni-stand-in": "Versatility on omni, stand-in data",
    "weights-context2-alpha-stand-in": "Class weights on context2, stand-in data",
    "weights-context6-alpha": "Class weights on context6",
    "weights-context6-beta": "Class weights on context6",
    "reconstruction-views1s-coil100": "Reconstruction on views1s (coil100)",
    "reconstruction-views1s-shapenet": "Reconstruction on views1s (shapenet)",
    "reconstruction-views1s-solids-stand-in": "Reconstruction on views1s (solids), stand-in data",
}


def test_figures_are_grouped_by_bench_method_or_data_set_and_say_what_they_are_on() -> None:
    assert {stem: figure.get_suptitle() for stem, figure in writing.draw_figures(everything())} == TITLES


def test_views_are_named_by_their_data_set_where_there_is_one_too() -> None:
    found = dict(writing.draw_figures([reconstructed(views(1))]))
    assert list(found) == ["scores-views-coil100", "reconstruction-views1s-coil100"]


def test_the_same_records_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    records = [
        *(recovered(method=m, seed=seed) for m in ("alpha", "beta") for seed in (0, 1)),
        *swept({1: (0.1, 0.2), 10: (0.2, 0.3), 100: (0.9,)}),
        *(versatile(bench, 5, seed=seed) for bench in ("omni5w1s", "omni20w1s") for seed in (0, 1)),
        weighed(6)[0],
        *(reconstructed(views(i), method=f"method{i}") for i in range(3)),
    ]
    first = writing.write_figures(records, tmp_path / "a")
    second = writing.write_figures(records[::-1], tmp_path / "b")
    assert len(first) == 2 * 6
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("draw", [kind.draw for kind in writing.FIGURES.values()])
def test_nothing_is_drawn_from_scores_that_a_figure_does_not_know(draw: Any) -> None:
    assert draw([record(score("unknown", [0.5, 0.6]), bench="omni5w1s")], []) is None


def test_importing_the_figures_does_not_load_scikit_learn() -> None:
    code = "import sys, mlpip_bench.reporting.figures.calibration; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

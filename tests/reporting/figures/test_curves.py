"""The figure of predictive bands, against the records it is made from."""

import numpy as np

from builders import drawn, make_record, make_scores
from mlpip_bench.reporting.figures.curves import curves
from mlpip_bench.reporting.figures.writing import draw_figures

X = (0.0, 1.0, 2.0)


def banded(method: str, shift: float, **changes):
    detail = {
        "band_x": X,
        "band_mean": tuple(shift + value for value in (0.0, 0.5, 1.0, 1.0, 0.5, 0.0)),  # of two tasks
        "band_std": (0.1, 0.2, 0.3, 0.3, 0.2, 0.1),
        "band_support_x": (0.0, 2.0),
        "band_support_y": (0.1, 0.9),
        "band_query_x": (0.5, 1.0, 1.5, 2.0),
        "band_query_y": (0.2, 0.4, 0.6, 0.8),
    }
    scores = make_scores((0.1, 0.2), "mse", detail=detail)
    return make_record(scores, **({"method": method, "bench": "gp1s", "protocol": "squared_error"} | changes))


def figure_of(*records):
    return drawn(curves(list(records)))


def test_a_row_a_method_and_a_column_a_task_with_band_mean_and_points():
    figure = figure_of(banded("alpha", 0.0), banded("beta", 10.0))
    axes = np.array(figure.axes).reshape(2, 2)
    assert [row[0].get_ylabel() for row in axes] == ["alpha", "beta"]
    assert [a.get_title() for a in axes[0]] == ["test task 1", "test task 2"]
    second = axes[1, 1]  # of beta, the second task
    mean, asked, given = second.lines
    np.testing.assert_allclose(mean.get_xydata(), np.stack([X, (11.0, 10.5, 10.0)], 1))
    np.testing.assert_allclose(asked.get_xydata(), [[1.5, 0.6], [2.0, 0.8]])
    np.testing.assert_allclose(given.get_xydata(), [[2.0, 0.9]])
    (band,) = second.collections
    corners = band.get_paths()[0].vertices
    at_0 = corners[corners[:, 0] == 0.0][:, 1]
    assert at_0.min() == 11.0 - 1.96 * 0.3
    assert at_0.max() == 11.0 + 1.96 * 0.3


def test_a_column_has_one_scale_which_the_points_set():
    wide = figure_of(banded("alpha", 0.0), banded("beta", 1000.0))
    axes = np.array(wide.axes).reshape(2, 2)
    for column in axes.T:
        assert column[0].get_ylim() == column[1].get_ylim()
        assert column[0].get_ylim()[1] < 5


def test_records_without_bands_have_no_figure():
    assert curves([make_record(make_scores((0.1, 0.2), "mse"))]) is None


def test_it_is_among_the_figures_of_a_folder():
    names = [name for name, _ in draw_figures([banded("alpha", 0.0)])]
    assert "curves-gp1s" in names

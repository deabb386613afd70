"""Records as a DataFrame."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from builders import make_record, make_scores
from mlpip_bench.records.frame import to_frame

COLUMNS = ["bench", "method", "protocol", "seed", "metric", "model", "mean", "ci95", "unit", "better"]


def test_a_row_is_a_score_with_its_student_t_interval():
    per_task = (0.9, 0.8, 1.0, 0.7)
    last = make_scores((0.5, 0.6, 0.4, 0.5), model="last")
    frame = to_frame([make_record(make_scores(per_task), last, seed=3), make_record(method="beta")])
    assert list(frame.columns[: len(COLUMNS)]) == COLUMNS
    assert list(frame[["method", "model", "seed"]].itertuples(index=False, name=None)) == [
        ("alpha", "best", 3), ("alpha", "last", 3), ("beta", "best", 0),
    ]  # fmt: skip
    low, high = stats.t.interval(0.95, 3, np.mean(per_task), stats.sem(per_task))
    assert frame["mean"][0] == pytest.approx(0.85)
    assert frame["ci95"][0] == pytest.approx((high - low) / 2)
    assert frame["per_task"][0] == per_task
    assert tuple(frame.loc[0, ["unit", "better", "way", "shot", "queries", "test_tasks"]]) == (
        "fraction", "higher", 5, 1, 15, 4,
    )  # fmt: skip


def test_every_setting_option_and_condition_has_a_column_and_what_a_record_lacks_is_missing():
    one = make_record(
        make_scores(condition={"steps": 10}), settings={"scale": 2.5}, norm="tasknorm", options={"split": "vinyals"},
        training={"seconds": 3.0, "history": [{"iteration": 1}]},
    )  # fmt: skip
    frame = to_frame([one, make_record(settings={"rate": 0.1})])
    first = frame.loc[0]
    assert first["settings.scale"] == 2.5
    assert first["norm"] == "tasknorm"
    assert first["iterations"] == 1500
    assert first["data.split"] == "vinyals"
    assert first["condition.steps"] == 10
    assert first["training.seconds"] == 3.0
    assert first["backbone"] == "conv4"
    assert first["source"] == "real"
    assert first["parameters"] == 10
    assert first["key"] == one.key
    assert pd.isna(first["settings.rate"])
    assert pd.isna(frame.loc[1, "settings.scale"])
    assert pd.isna(frame.loc[1, "condition.steps"])
    assert "training.history" not in frame


def test_no_records_are_an_empty_frame():
    assert to_frame([]).empty

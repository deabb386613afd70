"""An option that a record leaves out at its default is known, and every table, figure and file says it."""

import dataclasses
import io

import pandas as pd
import pytest

from builders import invoke, make_record, make_scores
from mlpip_bench.benches.families.omniglot import OmniglotOptions
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.nn.weights import NetworkSettings
from mlpip_bench.records import store
from mlpip_bench.records.left_out import DEFAULTS
from mlpip_bench.reporting.figures.style import labeled
from mlpip_bench.utils.numerics import Numerics
from mlpip_bench.utils.settings import NO_KEY

HISTORY = {"history": [{"iteration": 100, "accuracy": 0.8}], "tasks_seen": 400}
PLAIN = make_record(training=HISTORY)
HALF = make_record(make_scores((0.5, 0.6, 0.8, 0.7)), precision="bf16", training=HISTORY)
OTHER = make_record(method="beta", training=HISTORY)


def default_of(field: dataclasses.Field[object]) -> object:
    return field.default_factory() if callable(field.default_factory) else field.default


def test_the_defaults_are_those_of_all_options_that_a_record_may_leave_out():
    options = [f for f in dataclasses.fields(TrainingPlan) if f.name in TrainingPlan.OPTIONAL]
    options += [f for f in dataclasses.fields(Numerics) if NO_KEY not in f.metadata]
    rotations = next(f for f in dataclasses.fields(OmniglotOptions) if f.name == "rotations")
    assert dict(DEFAULTS) == {f.name: default_of(f) for f in options} | {
        **{f"backbone.{f.name}": default_of(f) for f in dataclasses.fields(NetworkSettings)},
        "data.rotations": default_of(rotations),
        "query_concentration": "none",  # RunConfig's None, in a table's words
        "recalibrated": "no",  # its False, likewise
    }


@pytest.mark.parametrize("arguments", [(), ("--format", "markdown"), ("--timing", "--target", "accuracy=75")])
def test_rows_next_to_another_precision_say_which_is_theirs(arguments, tmp_path):
    for record in (PLAIN, HALF, OTHER):
        store.save(record, tmp_path)
    result = invoke("table", *arguments, "--results", tmp_path)
    assert result.exit_code == 0, result.output
    assert "precision float32" in result.output
    assert "precision bf16" in result.output
    assert "unset" not in result.output


def test_a_row_of_another_method_says_it_too_and_nobody_does_where_nothing_else_is_there(tmp_path):
    for record in (HALF, OTHER):
        store.save(record, tmp_path)
    assert "precision float32" in invoke("table", "--results", tmp_path).output
    for record in (PLAIN, OTHER):
        store.save(record, tmp_path / "one")
    assert "precision" not in invoke("table", "--results", tmp_path / "one").output


def test_the_long_form_has_it_in_every_row(tmp_path):
    for record in (PLAIN, HALF, OTHER):
        store.save(record, tmp_path)
    frame = pd.read_csv(io.StringIO(invoke("table", "--format", "csv", "--results", tmp_path).stdout))
    assert sorted(frame["precision"]) == ["bf16", "float32", "float32"]
    assert "clip_norm" not in frame


@pytest.mark.parametrize("others", [(), (HALF,)])
def test_two_folders_are_matched_and_distinguished_by_it(others, tmp_path):
    for folder, records in (("a", (PLAIN, *others)), ("b", (HALF,))):
        for record in records:
            store.save(record, tmp_path / folder)
    result = invoke("compare", tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert "float32" in result.output
    assert "unset" not in result.output
    mixed = invoke("compare", tmp_path / "a", tmp_path / "a")
    assert mixed.exit_code == 0, mixed.output
    assert "only in" not in mixed.output.lower()


def test_figures_name_both():
    assert sorted(labeled([(r, r.scores[0]) for r in (PLAIN, HALF)])) == [
        "alpha, precision bf16", "alpha, precision float32",
    ]  # fmt: skip


def test_an_option_of_the_data_is_said_of_its_own_bench_alone(tmp_path):
    turned = make_record(options={"rotations": "separate"})
    for record in (PLAIN, turned, make_record(bench="mini5w1s")):
        store.save(record, tmp_path)
    frame = pd.read_csv(io.StringIO(invoke("table", "--format", "csv", "--results", tmp_path).stdout))
    assert frame.groupby("bench")["data.rotations"].agg(list).map(lambda v: sorted(map(str, v))).to_dict() == {
        "mini5w1s": ["nan"], "omni5w1s": ["on", "separate"],
    }  # fmt: skip

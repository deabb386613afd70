"""Time to a target, of histories whose crossings are plain to see."""

import io
from collections.abc import Sequence

import pandas as pd
import pytest

from builders import invoke, make_record, make_scores
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.tables.target import target_tables
from mlpip_bench.utils.errors import UserError


def trained(
    accuracies: Sequence[float], seconds: Sequence[float | None] | None = None, protocol: str = "accuracy", **changes
) -> Record:
    """Validated every 100 iterations of 4 tasks."""
    history = [{"iteration": 100 * n, "loss": 1.0, "accuracy": a, "nll": 1 - a} for n, a in enumerate(accuracies, 1)]
    training = {"history": history, "tasks_seen": 400 * len(history), "seconds": 50.0}
    training |= {} if seconds is None else {"history_seconds": list(seconds)}
    scores = make_scores(metric="accuracy") if protocol == "accuracy" else make_scores((0.5, 0.6), "nll")
    return make_record(scores, protocol=protocol, training=training, **changes)


def texts(records: Sequence[Record], **targets: float) -> dict[str, dict[str, str]]:
    (table,) = target_tables(records, targets)
    return {row.label: {name: cell.text for name, cell in row.cells.items()} for row in table.rows}


def test_the_first_validation_that_reaches_the_target_counts():
    records = [
        trained((0.5, 0.8, 0.9, 0.7, 0.95), (10.0, 20.0, 30.0, 40.0, 50.0)),
        trained((0.5, 0.8), (1.0, 2.0), method="beta"),
        trained((0.95, 0.96), method="gamma"),  # which does not say when its validations were
        trained((0.95,), (5.0,), method="delta", parameters=0),  # has nothing to train
    ]
    found = texts(records, accuracy=90)
    assert found == {
        "alpha": {"tasks": "1,200", "time": "30 s", "best validation": "95.00"},
        "beta": {"tasks": "not reached", "best validation": "80.00"},
        "gamma": {"tasks": "400", "best validation": "96.00"},
    }
    assert texts(records[:1], nll=0.25)["alpha"]["time"] == "20 s"  # where lower is better


def test_protocols_of_one_training_are_one_and_seeds_are_averaged():
    times = (10.0, 20.0)
    records = [
        *(trained((0.5, 0.95), times, protocol) for protocol in ("accuracy", "nll")),
        trained((0.95, 0.95), times, seed=1),
    ]
    assert texts(records, accuracy=90)["alpha"] == {"tasks": "600", "time": "15 s", "best validation": "95.00"}
    records.append(trained((0.5, 0.6), times, seed=2))
    assert texts(records, accuracy=90)["alpha"]["tasks"] == "not reached (2 of 3 seeds did)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "takes METRIC=NUMBER, several with commas between them, as in accuracy=90,nll=0.3; got ''"),
        ("accuracy=90,nll", "got 'nll'"),
        ("nll=inf", "got 'nll=inf'"),
        ("accuracy=90,accuracy=80", "takes one number a metric; got accuracy twice, 90 and 80. Leave one"),
        ("accuracy=100.5", "more than 1 and at most 100, as in accuracy=90; got accuracy=100.5. Give it"),
        ("accuracy=-5", "more than 1 and at most 100"),
        ("brier=1", "a metric of the records' validations, accuracy, nll; got brier. Choose"),
    ],
)
@pytest.mark.parametrize("format_", ["text", "csv"])
def test_a_target_that_is_none_is_one_message_and_status_2(text, message, format_, tmp_path):
    store.save(trained((0.5, 0.9)), tmp_path)
    result = invoke("table", "--timing", "--target", text, "--results", tmp_path, "--format", format_)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--against", "beta"], "records of the protocol timing; there are none"),
        (["--against", "beta", "--format", "csv"], "got --against beta with --format csv. Leave one of them out"),
        (["--metric", "nll"], "got --metric nll with --timing. Leave one of them out"),
    ],
)
def test_what_a_table_of_targets_does_not_have_is_refused(given, message, tmp_path):
    for method in ("alpha", "beta"):
        store.save(trained((0.5, 0.9), method=method), tmp_path)
    result = invoke("table", "--timing", "--target", "accuracy=90", "--results", tmp_path, *given)
    assert result.exit_code == 2
    assert message in result.output


def test_targets_at_the_bounds_are_reached():
    assert texts([trained((0.5, 1.0))], accuracy=100)["alpha"]["tasks"] == "800"
    assert texts([trained((0.5, 0.9 - 1e-16))], accuracy=90)["alpha"]["tasks"] == "800"
    assert texts([trained((0.5, 2.5))], nll=-1.5)["alpha"]["tasks"] == "800"  # of densities it may be negative


def test_as_csv_there_is_a_row_a_target_and_configuration_in_full(tmp_path):
    for record in (
        trained((0.5, 0.95), (10.0, 20.5)),
        trained((0.95, 0.5), (10.0, 20.0), seed=1),
        trained((0.5, 0.6), (10.0, 20.0), method="beta"),
    ):
        store.save(record, tmp_path)
    given = ("table", "--timing", "--target", "accuracy=90,nll=0.45", "--results", tmp_path, "--format", "csv")
    frame = pd.read_csv(io.StringIO(invoke(*given).stdout)).set_index(["metric", "method"])
    alpha, beta = frame.loc["accuracy", "alpha"], frame.loc["accuracy", "beta"]
    assert (alpha["target"], alpha["tasks"], alpha["seconds"], alpha["best_validation"]) == (0.9, 600.0, 15.25, 0.95)
    assert (beta["seeds"], beta["seeds_that_reached_it"], beta["best_validation"]) == (1, 0, 0.6)
    assert pd.isna(beta["tasks"])
    assert frame.loc["nll", "beta"]["tasks"] == 800.0


@pytest.mark.parametrize("width", ["60", "80", "100"])
def test_no_number_is_cut_or_parted_from_its_unit(width, tmp_path):
    for record in (
        trained((0.5,) * 40000 + (0.95,), [float(n) for n in range(40001)]),
        trained((0.5, 0.95), (10.0, 20.0), method="a_method_with_quite_a_long_name"),
        trained((0.5, 0.6), (10.0, 20.0), method="beta"),
        trained((0.5, 0.95), (10.0, 20.0), method="beta", seed=1),
    ):
        store.save(record, tmp_path)
    given = ("table", "--timing", "--target", "accuracy=90", "--results", tmp_path)
    printed = invoke(*given, COLUMNS=width).stdout
    assert max(map(len, printed.splitlines())) <= int(width)
    for whole in ("16,000,400", "11.1 h", "20 s", "95.00", "(1 of 2 seeds did)"):
        assert whole in printed
    assert "…" not in printed
    assert "a_method_with_quite_a_l" in printed  # folded, not cut
    assert "ng_name" in printed


def test_targets_that_mean_nothing_are_refused():
    for target in (0.9, 101.0):
        with pytest.raises(UserError, match="in per cent, more than 1 and at most 100"):
            target_tables([trained((0.5,))], {"accuracy": target})
    with pytest.raises(UserError, match="accuracy, nll; got ece"):
        target_tables([trained((0.5,))], {"ece": 1.0})


def test_the_table_is_printed_without_timings(tmp_path):
    store.save(trained((0.5, 0.9), (10.0, 20.0)), tmp_path)
    printed = invoke("table", "--timing", "--target", "accuracy=90", "--results", tmp_path, "--format", "markdown")
    assert printed.exit_code == 0
    assert "| 800 | 20 s | 90.00 |" in printed.output
    for refused in (["--target", "accuracy=90"], ["--timing", "--target", "accuracy"]):
        assert invoke("table", *refused, "--results", tmp_path).exit_code == 2

"""Time to a target, of histories whose crossings are plain to see."""

from collections.abc import Sequence

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


def test_targets_that_mean_nothing_are_refused():
    for target in (0.9, 101.0):
        with pytest.raises(UserError, match="in per cent, as in accuracy=90"):
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

"""Tables and plans of many trials: their CPU time against that of importing pandas, as a ratio within one run."""

import time

import pytest

from builders import times_pandas, write_records
from mlpip_bench.records.store import load_all
from mlpip_bench.reporting.tables.writing import write_tables

MOST = {"table": 7, "compare": 5, "report": 20, "run": 12}
"""About twice what was seen."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_records(folder, 100)
    return str(folder)


def ratio(*arguments: str) -> float:
    return times_pandas("-m", "mlpip_bench", *arguments, most=MOST[arguments[0]])


@pytest.mark.parametrize("command", ["table", "compare", "report"])
def test_a_hundred_records_are_shown_in_some_times_the_import_of_pandas(command, results):
    arguments = [results, results] if command == "compare" else ["--results", results]
    assert ratio(command, *arguments) <= MOST[command]


def test_two_hundred_trials_are_listed_in_some_times_the_import_of_pandas(tmp_path):
    seeds, methods = ",".join(map(str, range(40))), "versa,maml,protonets,amortized_vi,nonamortized_vi"
    what = ["--bench", "omni5w1s", "--source", "procedural", "--methods", methods, "--seeds", seeds]
    assert ratio("run", *what, "--results", str(tmp_path), "--dry-run") <= MOST["run"]


def test_tables_of_four_times_as_many_records_take_about_four_times_as_long(tmp_path):
    def seconds(number: int, test_tasks: int) -> float:
        folder = tmp_path / f"{number} {test_tasks}"
        write_records(folder, number, test_tasks)
        began = time.process_time()
        write_tables(load_all(folder), folder)
        return time.process_time() - began

    seconds(60, test_tasks=20)  # imports
    few, many = seconds(60, test_tasks=30), seconds(240, test_tasks=30)
    assert many < 5 * few  # 16 where each record looks at every other

"""Tables and plans of many trials: their CPU time against that of importing pandas, as a ratio within one run."""

import pytest

from builders import cpu_seconds, write_records

MOST = {"table": 8, "compare": 8, "report": 20, "run": 25}
"""About twice what was seen."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_records(folder, 100)
    return str(folder)


def ratio(*arguments: str) -> float:
    return cpu_seconds("-m", "mlpip_bench", *arguments) / cpu_seconds("-c", "import pandas")


@pytest.mark.parametrize("command", ["table", "compare", "report"])
def test_a_hundred_records_are_shown_in_some_times_the_import_of_pandas(command, results):
    arguments = [results, results] if command == "compare" else ["--results", results]
    assert ratio(command, *arguments) <= MOST[command]


def test_a_thousand_trials_are_listed_in_some_times_the_import_of_pandas(tmp_path):
    seeds, methods = ",".join(map(str, range(200))), "versa,maml,protonets,amortized_vi,nonamortized_vi"
    what = ["--bench", "omni5w1s", "--source", "procedural", "--methods", methods, "--seeds", seeds]
    assert ratio("run", *what, "--results", str(tmp_path), "--dry-run") <= MOST["run"]


def test_four_times_as_many_records_take_less_than_four_times_as_long(results, tmp_path):
    write_records(tmp_path, 400)
    few, many = (cpu_seconds("-m", "mlpip_bench", "table", "--results", folder) for folder in (results, str(tmp_path)))
    assert many < 4 * few

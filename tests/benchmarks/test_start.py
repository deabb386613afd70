"""The command line answers at once: its CPU time against that of importing pandas, as a ratio within one run."""

import resource
import statistics
import subprocess
import sys

import pytest

REPEATS = 5
MOST = 1.2


def cpu_seconds(*arguments: str) -> float:
    """User and system time of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("command", ["--help", "run --help", "list methods", "list benches"])
def test_the_command_line_starts_in_the_time_that_pandas_takes_to_import(command):
    pairs = [
        (cpu_seconds("-m", "mlpip_bench", *command.split()), cpu_seconds("-c", "import pandas")) for _ in range(REPEATS)
    ]
    assert statistics.median(ours / theirs for ours, theirs in pairs) <= MOST

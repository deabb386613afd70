"""The command line answers at once: its CPU time against that of importing pandas, as a ratio within one run."""

import pytest

from builders import cpu_seconds

REPEATS = 5
MOST = 1.2


@pytest.mark.parametrize("command", ["--help", "run --help", "list methods", "list benches"])
def test_the_command_line_starts_in_the_time_that_pandas_takes_to_import(command):
    times = [
        (cpu_seconds("-m", "mlpip_bench", *command.split()), cpu_seconds("-c", "import pandas")) for _ in range(REPEATS)
    ]
    ours, theirs = map(min, zip(*times, strict=True))  # other work on the machine only ever adds to either
    assert ours / theirs <= MOST

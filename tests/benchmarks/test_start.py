"""The command line answers at once: its CPU time against that of importing pandas, as a ratio within one run."""

import pytest

from builders import times_pandas

MOST = 1.2


@pytest.mark.parametrize("command", ["--help", "run --help", "list methods", "list benches"])
def test_the_command_line_starts_in_the_time_that_pandas_takes_to_import(command):
    assert times_pandas("-m", "mlpip_bench", *command.split(), most=MOST) <= MOST

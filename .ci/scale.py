"""What tables and scheduling cost by the number of records and of trials; draws docs/figures/scale.png.

    PYTHONPATH=tests python .ci/scale.py MEASUREMENT NUMBER...   # adds to docs/figures/scale.json
    PYTHONPATH=tests python .ci/scale.py draw

Measurements: ``table`` (of made records, read for the first time and then from their index), ``local`` and ``ray``
(trials that do nothing, through the scheduler).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt

from builders import REPOSITORY, seconds_of_empty_jobs, write_records

VALUES = REPOSITORY / "docs" / "figures" / "scale.json"


def table(number: int) -> dict[str, float]:
    """CPU seconds and peak memory of ``table``, without an index of its records and with one."""
    with tempfile.TemporaryDirectory() as folder:
        write_records(Path(folder), number)
        time.sleep(3)  # a file that has only just been written is not in the index
        found = {}
        for when in ("first", "indexed"):
            seconds, megabytes = _of_process(["-m", "mlpip_bench", "table", "--results", folder])
            found |= {f"{when}_seconds": seconds, f"{when}_megabytes": megabytes}
        return found


def _of_process(arguments: list[str]) -> tuple[float, float]:
    """CPU seconds and peak memory of a Python process."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)"
    )
    command = [sys.executable, "-c", code, sys.executable, *arguments]
    seconds, megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(megabytes)


def scheduled(kind: str) -> Callable[[int], dict[str, float]]:
    """Wall-clock milliseconds a trial that does nothing, and how much memory this process has gained."""

    def measure(number: int) -> dict[str, float]:
        seconds_of_empty_jobs(kind, 50)  # imports
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = seconds_of_empty_jobs(kind, number)
        gained = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return {"milliseconds_a_trial": 1000 * seconds / number, "megabytes_gained": gained / 1024}

    return measure


MEASUREMENTS = {"table": table, "local": scheduled("local"), "ray": scheduled("ray")}


def draw() -> None:
    """The figure of all that was measured."""
    values = json.loads(VALUES.read_text())
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
    for when, label in (("first", "without an index"), ("indexed", "with its index")):
        seconds = {int(n): found.get(f"{when}_seconds") for n, found in values["table"].items()}
        points = sorted((number, taken) for number, taken in seconds.items() if taken is not None)
        left.plot(*zip(*points, strict=True), "o-", label=label)
    left.set(xscale="log", yscale="log", xlabel="records", ylabel="CPU seconds of table")
    for kind, label in (("local", "local processes"), ("ray", "Ray")):
        points = sorted((int(number), found) for number, found in values[kind].items())
        right.plot([n for n, _ in points], [found["milliseconds_a_trial"] for _, found in points], "o-", label=label)
    right.set(xscale="log", ylim=(0, None), xlabel="empty trials", ylabel="ms a trial")
    for axes in (left, right):
        axes.legend(frameon=False)
    figure.savefig(VALUES.with_suffix(".png"), dpi=120, metadata={"Software": None})


def main() -> None:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*MEASUREMENTS, "draw"])
    parser.add_argument("numbers", nargs="*", type=int)
    asked = parser.parse_args()
    if asked.what == "draw":
        draw()
        return
    for number in asked.numbers:
        values = json.loads(VALUES.read_text()) if VALUES.is_file() else {}
        found = {name: round(value, 2) for name, value in MEASUREMENTS[asked.what](number).items()}
        values.setdefault(asked.what, {})[str(number)] = found
        VALUES.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

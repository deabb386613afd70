"""Build the report of the committed experiments that are not frozen and have records; ``tox -e docs`` runs it."""

import subprocess
import sys
from pathlib import Path

from results_page import experiments

ROOT = Path(__file__).resolve().parent.parent

names = [
    name
    for name, about in experiments().items()
    if "frozen" not in about and (ROOT / "results" / name / "records").exists()  # one under way may have none yet
]
options = [word for name in names for word in ("--results", f"results/{name}")]
command = [sys.executable, "-m", "mlpip_bench", "report", *options, "--output", sys.argv[1]]
subprocess.run(command, check=True, cwd=ROOT)

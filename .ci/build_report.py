"""Build the report of all results folders that are committed; ``tox -e docs`` runs it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

folders = sorted(path.parent for path in ROOT.glob("results/*/records"))
options = [word for folder in folders for word in ("--results", str(folder.relative_to(ROOT)))]
command = [sys.executable, "-m", "mlpip_bench", "report", *options, "--output", sys.argv[1]]
subprocess.run(command, check=True, cwd=ROOT)

"""Build the report of the committed experiments that are not frozen; ``tox -e docs`` runs it."""

import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent

experiments = sorted(ROOT.glob("results/*/experiment.yaml"))
folders = [path.parent for path in experiments if "frozen" not in yaml.safe_load(path.read_text(encoding="utf-8"))]
options = [word for folder in folders for word in ("--results", str(folder.relative_to(ROOT)))]
command = [sys.executable, "-m", "mlpip_bench", "report", *options, "--output", sys.argv[1]]
subprocess.run(command, check=True, cwd=ROOT)

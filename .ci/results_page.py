"""Write results/README.md from the experiment.yaml of each experiment: question, command, version, machine, page."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

RESULTS = Path(__file__).resolve().parents[1] / "results"


def experiments(results: Path = RESULTS) -> dict[str, dict[str, object]]:
    """What each experiment says of itself, by the name of its folder."""
    files = sorted(results.glob("*/experiment.yaml"))
    return {file.parent.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def page(results: Path = RESULTS) -> str:
    """The text of results/README.md."""
    lines = [
        "# Results",
        "",
        "Evidence: one folder an experiment, with the options of its runs (`experiment.yaml`), its records and the",
        "tables made of them. What you run yourself goes to `runs/`. `python .ci/results_page.py` makes this page.",
        "",
        "An experiment of the current version is complete and can be extended in a copy, for example by a seed:",
        "`python -m mlpip_bench run --config COPY/experiment.yaml --seeds 0,1 --results COPY`. A frozen one comes from",
        "an older version: its tables are regenerated, its trials are not run again. One that is under way has some of",
        "its records, or none yet.",
        "",
        "| experiment | question | version | machine | quoted in |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, about in experiments(results).items():
        version = (
            f"{about['frozen']}, frozen" if "frozen" in about else f"{about['version']}, numbers {about['numbers']}"
        ) + (f", {about['status']}" if "status" in about else "")
        where = f"[{about['page']}](../{about['page']})"
        lines.append(
            f"| [{name}]({name}/experiment.yaml) | {about['question']} | {version} | {about['machine']} | {where} |"
        )
    lines += ["", "`published.csv` has the numbers of the paper's tables, which were not run here.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{RESULTS / 'README.md'}\n")

"""published.csv against the paper's LaTeX, cell by cell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builders import REPOSITORY
from mlpip_bench.records import published

BENCHES = ("omni5w1s", "omni5w5s", "omni20w1s", "omni20w5s", "mini5w1s", "mini5w5s")
CELL = re.compile(r"(\\textbf\{)?\s*([\d.]+)(?:\s*\$\\pm\$\s*([\d.]+))?\s*\}?$")


def paper() -> str:
    data = os.environ.get("MLPIP_BENCH_DATA")
    places = [Path(data).parent / "paper.tex"] if data else []
    places.append(REPOSITORY.parent / "shared" / "paper.tex")
    for place in places:
        if place.is_file():
            return place.read_text()
    return pytest.skip(f"the paper's source is in none of {[str(p) for p in places]}")


def parse(tex: str, label: str) -> dict[tuple[str, str], tuple[str, str, str, bool]]:
    """(method's label, bench) -> citation, mean, half-width, bold, as printed."""
    body = re.search(r"\\label\{" + label + r"\}.*?\\midrule(.*?)\\bottomrule", tex, re.S)
    assert body is not None
    cells = {}
    for line in body[1].replace(r"\midrule", "").split("\\\\"):
        if not line.strip():
            continue
        method, *columns = line.split("&")
        assert len(columns) == len(BENCHES)
        citation = re.search(r"\\citep\{(\w+)\}", method)
        name = re.split(r"\\footnote|\\newline|\(Ours\)", method)[0].replace(r"\textbf{\Versa{}}", "Versa").strip()
        for bench, column in zip(BENCHES, columns, strict=True):
            if column.strip():
                match = CELL.match(column.strip())
                assert match, column
                cells[name, bench] = (citation[1] if citation else "", match[2], match[3] or "", bool(match[1]))
    return cells


@pytest.mark.parametrize(
    ("metric", "label", "scale", "rows", "numbers"),
    [
        ("accuracy", "table:classification_results_main", 2, 19, 87),
        ("nll", "table:log_likelihood_results", 0, 3, 16),
    ],
)
def test_every_cell_is_the_papers(metric: str, label: str, scale: int, rows: int, numbers: int) -> None:
    expected = {cell: value[:3] for cell, value in parse(paper(), label).items()}
    ours = {
        (p.label, p.bench): (p.citation, str(p.mean.scaleb(scale)), "" if p.ci95 is None else str(p.ci95.scaleb(scale)))
        for p in published.load()
        if p.metric == metric
    }
    assert ours == expected
    assert len(ours) == numbers
    assert len({name for name, _ in ours}) == rows
    assert list(dict.fromkeys(name for name, _ in ours)) == list(dict.fromkeys(name for name, _ in expected))


def test_no_cell_twice_and_nothing_else() -> None:
    rows = published.load()
    assert len({(p.method, p.bench, p.metric) for p in rows}) == len(rows) == 103
    assert len({p.method for p in rows}) == len({p.label for p in rows}) == 19
    assert all(re.fullmatch(r"[a-z_]+", p.method) for p in rows)
    assert {p.bench for p in rows} == set(BENCHES)
    assert all(0 < p.mean < 1 for p in rows if p.metric == "accuracy")


def test_rows_measured_otherwise_say_so() -> None:
    notes = {p.method: p.note for p in published.load() if p.metric == "accuracy"}
    assert notes["maml"] == notes["versa"]
    assert notes["maml"].startswith("transductive")
    assert "k query" in notes["maml"]
    assert notes["protonets"].startswith("inductive")
    of = {(p.method, p.bench): p.note for p in published.load()}
    assert "Vinyals" in of["siamese_nets", "omni5w1s"]
    assert "stream" in of["memory_mod", "omni20w5s"]
    assert of["matching_nets", "omni5w1s"] == "without full context embeddings"
    assert "fine-tuned" in of["matching_nets", "mini5w1s"]
    assert "shallow" in of["snail", "mini5w5s"]
    assert of["snail", "omni5w1s"] == ""
    assert "47.89" in of["map_ssvm", "mini5w1s"]
    assert all("once" in of[name, "mini5w1s"] for name in ("llama", "platipus", "bmaml"))


def test_loads_from_any_folder(tmp_path: Path) -> None:
    root = Path(published.__file__).resolve().parents[1]
    code = "from mlpip_bench.records import published; print(len(published.load()))"
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "103", done.stderr

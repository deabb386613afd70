"""What the repository says of its own runs follows from the records that are committed with it."""

import re
from pathlib import Path

import pytest

from mlpip_bench import results, tables

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", ["results", "results/norm_choice"])
def test_the_committed_tables_are_those_of_the_committed_records(folder, tmp_path):
    committed = REPOSITORY / folder / "tables"
    written = tables.write_tables(results.load_all(REPOSITORY / folder), tmp_path)
    assert {p.name for p in written} == {p.name for p in committed.iterdir()}
    for path in written:
        assert path.read_bytes() == (committed / path.name).read_bytes(), f"regenerate with: table --results {folder}"


def test_the_readme_quotes_the_records():
    shown = {r[0]: r[1:] for r in re.findall(r"^\| `(\w+)` \| (\d\d\.\d\d ± \S+) \| (\d\.\d+ ± \S+) \|", README, re.M)}
    records = {(r.method, r.protocol): r for r in results.load_all(REPOSITORY / "results") if r.bench == "omni5w1s"}
    assert set(shown) == {method for method, _ in records}
    for method, (accuracy, nll) in shown.items():
        mean, half_width = results.mean_ci95(records[method, "accuracy"].scores[0].per_task)
        assert accuracy == f"{100 * mean:.2f} ± {100 * half_width:.2f}"
        mean, half_width = results.mean_ci95(records[method, "nll"].scores[0].per_task)
        assert nll == f"{mean:.4f} ± {half_width:.4f}"
    assert {r.data["source"] for r in records.values()} == {"real"}


def test_the_readme_quotes_the_validation_accuracies_that_chose_the_default_norm():
    header = re.search(r"^\| validation accuracy, % \| (.*) \| mean \|$", README, re.M)
    methods = header[1].split(" | ")
    records = {(r.config["norm"], r.method): r for r in results.load_all(REPOSITORY / "results/norm_choice")}
    for norm in ("metabn", "tasknorm"):
        shown = re.search(rf"^\| `{norm}` \| (.*) \|$", README, re.M)[1].split(" | ")
        final = [records[norm, method].training["history"][-1]["accuracy"] * 100 for method in methods]
        assert shown == [f"{a:.1f}" for a in (*final, sum(final) / len(final))]

"""The notebook of the tour, and the example of the page on the Python API, run as they are committed."""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

import mlpip_bench.api.models  # noqa: F401  # here, since an import of torch sets environment variables
from builders import REPOSITORY

CELLS = json.loads((REPOSITORY / "docs" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What its cells leave, run one after the other; figures are drawn to no screen."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tour"))
        patch.setattr("tempfile.tempdir", str(Path.cwd()))
        patch.setattr(plt, "show", lambda: found.setdefault("shown", []).append(plt.gcf()))
        plt.switch_backend("agg")
        for cell in CELLS:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), cell["id"], "exec"), found)
        plt.close("all")
    return found


def test_it_is_committed_without_outputs():
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_it_says_what_its_numbers_are_of():
    first = "".join(CELLS[0]["source"])
    assert "stand-ins" in first
    assert "budget is tiny" in first


def test_its_results_fit_together(namespace):
    assert set(namespace["scores"]["source"]) == {"procedural"}
    accuracy = namespace["accuracy"]
    assert set(accuracy.index) == {"protonets", "versa"}
    fitted = namespace["scores"].set_index("metric").loc["accuracy"]
    assert fitted["per_task"] == accuracy.loc["protonets", "per_task"]  # fit and run train in the same way
    expected = accuracy.loc["versa", "mean"] - accuracy.loc["protonets", "mean"]
    assert namespace["difference"].mean() == pytest.approx(expected)
    assert namespace["probabilities"].shape == (15, 5)
    assert namespace["probabilities"].sum(axis=1) == pytest.approx(1)
    assert (namespace["predicted"] == namespace["right"]).mean() > 0.3  # chance is 0.2


def test_its_figures_show_the_task_and_the_intervals(namespace):
    task, comparison = namespace["shown"]
    assert len(task.axes) == 5 * 4
    shown = np.stack([axis.images[0].get_array() for axis in task.axes[::4]])
    support = namespace["task"].support
    assert (shown == support.x[0, support.y[0].argsort(), 0].numpy()).all()
    (axis,) = comparison.axes
    (bars,) = axis.containers
    lengths = [abs(segment[1, 1] - segment[0, 1]) / 2 for segment in bars.lines[2][0].get_segments()]
    assert lengths == pytest.approx(list(100 * namespace["accuracy"]["ci95"]))


def test_the_example_of_the_api_page_runs(tmp_path, monkeypatch):
    page = (REPOSITORY / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(compile(example, "api/index.md", "exec"), found)
    assert found["probabilities"].shape == (75, 5)
    recorded = found["records"].query("method == 'protonets' and metric == 'nll' and model == 'best'")
    assert list(recorded["per_task"]) == [found["scores"].set_index("metric").loc["nll", "per_task"]]

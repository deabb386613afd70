"""The commands and the files of the page on one's own method, run as they stand there."""

import re
import shlex

import numpy as np
import pandas as pd
import pytest
import torch

import mlpip_bench
from builders import REPOSITORY, budget, invoke
from pictures import write_classes

PAGE = (REPOSITORY / "docs" / "my-method.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
FILES = {"my_models.py": BLOCKS[0], "my_method.py": "\n\n".join(BLOCKS[-2:])}
COMMANDS = [shlex.split(block.replace("\\\n", ""))[3:] for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With the files of the page, and pictures."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    write_classes(tmp_path / "signs", ["stop", "go"], 2)
    write_classes(tmp_path / "scans", ["some"], 3)
    return tmp_path


@pytest.mark.parametrize("command", [words for words in COMMANDS if words[0] == "run"], ids=lambda words: words[2])
def test_the_runs_of_the_page_work(command, folder):
    small = [option for option in budget() if option != "--no-check"]  # the page says that a run checks
    result = invoke(*command, "--source", "procedural", *small, "--protocols", "accuracy")
    assert result.exit_code == 0, result.output
    assert "0 failed" in result.output
    assert "fails" not in (folder / "runs" / "tables" / "accuracy.md").read_text(encoding="utf-8")


def test_a_wrapped_model_classifies_pictures_as_python_has_it(folder):
    (command,) = (words for words in COMMANDS if words[0] == "predict")
    result = invoke(*command, "--to", "found.csv")
    assert result.exit_code == 0, result.output
    model = mlpip_bench.load("my_models.py:nearest")
    signs, scans = sorted(folder.glob("signs/*/*")), sorted(folder.glob("scans/*/*"))
    support, query = (model.pictures.read(paths) for paths in (signs, scans))
    adapted = model.adapt(support, [path.parent.name for path in signs])
    probabilities = pd.read_csv("found.csv")[[f"p({name})" for name in adapted.classes]].to_numpy()
    np.testing.assert_allclose(probabilities, adapted.predict(query), rtol=1e-12)
    flat = torch.tensor(support / 255).flatten(1)
    means = torch.stack([flat[[path.parent.name == name for path in signs]].mean(0) for name in adapted.classes])
    expected = torch.softmax(-torch.cdist(torch.tensor(query / 255).flatten(1), means), -1)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_a_model_that_predict_cannot_use_is_one_error(folder):
    (folder / "my_models.py").write_text(
        FILES["my_models.py"].replace(", input_shape=(1, 28, 28)", ""), encoding="utf-8"
    )
    for place, message in (
        ("my_models.py:nearest", "says what images it takes"),
        ("my_method.py:Cosine", "is a method. Train it with fit"),
        ("my_models.py:none", "has no none"),
    ):
        result = invoke("predict", "--model", place, "--support", "signs", "--query", "scans")
        assert result.exit_code == 2
        assert message in result.output

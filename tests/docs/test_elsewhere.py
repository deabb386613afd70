"""The stories of the page on one's own model that leave the suite: each command and program, run as it stands there."""

import re
import shlex

import numpy as np
import pytest
import torch

from builders import REPOSITORY, budget, invoke
from mlpip_bench import registry
from mlpip_bench.records import store

PAGE = (REPOSITORY / "docs" / "my-model.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.M | re.S)


def do(script: str) -> str:
    """The output of the commands of a block, those of ``run`` with a small budget and on stand-in data."""
    output = ""
    for line in script.replace("\\\n", "").splitlines():
        words = shlex.split(line)[3:]
        words += budget(iterations=20, test_tasks=600) if words[0] == "run" else []
        words += [] if words[0] == "table" else ["--source", "procedural"]
        result = invoke(*words)
        assert result.exit_code == 0, result.output
        output += result.output
    return output


def test_a_program_without_the_suite_has_the_scores_of_the_suite_on_the_same_tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = "Trained or tested elsewhere"
    export, compare = blocks(section, "sh")
    (program,) = blocks(section, "python")
    assert "mlpip_bench" not in program
    do(export)
    exec(program, {})
    shown = do(compare.replace("--methods protonets", "--methods protonets --backbone identity"))
    # The nearest of one support image a class is the nearest prototype, where features are the pixels.
    found = {r.method: r for r in store.load_all(tmp_path / "runs") if r.protocol == "accuracy"}
    ours, theirs = (found[name].scores[0].per_task for name in ("protonets", "nearest-pixels"))
    assert list(ours) == list(theirs)
    assert 0.3 < np.mean(ours) < 0.99
    assert "0.00 ± " in shown  # the paired difference


@pytest.mark.parametrize("backbone", [None, "mlp"])
def test_heads_train_on_the_features_of_a_network(backbone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_network.py").write_text(blocks("A network of your own", "python")[0], encoding="utf-8")
    plugin = registry.backbone("my_network.py:build")
    network = plugin((1, 28, 28), plugin.Settings(width=16), "own").network[0]
    torch.save(network.state_dict(), tmp_path / "my_network.pt")
    (script,) = blocks("Features as data", "sh")
    features, train = script.rstrip().rsplit("\npython", 1)
    do(features)
    result = invoke(
        *shlex.split(train)[2:], *budget(iterations=20), "--protocols", "accuracy",
        *(["--backbone", backbone] if backbone else []),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    records = store.load_all(tmp_path / "runs")
    assert {r.method for r in records} == {"versa", "amortized_vi", "protonets", "maml"}
    for record in records:
        assert record.backbone["name"] == (backbone or "identity")
        assert record.data["source"] == "procedural"
        assert record.data["options"]["pretrained_on"] == "glyphs"
    assert "pretrained on glyphs" in " ".join(result.output.split())

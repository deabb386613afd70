"""The commands and the network of the page on one's own model, run as they stand there."""

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import BUDGET, REPOSITORY, budget, invoke, make_config
from mlpip_bench import registry
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.inference.pretraining import Pretraining
from pictures import write_classes

PAGE = (REPOSITORY / "docs" / "my-model.md").read_text(encoding="utf-8")
NETWORK = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[0]
(SAVED,) = (code for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S) if "conv4.pt" in code)
FIRST = PAGE.partition("## Use what was trained")[0]
COMMANDS = [
    shlex.split(block.replace("\\\n", ""))[3:] for block in re.findall(r"^```sh\n(.*?)^```", FIRST, re.M | re.S)
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[-1])
def test_the_commands_of_the_page_work(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_network.py").write_text(NETWORK, encoding="utf-8")
    plugin = registry.backbone("my_network.py:build")
    network = plugin((1, 28, 28), plugin.Settings(width=16), "own").network[0]
    torch.save(network.state_dict(), tmp_path / "my_network.pt")
    (trial,) = plan_trials(make_config())
    torch.save(trial.build_method().state_dict(), tmp_path / "protonets.pt")
    if "conv4.pt" in command[-1]:
        exec(SAVED.replace('norm="running"', f'norm="running", source="procedural", settings={dict(BUDGET)}'), {})
    result = invoke(*command, "--source", "procedural", *budget(), "--protocols", "accuracy")
    assert result.exit_code == 0, result.output
    assert "0 failed" in result.output


def test_the_settings_of_transfer_are_those_of_the_page():
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in re.findall(r"^## Pre-training\n(.*?)^## ", PAGE, re.M | re.S)[0].splitlines()
        if line.startswith("| ") and "`" in line
    ]
    of_stage = {row[0].strip("`"): row[1].strip("`") for row in rows if len(row) == 3}
    assert of_stage == {name: str(value) for name, value in vars(Pretraining()).items()}
    found: dict[str, dict[str, str]] = {}
    methods: list[str] = []
    for first, names, default, _ in (row for row in rows if len(row) == 4):
        methods = re.findall("`(.*?)`", first) or methods
        for method in methods:
            found.setdefault(method, {}).update(dict.fromkeys(re.findall("`(.*?)`", names), default.strip("`")))
    transfer = {name: registry.method(name) for name in registry.method_names() if registry.method(name).pretraining}
    assert found == {n: {k: str(v) for k, v in vars(p.Settings()).items()} for n, p in transfer.items()}
    for words in (("list", "methods", "--check"), ("run", "--help")):
        shown = " ".join(invoke(*words, COLUMNS="400").output.split())
        assert ("classify has the settings head='linear'" in shown) == (words[0] == "list")
        assert ("Its settings: list methods --check" in shown) == (words[0] == "run")


USE = re.findall(r"^## Use what was trained\n(.*?)^## ", PAGE, re.M | re.S)[0]


def test_what_was_trained_is_used_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "signs", ["stop", "go"], 2)
    write_classes(tmp_path / "scans", ["inner"], 3)
    for path in (tmp_path / "scans" / "inner").iterdir():
        path.rename(tmp_path / "scans" / path.name)
    for line in "".join(re.findall(r"^```sh\n(.*?)^```", USE, re.M | re.S)).splitlines():
        words = [found for word in shlex.split(line)[3:] for found in (sorted(map(str, Path().glob(word))) or [word])]
        more = ("--source", "procedural", *budget()) if words[0] == "run" else ()
        result = invoke(*words, *more)
        assert result.exit_code == 0, result.output
    assert {"predictions.csv", "sheet.png", "letters.safetensors", "letters.md"} <= {p.name for p in tmp_path.iterdir()}
    (code,) = re.findall(r"^```python\n(.*?)^```", USE, re.M | re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    with Path("predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = [[float(row[f"p({name})"]) for name in names["adapted"].classes] for row in csv.DictReader(file)]
    assert (np.array(rows) == names["probabilities"]).all()

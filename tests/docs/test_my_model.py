"""The commands and the network of the page on one's own model, run as they stand there."""

import re
import shlex

import pytest
import torch

from builders import REPOSITORY, budget, invoke
from mlpip_bench import registry

PAGE = (REPOSITORY / "docs" / "my-model.md").read_text(encoding="utf-8")
NETWORK = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[0]
FIRST = PAGE.partition("## Trained or tested elsewhere")[0]
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
    result = invoke(*command, "--source", "procedural", *budget(), "--protocols", "accuracy")
    assert result.exit_code == 0, result.output
    assert "0 failed" in result.output

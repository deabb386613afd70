"""The commands and the files of the page on one's own method, run as they stand there."""

import re
import shlex

import pytest

from builders import REPOSITORY, budget, invoke

PAGE = (REPOSITORY / "docs" / "my-method.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
FILES = {"my_models.py": BLOCKS[0], "my_method.py": BLOCKS[-1]}
COMMANDS = [shlex.split(block.replace("\\\n", ""))[3:] for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[2])
def test_the_commands_of_the_page_work(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    small = [option for option in budget() if option != "--no-check"]  # the page says that a run checks
    result = invoke(*command, "--source", "procedural", *small, "--protocols", "accuracy")
    assert result.exit_code == 0, result.output
    assert "0 failed" in result.output
    assert "fails" not in (tmp_path / "runs" / "tables" / "accuracy.md").read_text(encoding="utf-8")

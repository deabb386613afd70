"""What Windows lacks is not needed: modules of Unix, and a console that has every character."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builders import make_record
from mlpip_bench.records import store

WITHOUT_RESOURCE = """
import importlib, pkgutil, sys
sys.modules["resource"] = None  # so that importing it fails, as it does on Windows
import mlpip_bench.cli
for package in ("cli", "execution", "utils", "datasets"):
    path = importlib.import_module(f"mlpip_bench.{package}").__path__
    for info in pkgutil.walk_packages(path, f"mlpip_bench.{package}."):
        importlib.import_module(info.name)
from mlpip_bench.__main__ import main
main()
"""


@pytest.mark.parametrize(("arguments", "shown"), [(["--help"], "Usage"), (["list", "benches"], "omni5w1s")])
def test_the_command_line_works_without_a_module_of_unix(arguments: list[str], shown: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_RESOURCE, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", r"\d ± \d"), ("ascii", r"\d \? \d")])
def test_a_table_can_be_sent_to_a_file_whose_encoding_lacks_a_character(
    encoding: str, shown: str, tmp_path: Path
) -> None:
    store.save(make_record(), tmp_path)
    command = [sys.executable, "-m", "mlpip_bench", "table", "--results", str(tmp_path)]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert re.search(shown, done.stdout.decode(encoding))

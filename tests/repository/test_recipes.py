"""CONTRIBUTING's recipes, followed as they are written in a copy of the checkout with an environment of its own."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from builders import REPOSITORY

KINDS = ("A method", "A protocol", "A data set", "A backbone")
FILES = {"pyproject.toml", "CHANGELOG.md"}
# Of what the recipes bring; the copy's own are those of this checkout.
READ_PLUGINS = ["tests/repository", "tests/docs/test_pages.py", "tests/docs/test_site.py", "tests/test_registry.py"]
CONFORMANCE = ["tests/testing/test_conformance.py", "tests/testing/test_backbones.py", "tests/testing/test_families.py"]
# pip takes no build constraints, which tox sets, where it does not isolate the build. Under tox the wheel is tested.
DROPPED = {"PIP_BUILD_CONSTRAINT", "MLPIP_BENCH_EXPECT_WHEEL", "PYTHONPATH"}


def checkout_files() -> list[str]:
    """What git tracks, and what it would take in."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs git and a checkout: {done.stderr.strip()}")
    return [name for name in done.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def recipes() -> list[list[tuple[str, str]]]:
    """For each kind of plugin its blocks of CONTRIBUTING: language and content."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = []
    for kind in KINDS:
        (section,) = re.findall(rf"^### {kind}\n(.*?)(?=^##)", text, re.M | re.S)
        found.append(re.findall(r"^```(bash|toml)\n(.*?)^```$", section, re.M | re.S))
    return found


class Copy:
    """A copy of the checkout, and an environment in which it is installed for editing.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.checkout, self.environment = folder / "checkout", folder / "environment"
        for name in checkout_files():
            target = self.checkout / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((REPOSITORY / name).read_bytes())
        venv.create(self.environment, symlinks=True)
        variables = {"base": str(self.environment), "platbase": str(self.environment)}
        site = Path(sysconfig.get_path("purelib", "venv", variables))
        paths = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        (site / "of_the_tests.pth").write_text("\n".join(paths) + "\n")  # what is installed here is not installed again
        scripts = Path(sysconfig.get_path("scripts", "venv", variables))
        self.python = scripts / ("python.exe" if os.name == "nt" else "python")

    def run(self, *command: str) -> str:
        """A command in the copy's folder and environment; what it prints."""
        environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
        done = subprocess.run(
            command,
            cwd=self.checkout,
            env=environment | {"MLPIP_BENCH_DATA": "", "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def install(self) -> None:
        """``pip install -e .`` of the copy alone: its requirements are those of the environment of the tests."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        self.run(*pip, "--no-deps", "--no-build-isolation", "--no-index", "-e", ".")

    def pytest(self, *arguments: str) -> str:
        """Tests of the copy, but these."""
        options = ["-q", "-x", "-rfEs", "-p", "no:benchmark", "-p", "no:cacheprovider"]
        return self.run(
            str(self.python), "-m", "pytest", *options, *arguments, "--ignore=tests/repository/test_recipes.py"
        )

    def follow(self, language: str, block: str) -> None:
        """A block of a recipe, as it is written."""
        if language == "toml":
            header, *lines = block.splitlines()
            file = self.checkout / "pyproject.toml"
            text = file.read_text(encoding="utf-8")
            assert text.count(f"{header}\n") == 1, header
            file.write_text(text.replace(f"{header}\n", "\n".join([header, *lines, ""])), encoding="utf-8")
            return
        for line in block.splitlines():
            program, *arguments = line.split()
            if line == "pip install -e .":
                self.install()
            elif program == "pytest":
                self.pytest(*arguments)
            else:
                assert program in ("cp", "python"), line
                self.run(str(self.python) if program == "python" else program, *arguments)

    def files(self) -> dict[str, bytes]:
        """Its files, without what runs and tools leave behind."""
        generated = {"runs", "__pycache__", ".pytest_cache"}
        return {
            path.relative_to(self.checkout).as_posix(): path.read_bytes()
            for path in self.checkout.rglob("*")
            if path.is_file() and generated.isdisjoint(path.relative_to(self.checkout).parts)
        }


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy in which all four recipes have been followed, each of which has touched four files."""
    copy = Copy(tmp_path_factory.mktemp("recipes"))
    for kind, blocks in zip(KINDS, recipes(), strict=True):
        before = copy.files()
        for language, block in blocks:
            copy.follow(language, block)
        changelog = copy.checkout / "CHANGELOG.md"
        changelog.write_text(changelog.read_text(encoding="utf-8") + f"- {kind}.\n", encoding="utf-8")
        after = copy.files()
        changed = {name for name in after if before.get(name) != after[name]}
        assert before.keys() <= after.keys()
        assert changed >= FILES
        assert len(changed) == 4, f"{kind}: CONTRIBUTING says four files; the recipe touches {sorted(changed)}"
    return copy


@pytest.mark.slow
def test_the_recipes_work_and_the_tests_that_read_plugins_pass(followed):
    followed.pytest(*READ_PLUGINS)
    followed.pytest(*CONFORMANCE, "-k", "cosine or tinyconv or blobs")
    stored = followed.pytest("tests/execution/test_stored_scores.py", "-k", "cosine")
    assert "python tests/execution/test_stored_scores.py stores those of all cases" in stored


@pytest.mark.slow
def test_the_whole_suite_passes_with_them(followed):
    # The example package cannot be installed here: its plugins' names are taken.
    ignored = ["--ignore=tests/benchmarks", "--ignore=tests/testing/test_example_plugin.py"]
    followed.pytest("tests", "-m", "not slow", *ignored, "-n", "2", "--dist", "loadfile")

"""The files about the project agree with it: CI, hooks, citation, lower bounds."""

import configparser
import itertools
import re
import runpy
import shlex
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import mlpip_bench
from builders import REPOSITORY


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def expanded(name: str) -> list[str]:
    """``py3{11,12}`` to ``py311`` and ``py312``, as tox reads a section's name."""
    choices = (part.split(",") for part in re.split(r"[{}]", name))
    return ["".join(choice) for choice in itertools.product(*choices)]


def tox_environments() -> set[str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(read("tox.ini"))
    sections = (section.removeprefix("testenv:") for section in parser.sections() if section.startswith("testenv:"))
    return {name for section in sections for name in expanded(section)}


# -- CI --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    (job,) = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"].values()
    return job


def test_ci_only_installs_tox_and_calls_it(job: dict[str, Any]) -> None:
    assert [step.get("uses", "").partition("@")[0] or step["run"] for step in job["steps"]] == [
        "actions/checkout",
        "actions/setup-python",
        "python -m pip install -c constraints.txt tox",
        "tox ${{ matrix.tox }}",
    ]


def test_ci_calls_environments_that_tox_has_by_their_python(job: dict[str, Any]) -> None:
    known = tox_environments()
    assert {"lint", "suite", "lowest", "py311"} <= known
    for entry in job["strategy"]["matrix"]["include"]:
        if entry["tox"]:
            option, name = shlex.split(entry["tox"])
            assert option == "-e"
            assert name in known, f"tox.ini has no environment {name}; it has {sorted(known)}"
            version = re.fullmatch(r"py(\d)(\d+)", name)
            assert version is None or ".".join(version.groups()) == entry["python"], entry


def test_ci_covers_every_python_of_the_classifiers_on_every_system(job: dict[str, Any]) -> None:
    classifiers = tomllib.loads(read("pyproject.toml"))["project"]["classifiers"]
    pythons = {
        match[1] for c in classifiers if (match := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c))
    }
    entries = job["strategy"]["matrix"]["include"]
    systems = {"ubuntu-latest", "macos-latest", "windows-latest"}
    assert {(entry["os"], entry["python"]) for entry in entries} == set(itertools.product(systems, pythons))
    assert {"os": "ubuntu-latest", "python": "3.11", "tox": ""} in entries  # all that a plain tox runs


def test_a_section_of_several_environments_is_expanded() -> None:
    assert expanded("py3{11,12}") == ["py311", "py312"]
    assert expanded("lint") == ["lint"]


# -- hooks -----------------------------------------------------------------------------------------------------------


def test_hooks_are_local_and_run_what_is_there() -> None:
    (source,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert source["repo"] == "local"
    assert {hook["language"] for hook in source["hooks"]} == {"system"}
    entries = [shlex.split(hook["entry"]) for hook in source["hooks"]]
    assert [entry[0] for entry in entries] == ["ruff", "ruff", "mypy", "pytest"]
    files = [word for entry in entries for word in entry if word.startswith("tests/")]
    assert files
    assert all((REPOSITORY / file).exists() for file in files), files


# -- citation --------------------------------------------------------------------------------------------------------


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]  # which version 1.2.0 of the format requires, like the title and the authors
    assert citation["version"] == mlpip_bench.__version__
    assert (citation["title"], citation["type"], citation["license"]) == (
        project["name"],
        "software",
        project["license"],
    )
    assert citation["authors"] == [{"name": "The mlpip_bench developers"}]
    (paper,) = citation["references"]
    assert paper["title"] == "Meta-Learning Probabilistic Inference for Prediction"
    assert [a["family-names"] for a in paper["authors"]] == ["Gordon", "Bronskill", "Bauer", "Nowozin", "Turner"]
    assert (paper["year"], paper["type"]) == (2019, "conference-paper")


# -- lower bounds ----------------------------------------------------------------------------------------------------


def test_the_lowest_versions_are_those_of_pyproject_and_torch_that_of_the_constraints() -> None:
    lowest = runpy.run_path(str(REPOSITORY / ".ci" / "lowest.py"))["lowest"]
    pins = dict(line.split("==") for line in lowest(read("pyproject.toml"), read("constraints.txt")).splitlines())
    (torch,) = re.findall(r"^torch==(.*)$", read("constraints.txt"), re.M)
    assert pins.pop("torch") == torch
    content = tomllib.loads(read("pyproject.toml"))
    lists = [content["build-system"]["requires"], content["project"]["dependencies"]]
    lists += content["project"]["optional-dependencies"].values()
    bounds: dict[str, set[Version]] = {}
    for requirement in (Requirement(line) for lines in lists for line in lines):
        for specifier in requirement.specifier:
            bounds.setdefault(canonicalize_name(requirement.name), set()).add(Version(specifier.version))
    del bounds["torch"]
    assert {name: {Version(version)} for name, version in pins.items()} == bounds

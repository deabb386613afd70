"""A package imports only packages of lower layers; what must start at once imports no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from builders import REPOSITORY

LAYERS = {
    "utils": 1,
    "pretrained": 1,
    "records": 2,
    "datasets": 2,
    "tasks": 3,
    "reporting": 3,
    "nn": 4,
    "inference": 5,
    "methods": 6,
    "evaluation": 6,
    "benches": 7,
    "training": 7,
    "registry": 8,
    "protocols": 9,
    "testing": 9,
    "execution": 10,
    "api": 11,
    "cli": 12,
}
"""Of the packages and modules right below ``mlpip_bench``; those of one layer do not import each other."""


def folder_of(package: str) -> Path:
    """Where a package of the checkout lies; the plugins of the two top-level folders are imported from here, too."""
    top = REPOSITORY / package
    return top if package in ("methods", "protocols") else REPOSITORY / "mlpip_bench" / package


def files_of(package: str) -> list[Path]:
    """Its modules; one, where it is a module itself."""
    folder = folder_of(package)
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def imported(file: Path) -> set[str]:
    """The packages below ``mlpip_bench`` that a file imports, wherever it does so; for types alone does not count."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for guard in ast.walk(tree)
        if isinstance(guard, ast.If) and isinstance(guard.test, ast.Name) and guard.test.id == "TYPE_CHECKING"
        for node in ast.walk(guard)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and id(node) not in for_types:
            parts = (node.module or "").split(".")
            if parts == ["mlpip_bench"]:
                found |= {alias.name for alias in node.names}
            elif parts[0] == "mlpip_bench":
                found.add(parts[1])
    return found - {"__version__"}


def test_every_package_has_a_layer():
    packages = {path.stem for path in (REPOSITORY / "mlpip_bench").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert packages - {"__init__", "__main__", "__pycache__", "py"} == set(LAYERS) - {"methods", "protocols"}


@pytest.mark.parametrize("package", LAYERS)
def test_a_package_imports_lower_layers_only(package):
    upwards = [
        f"{file.relative_to(REPOSITORY)} imports {other}"
        for file in files_of(package)
        for other in sorted(imported(file) - {package})
        if LAYERS[other] >= LAYERS[package]
    ]
    assert not upwards


@pytest.mark.parametrize("package", ["records", "reporting", "cli"])
def test_records_reporting_and_the_start_of_the_command_line_load_no_torch(package, tmp_path):
    modules = [
        ".".join(("mlpip_bench", *file.relative_to(REPOSITORY / "mlpip_bench").with_suffix("").parts))
        for file in files_of(package)
        if file.name not in ("__init__.py", "running.py")  # running does what takes time
    ]
    code = (
        "import importlib, sys\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        "print(*sorted(m for m in sys.modules if m.partition('.')[0] in ('torch', 'higher', 'sklearn', 'skimage')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_a_file_is_no_longer_than_one_can_read():
    """Under about 450 lines, but for what draws."""
    drawing = {"solids.py"}
    lengths = {
        file.relative_to(REPOSITORY).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for package in LAYERS
        for file in files_of(package)
        if file.name not in drawing
    }
    assert {name: length for name, length in lengths.items() if length > 470} == {}

"""Build sdist and wheel, install the wheel, and use it from an empty folder; ``tox -e packaging`` runs it.

The environment that runs it gets the wheel installed. Nothing here can import the checkout: every command
runs in a temporary folder.
"""

import csv
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FOLDERS = {"mlpip_bench": "mlpip_bench", "methods": "mlpip_bench/methods", "protocols": "mlpip_bench/protocols"}
"""Folders of the checkout, and where the wheel has them."""
MODEL_FILES = (".safetensors", ".md")
"""Endings of the trained models that ship with the suite, and of their cards."""
TINY_RUN = (
    *("run", "--source", "procedural", "--bench", "omni5w1s", "--methods", "protonets"),
    *("--iterations", "2", "--test-tasks", "3", "--set", "validation_tasks=2", "--results", "results"),
)


def check(holds: bool, message: str) -> None:
    """End with a message unless something holds."""
    if not holds:
        sys.exit(f"packaging: {message}")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command in a folder and return what it wrote on standard output, which is shown if it fails."""
    environment = os.environ | {"MLPIP_BENCH_CACHE": str(cwd / "cache"), "COLUMNS": "160"}
    sys.stdout.write(f"$ {' '.join(map(str, command))}\n")
    sys.stdout.flush()
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.stdout.write(done.stdout)
    check(done.returncode == 0, f"status {done.returncode} from: {' '.join(map(str, command))}")
    return done.stdout


def check_sdist(path: Path) -> None:
    """The sdist has what a packager needs, and no results or data of this machine."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("pyproject.toml", "LICENSE", "README.md", "tox.ini", "constraints.txt", "tests/conftest.py"):
        check(needed in names, f"{path.name} lacks {needed}")
    for name in names:
        check(not name.startswith(("results/omniglot", "runs", ".venv", ".tox")), f"{path.name} has {name}")


def check_wheel(path: Path, root: Path) -> None:
    """The wheel has one package, with the modules of the checkout's three folders and data files, and nothing else."""
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    metadata = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    expected = {f"mlpip_bench/{name}" for name in ("published.csv", "py.typed", "reporting/report_template.html")}
    models = root / "mlpip_bench" / "pretrained"
    expected |= {f"mlpip_bench/pretrained/{file.name}" for file in models.iterdir() if file.suffix in MODEL_FILES}
    for folder, inside in FOLDERS.items():
        files = (file.relative_to(root / folder).as_posix() for file in (root / folder).rglob("*.py"))
        expected |= {f"{inside}/{file}" for file in files}
    missing, more = sorted(expected - names), sorted(names - metadata - expected)
    check(not missing, f"{path.name} lacks {', '.join(missing)}")
    check(not any(name.startswith("tests/") for name in more), f"{path.name} has tests: {', '.join(more)}")
    strangers = [name for name in more if name.partition("/")[0] != "mlpip_bench"]
    check(not strangers, f"{path.name} has files outside mlpip_bench: {', '.join(strangers)}")
    check(any(name.endswith("/licenses/LICENSE") for name in metadata), f"{path.name} lacks the license's text")


def main(root: Path) -> None:
    """Check everything, in a temporary folder."""
    python = sys.executable
    with tempfile.TemporaryDirectory(prefix="mlpip_bench-packaging-") as name:
        folder = Path(name).resolve()
        check(root not in folder.parents, f"the temporary folder {folder} must lie outside the checkout {root}")
        run(python, "-m", "build", "--outdir", folder / "dist", root, cwd=folder)
        (sdist,), (wheel,) = (list((folder / "dist").glob(pattern)) for pattern in ("*.tar.gz", "*.whl"))
        check_sdist(sdist)
        check_wheel(wheel, root)

        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "mlpip_bench", cwd=folder)
        run(python, "-m", "pip", "install", wheel, cwd=folder)
        empty = folder / "empty"
        empty.mkdir()
        where = run(python, "-c", "import mlpip_bench; print(mlpip_bench.__file__)", cwd=empty)
        check("site-packages" in where, f"the installed package must be imported; got {where}")
        version = run(Path(python).parent / "mlpip_bench", "--version", cwd=empty).strip()
        check(version == wheel.name.split("-")[1], f"--version says {version}; the wheel is {wheel.name}")
        check("protonets" in run(python, "-m", "mlpip_bench", "list", "methods", cwd=empty), "no protonets is listed")
        run(python, "-c", "import mlpip_bench as mb; mb.load('icons-protonets').pictures", cwd=empty)
        run(python, "-m", "mlpip_bench", *TINY_RUN, cwd=empty)
        table = run(python, "-m", "mlpip_bench", "table", "--format", "csv", "--results", "results", cwd=empty)
        rows = list(csv.DictReader(table.splitlines()))
        ours = {(row["bench"], row["method"], row["source"]) for row in rows if row["source"] == "procedural"}
        check(ours == {("omni5w1s", "protonets", "procedural")}, f"the table has rows of {ours}")
        quoted = Path(empty) / "results" / "tables" / "published.csv"
        check(
            quoted.is_file() and "omni5w1s" in quoted.read_text(encoding="utf-8"), "the published numbers are lacking"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

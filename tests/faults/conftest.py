"""What the fault injection tests share: a small run, its numbers, and the figures that are printed at the end."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import budget, invoke
from mlpip_bench.records import store

# They stop processes, fill disks and count memory by Linux's own means, and cannot even be imported everywhere.
collect_ignore = (
    [] if sys.platform == "linux" else ["test_disk.py", "test_executors.py", "test_killed.py", "test_memory.py"]
)


@pytest.fixture
def tell(record_property) -> Callable[[str, int | str], None]:
    """Notes a figure for the summary; numbers of several tests add up. A property of a test also comes home from
    the workers of pytest-xdist."""
    return lambda figure, value: record_property(f"fault: {figure}", value)


@pytest.fixture(scope="session")
def call() -> Callable[..., Any]:
    """The command line, in this process."""

    return invoke


@pytest.fixture(scope="session")
def run(call) -> Callable[..., Any]:
    """A run of two trials on tasks that need no data: about half a second, with a checkpoint every tenth iteration."""
    small = budget(iterations=40, validate_every=10, learning_rate=0.01)

    def two_trials(folder: Path, *arguments: object) -> Any:
        trials = ["--methods", "versa,amortized_vi", "--bench", "toy5", "--protocols", "nll,posterior"]
        return call("run", *trials, *small, "--results", folder, *arguments)

    return two_trials


@pytest.fixture(scope="session")
def numbers() -> Callable[[Path], dict[str, Any]]:
    """All numbers of a results folder that must not depend on what happened on the way, by record.

    Each record is one file and each file one record; names that begin with a dot belong to no one.
    """

    def of(folder: Path) -> dict[str, Any]:
        records = store.load_all(folder)
        files = [p for p in (folder / "records").rglob("*") if p.is_file() and not p.name.startswith(".")]
        files = [p for p in files if not p.name.startswith("predictions-")]
        assert sorted(r.filename for r in records) == sorted(
            p.relative_to(folder / "records").as_posix() for p in files
        )
        training = ("iterations", "tasks_seen", "best_iteration", "history")
        return {r.filename: (r.key, r.scores, r.inductive, [r.training[name] for name in training]) for r in records}

    return of


@pytest.fixture(scope="session")
def whole(run, numbers, tmp_path_factory) -> dict[str, Any]:
    """The numbers of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(folder).exit_code == 0
    found: dict[str, Any] = numbers(folder)
    assert len(found) == 4
    return found


@pytest.fixture(scope="session")
def one_message() -> Callable[..., None]:
    """Checks that a command ended as bad input does: status 2 and one message, which says certain things."""

    def check(result: Any, *says: object) -> None:
        assert result.exit_code == 2, result.output
        assert result.output.count("error:") == 1, result.output
        assert "Traceback" not in result.output
        for text in says:
            assert str(text) in result.output

    return check

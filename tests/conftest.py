import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import guard

# pytest-xdist sets it, and it would fix the width of consoles for good: of those that the next import makes, too.
os.environ.pop("COLUMNS", None)

from builders import REPOSITORY

# No absolute time is asserted, and what is tried is the same each time unless more is asked for.
_MORE = int(os.environ.get("MLPIP_BENCH_FUZZ", "0"))
settings.register_profile(
    "default", deadline=None, database=None, derandomize=not _MORE, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")

_FAULT = "fault: "  # what the names of their figures begin with


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's cache; all workers of pytest-xdist have one, so that data is drawn once."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLPIP_BENCH_CACHE", str(place / "cache"))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    guard.seed()  # fixtures of a module are set up before those of its first test


@pytest.fixture(autouse=True)
def _global_state_is_left_as_it_was() -> Iterator[None]:
    """The first fixture of a test to be set up, so that the others have put back what they changed when it ends."""
    guard.seed()
    before = guard.state()
    yield
    changed = guard.restored(before)
    assert not changed, f"the test changed {'; '.join(changed)}, and must leave it as it was (monkeypatch does)"


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data; tests that need it are skipped where there is none."""
    chosen = os.environ.get("MLPIP_BENCH_DATA")
    places = [Path(chosen).expanduser()] if chosen else []
    places.append(REPOSITORY.parent / "shared" / "data")
    for place in places:
        if place.is_dir():
            return place
    return pytest.skip(f"needs real data; none of these is there: {', '.join(map(str, places))}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures of fault injection; here, since pytest-xdist reads no other conftest where it sums up."""
    counts: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties if report.when == "call" else ():
            if name.startswith(_FAULT):
                if isinstance(value, int):
                    counts[name.removeprefix(_FAULT)] += value
                else:
                    texts[name.removeprefix(_FAULT)] = value
    if not (counts or texts):
        return
    terminalreporter.section("fault injection")
    for name, figure in [*counts.items(), *sorted(texts.items())]:
        terminalreporter.write_line(f"{name}: {figure}")

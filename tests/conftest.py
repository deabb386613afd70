import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.pop("COLUMNS", None)  # which pytest-xdist sets, and which would fix the width of consoles for good
REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLPIP_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


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

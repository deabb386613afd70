import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, Literal

import pytest
import torch

from mlpip_bench.reporting.tables.timing import bar_in_words

RATIOS = pytest.StashKey[list[dict[str, Any]]]()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A second thread on a busy machine makes either side wait for the scheduler."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def keep_ratio(benchmark, request) -> Callable[..., None]:
    """Notes a ratio in the benchmark's record, and for the summary; the keys are what ``table --timing`` reads."""

    def keep(of: str, ratio: float, bar: float, bar_is: Literal["at least", "at most"] = "at least") -> None:
        benchmark.extra_info.update(of=of, ratio=ratio, bar=bar, bar_is=bar_is, threads=torch.get_num_threads())
        request.config.stash.setdefault(RATIOS, []).append(dict(benchmark.extra_info))

    return keep


@pytest.fixture
def faster(benchmark, keep_ratio) -> Callable[..., None]:
    """Runs two sides by turns, so that a slow spell of the machine meets both; asserts the median of the ratios."""

    def compare(
        ours: Callable[[], object],
        theirs: Callable[[], object],
        of: str,
        *,
        bar: float,
        limit: float | None = None,
        turns: int,
    ) -> None:
        """The benchmark's own times are those of ours.

        Args:
            ours: the side that is to be faster.
            theirs: the other side, of the same work.
            of: what is compared: theirs / ours, and the work.
            bar: how many times as fast ours is to be.
            limit: what is asserted where the machine's noise could hide a ratio that is just above the bar.
            turns: of each side; the first warms up and does not count.
        """
        seconds: dict[Callable[[], object], list[float]] = {ours: [], theirs: []}

        def timed(side: Callable[[], object]) -> None:
            began = time.perf_counter()
            side()
            seconds[side].append(time.perf_counter() - began)

        benchmark.pedantic(timed, (ours,), setup=lambda: timed(theirs), rounds=turns - 1, warmup_rounds=1)
        if not benchmark.enabled:  # each side ran once, to see whether it runs
            return
        ratio = median(other / own for own, other in list(zip(seconds[ours], seconds[theirs], strict=True))[1:])
        keep_ratio(of, ratio, bar)
        limit = bar if limit is None else limit
        assert ratio >= limit, f"{of}: {ratio:.2f}; the limit is {limit}, and the bar {bar}"

    return compare


def pytest_terminal_summary(terminalreporter, config) -> None:
    ratios = config.stash.get(RATIOS, [])
    if not ratios:
        return
    terminalreporter.section("ratios, each within one run")
    width = max(len(r["of"]) for r in ratios)
    for r in ratios:
        terminalreporter.write_line(f"{r['of']:{width}}  {r['ratio']:7.2f}  ({bar_in_words(**r)})")

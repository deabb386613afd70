import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, Literal

import pytest
import torch

from mlpip_bench.reporting.tables.timing import bar_in_words, tuned_bar_in_words

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

    def keep(
        of: str, ratio: float | None, bar: float, bar_is: Literal["at least", "at most"] = "at least", **tuned: float
    ) -> None:
        """``tuned`` and ``tuned_bar`` are of a peer that is tuned as the suite is; None is no ratio of another."""
        of_both = {} if ratio is None else {"ratio": ratio, "bar": bar, "bar_is": bar_is}
        benchmark.extra_info.update(of=of, **of_both, **tuned, threads=torch.get_num_threads())
        request.config.stash.setdefault(RATIOS, []).append(dict(benchmark.extra_info))

    return keep


@pytest.fixture
def faster(benchmark, keep_ratio) -> Callable[..., None]:
    """Runs sides by turns, so that a slow spell of the machine meets all; asserts the median of the ratios."""

    def compare(
        ours: Callable[[], object],
        theirs: Callable[[], object] | None,
        of: str,
        *,
        bar: float = 1.0,
        limit: float | None = None,
        tuned: Callable[[], object] | None = None,
        tuned_bar: float = 1.5,
        tuned_limit: float = 1.0,
        turns: int,
    ) -> None:
        """The benchmark's own times are those of ours.

        Args:
            ours: the side that is to be faster.
            theirs: the other side, of the same work; None where there is only a tuned one.
            of: what is compared: theirs / ours, and the work.
            bar: how many times as fast ours is to be.
            limit: what is asserted where the machine's noise could hide a ratio that is just above the bar.
            tuned: a third side, which is theirs with the layout and the allocator of ours.
            tuned_bar, tuned_limit: the same of the tuned side.
            turns: of each side; the first warms up and does not count.
        """
        seconds: dict[Callable[[], object], list[float]] = {side: [] for side in (ours, theirs, tuned) if side}
        others = [side for side in seconds if side is not ours]

        def timed(side: Callable[[], object]) -> None:
            began = time.perf_counter()
            side()
            seconds[side].append(time.perf_counter() - began)

        def turn_of_others() -> None:
            for other in others:
                timed(other)

        benchmark.pedantic(timed, (ours,), setup=turn_of_others, rounds=turns - 1, warmup_rounds=1)
        if not benchmark.enabled:  # each side ran once, to see whether it runs
            return
        own = seconds[ours][1:]
        ratios = {o: median(a / b for a, b in zip(seconds[o][1:], own, strict=True)) for o in others}
        more = {"tuned": ratios[tuned], "tuned_bar": tuned_bar} if tuned else {}
        keep_ratio(of, ratios[theirs] if theirs else None, bar, **more)
        for other, wanted, least in (
            (theirs, bar, bar if limit is None else limit),
            (tuned, tuned_bar, tuned_limit),
        ):
            if other:
                kind = ", tuned" if other is tuned else ""
                assert ratios[other] >= least, (
                    f"{of}{kind}: {ratios[other]:.2f}; the limit is {least}, and the bar {wanted}"
                )

    return compare


def pytest_terminal_summary(terminalreporter, config) -> None:
    ratios = config.stash.get(RATIOS, [])
    if not ratios:
        return
    terminalreporter.section("ratios, each within one run; tuned: of a peer with the suite's layout and allocator")
    width = max(len(r["of"]) for r in ratios)
    for r in ratios:
        both = [f"{r['ratio']:7.2f}  ({bar_in_words(r)})" if "ratio" in r else ""]
        both += [f"tuned {r['tuned']:5.2f}  ({tuned_bar_in_words(r)})" if "tuned" in r else ""]
        terminalreporter.write_line(f"{r['of']:{width}}  {both[0]:33}{both[1]}".rstrip())

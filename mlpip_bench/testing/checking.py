"""What a check is, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mlpip_bench.inference.method import TaskKind
from mlpip_bench.testing.cases import KINDS, Case

Status = Literal["passed", "failed", "expected failure", "expected deviation", "not applicable", "not run"]
BAD: tuple[Status, ...] = ("failed", "not run")


@dataclass(frozen=True)
class CheckResult:
    """What came of one check of one method.

    Attributes:
        name: of the check.
        status: an expected failure is one that the method names in ``xfail_checks``; an expected deviation one that
            the check itself knows and names; not run is what cannot be, since ``interface`` fails.
        protects: what the check protects, one sentence.
        detail: what went wrong, or why it does not apply; empty where there is nothing to say.
    """

    name: str
    status: Status
    protects: str
    detail: str


@dataclass(frozen=True)
class Check:
    """A named check.

    Attributes:
        name: as used in ``xfail_checks``.
        protects: one sentence.
        kinds: the kinds of task that it can be made on.
        run: raises where the method does not pass.
    """

    name: str
    protects: str
    kinds: tuple[TaskKind, ...]
    run: Callable[[Case], None]


def check(*kinds: TaskKind) -> Callable[[Callable[[Case], None]], Check]:
    """Make a function the check of its name; its docstring is the sentence that is shown.

    Args:
        kinds: the kinds of task that it can be made on; none for all.
    """

    def made(run: Callable[[Case], None]) -> Check:
        return Check(run.__name__, run.__doc__ or "", kinds or KINDS, run)

    return made

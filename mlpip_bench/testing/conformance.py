"""Conformance suite: what every method must keep for its numbers to be comparable, as named checks.

``python -m mlpip_bench check NAME`` shows the results; a test suite calls :func:`assert_conforms`. Each
check runs on tiny made tasks of each kind that the method handles, in float64 and with parameters moved
off their initial values, where accidents such as a head of zeros hide nothing.
"""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from mlpip_bench.inference.method import Method, TaskKind
from mlpip_bench.nn.backbone import InputShape
from mlpip_bench.registry import method_faults
from mlpip_bench.testing.cases import Case, CheckFailedError, ExpectedDeviationError, NotApplicableError
from mlpip_bench.testing.checking import BAD, Check, CheckResult, Status, check
from mlpip_bench.testing.checks import predictions, training
from mlpip_bench.utils.errors import one_line, unknown_name
from mlpip_bench.utils.process_state import ProcessState


def check_method(
    plugin: type[Method[Any]],
    checks: Sequence[str] | None = None,
    *,
    kind: TaskKind | None = None,
    shape: InputShape | None = None,
) -> list[CheckResult]:
    """Run the conformance suite on a method; nothing that the method does raises here.

    Where a class fails ``interface``, no other check is run.

    Args:
        plugin: the class; it need not be registered.
        checks: names of :data:`CHECKS`; None for all.
        kind: the only kind of task to check it on; None for all that it handles.
        shape: of the inputs of a bench's backbone, or of images in reconstruction; None for tiny ones.

    Raises:
        UserError: a name that is not a check's.
    """
    names = tuple(CHECKS) if checks is None else tuple(checks)
    for name in names:
        if name not in CHECKS:
            raise unknown_name("check", name, CHECKS)
    handles = ("classification",) if faults_of(plugin) else (kind,) if kind else plugin.handles
    interface = _run(CHECKS["interface"], plugin, handles, shape)
    results = []
    for name in names:
        if name == "interface":
            results.append(interface)
        elif interface.status == "failed":
            protects = CHECKS[name].protects
            results.append(CheckResult(name, "not run", protects, "not run, since interface fails"))
        else:
            result = _run(CHECKS[name], plugin, handles, shape)
            elsewhere = handles != tuple(plugin.handles) and result.status != "failed"  # it may fail on other kinds
            results.append(result if elsewhere else _judged(result, plugin.xfail_checks.get(name)))
    return results


def assert_conforms(plugin: type[Method[Any]], checks: Sequence[str] | None = None) -> None:
    """For test suites: :func:`check_method`, and one AssertionError that lists all that failed."""
    names = None if checks is None else tuple(dict.fromkeys(("interface", *checks)))  # why others may not be run
    if lines := failure_lines(check_method(plugin, names)):
        raise AssertionError(f"{getattr(plugin, '__name__', plugin)} does not conform:\n" + "\n".join(lines))


def failure_lines(results: Sequence[CheckResult]) -> list[str]:
    """What failed or was not run, one line for each cause."""
    return [
        f"{result.name}: {result.detail}" + (f" (protects: {result.protects})" if result.protects else "")
        for result in merged(results)
        if result.status in BAD
    ]


def merged(results: Sequence[CheckResult]) -> list[CheckResult]:
    """The same results, with those of one cause as one: an error in ``amortize`` fails nearly every check."""
    causes: dict[object, list[CheckResult]] = {}
    for result in results:
        causes.setdefault((result.status, result.detail) if result.status in BAD else result.name, []).append(result)
    return [same[0] if len(same) == 1 else _as_one(same) for same in causes.values()]


def _as_one(same: Sequence[CheckResult]) -> CheckResult:
    name = ", ".join(result.name for result in same)
    if same[0].status == "not run":
        name = f"{len(same)} other checks"
    return dataclasses.replace(same[0], name=name, protects="")


def _run(
    check: Check, plugin: type[Method[Any]], handles: tuple[TaskKind, ...], shape: InputShape | None
) -> CheckResult:
    """The check on each kind of task that the method handles; the first failure is the result."""
    status: Status = "not applicable"
    notes = []
    for kind in handles:
        prefix = f"{kind}: " if len(handles) > 1 else ""
        if kind not in check.kinds:
            notes.append(f"{prefix}only for {', '.join(check.kinds)}")
            continue
        state = ProcessState()
        try:
            with torch.random.fork_rng(devices=[]):
                check.run(Case(plugin, kind, shape))
            status = "passed" if status == "not applicable" else status
        except ExpectedDeviationError as deviation:
            status = "expected deviation"
            notes.append(f"{prefix}{deviation}")
        except NotApplicableError as reason:
            notes.append(f"{prefix}{reason}")
        except CheckFailedError as failure:
            return CheckResult(check.name, "failed", check.protects, f"{prefix}{failure}")
        except (Exception, SystemExit, GeneratorExit) as error:  # whatever a plugin raises fails its check, no other
            return CheckResult(check.name, "failed", check.protects, f"{prefix}{_located(error, plugin)}")
        finally:
            state.set_back()  # which the check process_state finds
    return CheckResult(check.name, status, check.protects, "; ".join(notes))


def _located(error: BaseException, plugin: type) -> str:
    """The error in one line, with the plugin's own line that led to it."""
    file = getattr(sys.modules.get(plugin.__module__), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""
    return one_line(error) + where


def _judged(result: CheckResult, reason: str | None) -> CheckResult:
    """The result in the light of the method's ``xfail_checks``: what is named there must really fail."""
    if reason is None:
        return result
    if result.status == "failed":
        return dataclasses.replace(result, status="expected failure", detail=f"{reason} ({result.detail})")
    detail = f"xfail_checks names it ({reason}), but it is {result.status}; take it out of xfail_checks"
    return dataclasses.replace(result, status="failed", detail=detail)


def faults_of(plugin: type[Method[Any]]) -> list[str]:
    """What keeps a class from being checked, as ends of sentences."""
    faults = method_faults(plugin)
    if not faults:
        known = set(CHECKS) - {"interface"}
        faults = [str(unknown_name("check in xfail_checks", n, known)) for n in plugin.xfail_checks if n not in known]
    return faults


# -- the checks ------------------------------------------------------------------------------------------------------


@check()
def interface(case: Case) -> None:
    """The class is complete: abstract parts, reference, psi, task kinds, frozen settings, and usable presets."""
    if faults := faults_of(case.plugin):
        raise CheckFailedError("; ".join(faults))
    case.method()


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        found.name: found
        for found in (interface, *vars(predictions).values(), *vars(training).values())
        if isinstance(found, Check)
    }
)
"""The checks by name, in the order in which they are run."""

"""Whether a method of another package keeps what the comparison relies on: its records say so, and tables mark it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method, TaskKind
from mlpip_bench.nn.backbone import InputShape
from mlpip_bench.records.record import Record
from mlpip_bench.testing.checking import BAD
from mlpip_bench.testing.conformance import check_method


def with_checks(record: Record, trial: Trial) -> Record:
    """The record with what the conformance suite finds of its method; of the suite's own, tests hold them.

    Args:
        record: of the trial.
        trial: it says whether another package brought its method.
    """
    if f"method {trial.method}" not in trial.code:
        return record
    found = _found(trial.plugin, trial.family.kind, trial.backbone.input_shape)
    code = {**record.environment["code"], "checks": found}
    return dataclasses.replace(record, environment={**record.environment, "code": code})


@functools.cache
def _found(plugin: type[Method[Any]], kind: TaskKind, shape: InputShape) -> dict[str, list[str]]:
    """Names of the checks that fail, and of those that the method or a check declares not to be kept.

    Tiny tasks are made first, which is quick; a network that takes no such images is checked on the bench's own.
    """
    results = check_method(plugin, kind=kind)
    if any(result.status in BAD for result in results):
        results = check_method(plugin, kind=kind, shape=shape)
    return {
        "failed": [result.name for result in results if result.status in BAD],
        "declared": [r.name for r in results if r.status in ("expected failure", "expected deviation")],
    }

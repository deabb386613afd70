"""Steps: accuracy and NLL after each number of adaptation steps, for methods that infer psi by steps.

The condition ``steps`` is 0, 1, 2, 3, 5, 10, 20, 50, 100, 200 and 500, as far as they are below the setting
``test_steps``, and ``test_steps`` itself; in regression there is NLL alone. A diagnosis, not a choice: the
number of steps is a setting, and the best of several on the test tasks is nobody's result.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mlpip_bench.evaluation.metrics import ACCURACY, NLL, VALIDATION
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.inference.method import Method
from mlpip_bench.records.record import Scores

STEPS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500)


class Steps(EvalProtocol):
    """The trained model with 0, 1, 2, ... test steps, up to the number that it is otherwise tested with.

    A diagnosis, not a choice: the number of steps is a setting, and the best of several on the test
    tasks is nobody's result.
    """

    description = "accuracy and NLL as a function of adaptation steps; for methods with a setting test_steps"
    metrics = (ACCURACY, NLL)
    handles = ("classification", "regression")

    def applies(self, plugin: type[Method[Any]], settings: Any) -> bool:  # noqa: ARG002
        """Methods that adapt by steps have the setting ``test_steps``."""
        return hasattr(settings, "test_steps")

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One score a test task for each number of steps."""
        method, settings = evaluation.method, evaluation.method.settings
        metrics = VALIDATION[method.problem.kind]
        counts = sorted({*(steps for steps in STEPS if steps < settings.test_steps), settings.test_steps})
        found = evaluation.predict_each(
            f"steps {counts[0]} to {counts[-1]}", [dataclasses.replace(settings, test_steps=steps) for steps in counts]
        )
        return [
            scores
            for steps, predictions in zip(counts, found, strict=True)
            for scores in evaluation.scores(metrics, predictions, {"steps": steps})
        ]

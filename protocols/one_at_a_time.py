"""One at a time: accuracy and NLL with each query asked alone: what a method owes to the other queries of its task.

Scores have the condition ``asked one at a time``. Inductive methods score as they do with the queries
together. Transductive batch norm does not: with one query at a time MAML on Omniglot falls from 98.4 to 21.6
% (Bronskill et al. 2020, table 1). Several norms give the norm-mode table.
"""

from __future__ import annotations

from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.records.record import Scores


class OneAtATime(EvalProtocol):
    """Accuracy and NLL on the bench's fixed test tasks, one query at a time."""

    description = "accuracy and NLL with each query asked alone: what a method owes to seeing the others"
    metrics = (ACCURACY, NLL)

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One score a test task."""
        alone = evaluation.predict("one query at a time", one_at_a_time=True)
        return evaluation.scores(self.metrics, alone, {"asked": "one at a time"})

"""Context independence: are a class's weights the same in all tasks that it is part of (paper, appendix B.2)?

The paper shows the means of the inferred weights; the number is this suite's: the share of their variance
that lies within classes, 1 where a class's weights know nothing of the class, 0 where they are the same in
every task. For methods whose psi are a linear classifier's weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mlpip_bench.benches.images import FixedTasks
from mlpip_bench.evaluation.metrics import Metric
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.inference.method import Method
from mlpip_bench.records.record import Scores
from mlpip_bench.tasks.images import HeldOutStream

WITHIN_CLASS_SHARE = Metric("within_class_share", "fraction", "neither")
"""Variance of the weights' means within classes, over all tasks, as a share of their total variance.

R = sum W_t / sum V_t over tasks t, with W_t the squared distances of a task's weights from the means of their
classes, and V_t those from the mean of all. The means are estimated, which W has the factor n / (n - classes) for and
V the factor n / (n - 1), with n weights. A task's score is R + (W_t - R V_t) / mean V: the mean over tasks is R, and
the Student-t interval over tasks is the delta method's for a ratio of two sums.
"""


class ContextIndependence(EvalProtocol):
    """Weights of the classes in fifty fixed tasks."""

    description = "share of the variance of inferred class weights that lies within classes across tasks"
    metrics = (WITHIN_CLASS_SHARE,)
    families = (FixedTasks,)
    default = True

    def applies(self, plugin: type[Method[Any]], settings: Any) -> bool:  # noqa: ARG002
        """Methods whose psi are a linear classifier's weights."""
        return plugin.linear_classifier

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One score a task."""
        stream = evaluation.stream
        assert isinstance(stream, HeldOutStream)  # that of the context benches
        evaluation.method.eval()
        with torch.no_grad():
            q = evaluation.method.amortize(stream.batch(0, evaluation.tasks).support)
        weights = q.psi.mean[..., :-1].cpu().double()
        classes = stream.classes(0, evaluation.tasks)
        detail = {"weights": tuple(weights.flatten().tolist()), "classes": tuple(classes.flatten().double().tolist())}
        per_task = within_class_share(weights, classes)
        return [evaluation.labeled(WITHIN_CLASS_SHARE, per_task.tolist(), detail=detail)]


def within_class_share(weights: Tensor, classes: Tensor) -> Tensor:
    """Scores of :data:`WITHIN_CLASS_SHARE`, ``[task]``.

    Args:
        weights: ``[task, way, feature]``.
        classes: which class each is of, ``[task, way]``.
    """
    tasks, way = classes.shape
    flat, member = weights.flatten(0, 1), one_hot(classes.flatten()).to(weights.dtype)
    member = member[:, member.sum(0) > 0]
    means = (member.mT @ flat) / member.sum(0).unsqueeze(-1)
    n, groups = tasks * way, member.shape[1]
    within = (flat - member @ means).square().sum(-1).view(tasks, way).sum(-1) * n / (n - groups)
    total = (flat - flat.mean(0)).square().sum(-1).view(tasks, way).sum(-1) * n / (n - 1)
    share = within.sum() / total.sum()
    return share + (within - share * total) / total.mean()

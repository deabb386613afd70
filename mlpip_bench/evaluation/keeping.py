"""Predictions as they are kept next to a record."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from mlpip_bench.evaluation.predict import Predictions
from mlpip_bench.records import predictions as kept
from mlpip_bench.tasks.stream import OfClasses, OfShapes, Stream


def to_keep(predictions: Predictions, stream: Stream) -> kept.Predictions:
    """The predictions of all tasks as arrays without torch: of classes, else log-densities of targets alone.

    Args:
        predictions: of the first tasks of a stream.
        stream: which may say what classes they are of.

    Raises:
        ValueError: they are not log-probabilities, such as NaN; or tasks are of several ways.
    """
    if isinstance(stream, OfShapes):
        raise ValueError("kept predictions are arrays, of tasks of one way and shot; here each has its own")
    y = torch.cat([y for _, y in predictions])
    if y.is_floating_point():
        of_target = torch.cat([predictive.log_prob(y) for predictive, y in predictions])
        return kept.Predictions(of_target.cpu().numpy().astype("<f4"))
    log_probs = torch.cat([_log_probs(predictive) for predictive, _ in predictions])
    # By the probabilities, as accuracy has them: two that round to one number are a draw, which the first class wins.
    choices = torch.cat([predictive.probs.argmax(-1) for predictive, _ in predictions])  # type: ignore[attr-defined]
    arrays = (t.cpu().numpy() for t in (y, log_probs, choices))
    found = kept.of_classes(*(np.ascontiguousarray(array) for array in arrays))
    if not isinstance(stream, OfClasses):
        return found
    return dataclasses.replace(found, classes=stream.classes(0, len(y)).numpy().astype("<u4"))


def _log_probs(predictive: Distribution) -> Tensor:
    found: Tensor = predictive.logits if isinstance(predictive, Categorical) else predictive.probs.log()  # type: ignore[attr-defined]
    return found

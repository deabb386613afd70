"""View reconstruction: error of all views of an object, given some of them (paper, section 5.3, Table 2, Fig. 6).

The test tasks are the test objects, one each, and the mean predicted images of all 36 views are scored. The
paper averages over all of them, the given ones too; scores under the condition ``views unseen`` leave those
out. The SSIM of the paper's code takes pixels to range over 2 instead of 1: that is ``ssim_range_2``, the
only one that compares with the paper's.
"""

from __future__ import annotations

import base64
import io

import torch
from PIL import Image
from torch import Tensor

from mlpip_bench.evaluation.metrics import MSE, SSIM, SSIM_RANGE_2
from mlpip_bench.evaluation.predict import Predictions
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.inference.distributions import Delta
from mlpip_bench.records.record import Scores

SHOWN = 3
"""Test objects, the first ones, whose images are kept for the figure."""

EVERY = 3
"""Of the views that the figure shows: one every 30 degrees."""


class Reconstruction(EvalProtocol):
    """MSE and SSIM of the mean predicted images of the test objects."""

    description = "mean squared error and structural similarity of all views of an object, given some of them"
    metrics = (MSE, SSIM, SSIM_RANGE_2)
    handles = ("reconstruction",)
    default = True

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One score a test object, over all views and over those that were not given."""
        predictions = evaluation.predictions
        support = evaluation.stream.batch(0, evaluation.tasks).support
        query = evaluation.stream.batch(0, 1).query  # the same angles for every object
        given = (query.x[:, :, None] == support.x[:, None]).all(-1).any(-1)
        scores = evaluation.scores(self.metrics, predictions)
        scores += evaluation.scores(self.metrics, _unseen(predictions, given), {"views": "unseen"})
        images, truth = (torch.cat(parts)[:SHOWN, ::EVERY] for parts in zip(*_images(predictions), strict=True))
        detail = {"images": _png(images), "truth": _png(truth), "given": _png(support.y[:SHOWN])}
        mse = evaluation.labeled(MSE, scores[0].per_task, detail=detail)
        return [mse, *scores[1:]]


def _images(predictions: Predictions) -> list[tuple[Tensor, Tensor]]:
    return [(predictive.mean, y) for predictive, y in predictions]


def _unseen(predictions: Predictions, given: Tensor) -> Predictions:
    """The predictions without those of given views, of which every object has equally many."""
    masks = (~given).split([len(y) for _, y in predictions])
    found: Predictions = []
    for (images, y), unseen in zip(_images(predictions), masks, strict=True):
        kept = [t[unseen].unflatten(0, (len(y), -1)) for t in (images, y)]
        found.append((Delta(kept[0], event_dim=3), kept[1]))
    return found


def _png(images: Tensor) -> str:
    """A grid of gray images, a row an object, as a PNG file in base64."""
    objects, views, _, height, width = images.shape
    pixels = (images.clamp(0, 1) * 255).round().byte().cpu().permute(0, 3, 1, 4, 2)
    buffer = io.BytesIO()
    Image.fromarray(pixels.reshape(objects * height, views * width).numpy()).save(buffer, format="png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()

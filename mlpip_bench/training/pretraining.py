"""Pre-training of a backbone: classification of all training classes, by the loop that trains methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from mlpip_bench.evaluation.metrics import Metric
from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem, TrainingPlan
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.tasks.images import PoolStream
from mlpip_bench.tasks.minibatches import Augmentation, ImageBatches
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.training.checkpoints import State, TrainingState
from mlpip_bench.training.loop import train
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Step
from mlpip_bench.utils.seeding import seed_from

_SEED = 0
"""One network for the trials of all seeds."""
_BACKBONE = "backbone."


def images_of(training: Stream, bench: str) -> PoolStream:
    """The stream of training tasks, which says what images there are.

    Raises:
        UserError: its tasks are not made of images of classes.
    """
    if not isinstance(training, PoolStream):
        raise UserError(
            f"pre-training classifies images, or vectors, of classes; tasks of {bench} are not made of any. Use "
            "--pretrain none, and methods that need no pre-training."
        )
    return training


def pretrain(
    problem: Problem,
    settings: Pretraining,
    training: PoolStream,
    validation: Stream,
    *,
    validation_tasks: int,
    metrics: tuple[Metric, ...],
    checkpoint: Path,
    key: str,
    environment: Mapping[str, Any] | None = None,
    step: Step | None = None,
) -> TrainingState:
    """Train a backbone as a classifier, from the last checkpoint if there is one.

    Args:
        problem: says what the backbone is; its norm is the network's own.
        settings: how it is trained.
        training: its pool has the images.
        validation: tasks that are measured at the end, with nearest class means; they choose nothing.
        validation_tasks: how many.
        metrics: of them.
        checkpoint: file that is written as training goes on.
        key: hash of all that decides the network.
        environment: what the checkpoint is to say of the machine.
        step: called with the iterations done, the loss and the validation.

    Raises:
        TrialError: training stopped.
        UserError: the checkpoint is damaged, or cannot be written.
    """
    classifier, plan, images = classification(problem, settings, training, validation_tasks)
    lower = f"{settings.learning_rate / 10:g}"
    return train(
        classifier,
        plan,
        images,
        validation,
        metrics=metrics,
        seed=_SEED,
        checkpoint=checkpoint,
        key=key,
        environment=environment,
        step=step,
        advice=f"a lower rate of the pre-training helps (--pretrain classify,learning_rate={lower})",
    )


def classification(
    problem: Problem, settings: Pretraining, training: PoolStream, validation_tasks: int = 1
) -> tuple[Method[Delta], TrainingPlan, ImageBatches]:
    """What a pre-training trains, how, and on what; arguments as of :func:`pretrain`."""
    augmentation = Augmentation(settings.crop, settings.flip, settings.jitter)
    images = ImageBatches(training.pool, settings.batch_size, augmentation, "pretraining", _SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_from("pretraining", _SEED))
        classifier = _Classifier(problem, settings, images.way).to(training.device)
    return classifier, _plan(settings, validation_tasks), images


def backbone_state(state: TrainingState) -> State:
    """Parameters and buffers of the backbone at the end of its pre-training."""
    return {n.removeprefix(_BACKBONE): t for n, t in state.model.items() if n.startswith(_BACKBONE)}


def _plan(settings: Pretraining, validation_tasks: int) -> TrainingPlan:
    return TrainingPlan(
        iterations=settings.iterations,
        tasks_per_batch=1,
        train_queries=1,
        learning_rate=settings.learning_rate,
        validate_every=settings.iterations,
        validation_tasks=validation_tasks,
        optimizer=settings.optimizer,
        momentum=settings.momentum if settings.optimizer == "SGD" else 0.0,
        weight_decay=settings.weight_decay,
        schedule=settings.schedule,
        step_size=-(-settings.iterations // 3) if settings.schedule == "StepLR" else 0,
        gamma=settings.gamma,
    )


class _Classifier(Method[Delta]):
    """A backbone with a head over all training classes; on tasks, the nearest of the class means."""

    reference: ClassVar[str] = "none"
    psi: ClassVar[str] = "point mass at the class means"

    def __init__(self, problem: Problem, settings: Pretraining, classes: int) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.backbone.unfrozen.build(problem.norm)
        features = self.backbone.features
        self.head: nn.Module = (
            _Cosine(features, classes, settings.scale) if settings.head == "cosine" else nn.Linear(features, classes)
        )

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        features, statistics = self.backbone(support.x)
        return Posterior(Delta(support.class_means(features), event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        features, _ = self.backbone(query_x, q.norm_statistics)
        return Categorical(logits=-torch.cdist(features, q.psi.mean).square(), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        features, _ = self.backbone(batch.support.x)
        return nn.functional.cross_entropy(self.head(features).flatten(0, 1), batch.support.y.flatten())


class _Cosine(nn.Module):
    """Cosines between features and one weight vector a class, times a factor."""

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(classes, features), a=5**0.5))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * nn.functional.normalize(x, dim=-1) @ nn.functional.normalize(self.weight, dim=-1).mT

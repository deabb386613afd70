"""Meta-LSTM: gradient steps whose rates, and how much is kept of the weights, are gates of a learned LSTM.

psi: all parameters of the backbone and of a linear classifier, or of a linear output in regression.
q: a point mass at the last cell state of an LSTM whose cell are these parameters: psi <- f * psi - i * grad L(psi; D),
with L the mean cross-entropy of the support set, in nats; in regression its mean squared error. The gates i and f
of each coordinate come from its gradient, the loss, its value, and what they were in the step before. The first cell
state psi_0 is learned, as are the weights of the gates.
Reference: Ravi & Larochelle, ICLR 2017.
Objective: log-loss of the queries under psi: cross-entropy, or that of a Gaussian whose variance is learned. Gradients
and losses that the LSTM sees are constants to it, so that no second derivatives are taken, as in their paper.

As in their code there are two layers. The first is an LSTM of 20 units that all coordinates share; its inputs are
gradient and loss, each as (ln|v| / 10, sign v), or (-1, e^10 v) where it is tiny. The second one is psi, whose gates
carry their values before the sigmoid from step to step.

Differences from their paper:

- All of the support set is in each of 3 steps, at any shot. Theirs takes 12 at one shot, and at five shots 8 passes
  in small batches, whose order matters. The time of a step is that of the LSTM over all coordinates, and so is that
  of a training.
- The loss is a mean. Their code divides its gradient by the size of the batch once more.
- The gate i starts at 0.03, about three times their start: steps along the gradient of a mean loss, of which there are
  3 in place of 12, are as long together as the one of ``maml``, whose rate is 0.1. It stays between 0 and 1, as the
  gate f does, which starts at 0.99 as in their code.
- Support statistics are those of the run's mode of normalization. Theirs are the support set's in training, and
  running averages at test.
- The network is the run's backbone, the same for all methods; theirs has half its filters. Its head starts at zero,
  and test tasks with more classes than the training way start the further classes from the mean of the learned rows.
- The preset ``paper`` has 12 steps that start at 0.01, and shortens gradients of the training to their code's norm of
  0.25. The budget ``quick`` does not: in a trial of its first 60 iterations on Omniglot norms were 2 to 5.

Differences from the published figure:

- It was published for miniImageNet only, 5-way, after 75,000 training tasks at one shot. Its images are not at hand
  here, so that no row on these benches has a counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.inference.coordinate_lstm import CoordinateLSTM
from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.gradient_steps import OF_CURVES, AdaptedNetwork, StepCounts
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class MetaLSTMSettings(StepCounts):
    """Settings of the Meta-LSTM.

    Attributes:
        train_steps, test_steps: inner steps while training, at least 2, and at evaluation.
        inner_rate: where the gate i starts, the rate for a mean loss.
        kept: where the gate f starts, the share of psi that a step keeps.
        hidden: units of the LSTM that all coordinates share.
        second_order: differentiate through gradients and losses, in many times the memory and time.
    """

    train_steps: int = 3
    test_steps: int = 3
    inner_rate: float = 0.03
    kept: float = 0.99
    hidden: int = 20
    second_order: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_steps < 2:
            raise ValueError(
                "train_steps must be at least 2, since what goes from a step to the next is not trained in one; "
                f"got {self.train_steps}"
            )
        for name in ("inner_rate", "kept"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is where a sigmoid starts, between 0 and 1; got {getattr(self, name)}")
        if self.hidden < 1:
            raise ValueError(f"hidden must be positive; got {self.hidden}")


class MetaLSTM(Method[Delta]):
    """An LSTM whose cell are the parameters of a network."""

    reference = "Ravi & Larochelle 2017, Optimization as a Model for Few-Shot Learning (ICLR)"
    psi = "point mass at all network parameters after a few steps of a learned optimizer"
    handles = ("classification", "regression")
    Settings = MetaLSTMSettings
    settings: MetaLSTMSettings
    search_space: ClassVar = {**Method.search_space, "inner_rate": LogUniform(0.01, 0.5)}
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "iterations": 75_000, "tasks_per_batch": 1, "clip_norm": 0.25},
            "omni": {"train_steps": 12, "test_steps": 12, "inner_rate": 0.01},
            "mini": {"train_steps": 12, "test_steps": 12, "inner_rate": 0.01},
            "sinusoid": OF_CURVES,
            "gp": OF_CURVES,
        },
        "quick": {"sinusoid": OF_CURVES, "gp": OF_CURVES},
    }
    xfail_checks: ClassVar = {
        "class_relabeling": "every class starts from its own learned row of the head",
        "gradient": "the gradient leaves the second derivatives out, by design",
    }

    def __init__(self, problem: Problem, settings: MetaLSTMSettings) -> None:
        super().__init__(problem, settings)
        self.network = AdaptedNetwork(problem)
        self.optimizer = CoordinateLSTM(settings.hidden, settings.inner_rate, settings.kept)
        self.likelihood = Likelihood(problem)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """The cell state after steps on each task's support loss, and its support statistics."""
        return self.network.in_groups(support, lambda part, _: self._adapted(part))

    def _adapted(self, support: Labeled) -> tuple[Mapping[str, Tensor], Statistics]:
        initial = self.network.initial(support.tasks, support.way)
        moving = {name: initial[name] for name in self.network.moving}

        def parameters(psi: Tensor) -> dict[str, Tensor]:
            parts = psi.split([p[0].numel() for p in moving.values()], -1)
            return {**initial, **{n: part.view(p.shape) for (n, p), part in zip(moving.items(), parts, strict=True)}}

        psi = self.optimizer(
            self.network.flat(moving),
            lambda psi: self.network.losses(parameters(psi), support)[0],
            self.settings.train_steps if self.training else self.settings.test_steps,
            create_graph=self.training and torch.is_grad_enabled(),
            second_order=self.settings.second_order,
        )
        adapted = parameters(psi)
        return adapted, self.network.losses(adapted, support)[1]

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax, or Gaussian, of each task's own adapted network."""
        return self.likelihood.predictive(self.network.outputs(q, query_x))

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the queries under the adapted parameters."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)

"""LLAMA: MAML read as hierarchical Bayes, with the curvature of Laplace's approximation in its objective.

psi: all parameters of the backbone and of a linear classifier, or of a linear output in regression.
q: a point mass after gradient steps from a learned psi_0, as in ``maml`` (paper, Eq. 6). For a linear model these steps
find the MAP estimate under a Gaussian prior around psi_0 that they imply: it is the wider, the more steps there are.
Reference: Grant, Finn, Levine, Darrell & Griffiths, ICLR 2018.
Objective: MAML's log-loss of the queries, plus ``logdet_weight`` times 1/2 log det H, which is what Laplace's
approximation of the marginal likelihood adds. H is the curvature of the queries' loss at psi, as it would be of as many
points as the support set has, plus tau I.

Differences from their paper:

- Predictions are those of the point psi, as theirs are. N(psi, H^-1) is an approximate posterior that they leave to
  later work, and so does this.
- Their algorithm leaves log p(psi | psi_0) out of the objective. So does this.
- Their curvature is that of the whole network by K-FAC, which is ``curvature=kfac``. By default it is that of the
  linear head alone, where it is exact and takes little time.
- Their weight, 1e-6, was found by cross-validation for the whole network. For the head, which has a hundredth of the
  parameters, it would leave MAML's loss to some hundred-thousandths of a nat, so the default is 1e-4. The gradient of
  either is 0.3 to 1 percent of that of the log-loss, early in training on made images. The preset ``paper`` has their
  curvature and their weight.
- They do not say whether H is a sum or a mean, nor what makes it invertible. Here the mean over queries, which does not
  depend on how many there are, is multiplied by the number of support points; tau is the precision of a Gaussian prior.
- Nor do they say whose labels the Fisher information of K-FAC has, nor how it is damped. Here they are those that the
  network expects, by random signs in the place of draws, so that this loss has noise, the same for all tasks. tau is
  shared among the factors as Martens & Grosse (2015) do. Support statistics of the normalization are taken as given.
- In ``maml`` are the differences of network, inner loop and regression.

Differences from the published figure:

- It was published on miniImageNet alone: 5-way 1-shot, four convolutional blocks, 60,000 iterations. It has no
  counterpart on these benches.
- Its lead on MAML there is less than half of either's confidence interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.inference.curvature import (
    has_kronecker_factors,
    head_log_det,
    network_log_det,
    output_root,
    watched,
)
from mlpip_bench.inference.distributions import Delta, linear_outputs
from mlpip_bench.inference.gradient_steps import OF_CURVES, AdaptedNetwork, StepSettings
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.errors import UserError

Curvature = Literal["head", "kfac"]


@dataclass(frozen=True)
class LLAMASettings(StepSettings):
    """Settings of LLAMA, beyond those of gradient steps.

    Attributes:
        curvature: ``head``, the exact one of the linear head; or ``kfac``, that of all convolutions and linear layers.
        logdet_weight: of 1/2 log det H; 0 is MAML. That of their paper, for ``kfac``, is 1e-6.
        tau: precision of the prior, which is added to the curvature.
    """

    curvature: Curvature = "head"
    logdet_weight: float = 1e-4
    tau: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.curvature not in get_args(Curvature):
            raise ValueError(f"curvature must be one of {', '.join(get_args(Curvature))}; got {self.curvature!r}")
        if not 0 <= self.logdet_weight < math.inf:
            raise ValueError(f"logdet_weight must be at least 0 and finite; got {self.logdet_weight}")
        if not 0 < self.tau < math.inf:
            raise ValueError(f"tau must be positive and finite; got {self.tau}")


class LLAMA(Method[Delta]):
    """MAML that also looks for adapted parameters around which the loss is flat."""

    reference = "Grant et al. 2018, Recasting Gradient-Based Meta-Learning as Hierarchical Bayes (ICLR)"
    psi = "point mass at all network parameters after a few gradient steps"
    handles = ("classification", "regression")
    Settings = LLAMASettings
    settings: LLAMASettings
    search_space: ClassVar = {
        **Method.search_space,
        "inner_rate": LogUniform(0.01, 1.0),
        "logdet_weight": LogUniform(1e-6, 1e-1),
    }
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "iterations": 60_000, "curvature": "kfac", "logdet_weight": 1e-6},
            "mini": {"tasks_per_batch": 4, "inner_rate": 0.05, "train_steps": 5, "test_steps": 10},
            "sinusoid": {"iterations": 70_000, **OF_CURVES},
            "gp": {"iterations": 50_000, **OF_CURVES},
        },
        "quick": {"sinusoid": OF_CURVES, "gp": OF_CURVES},
    }
    xfail_checks: ClassVar = {"class_relabeling": "every class starts from its own learned row of the head"}

    def __init__(self, problem: Problem, settings: LLAMASettings) -> None:
        super().__init__(problem, settings)
        self.network = AdaptedNetwork(problem)
        self.likelihood = Likelihood(problem)

    @classmethod
    def check(cls, problem: Problem, settings: LLAMASettings) -> None:
        """Refuse K-FAC of a network whose layers cannot be watched."""
        if settings.curvature == "kfac" and not has_kronecker_factors(problem):
            raise UserError(
                "curvature kfac needs a backbone made of the layers Convolution and Linear of mlpip_bench.nn.layers; "
                f"{problem.backbone.name} has others. Use curvature=head, which takes any, or a backbone such as conv4."
            )

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """psi* after gradient steps on each task's support loss (Eq. 6), and its support statistics."""
        return self.network.adapt(support, self.settings.rates(training=self.training))

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax, or Gaussian, of each task's own adapted network."""
        return self.likelihood.predictive(self.network.outputs(q, query_x))

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the queries and the weighted curvature, differentiated through the steps."""
        q, weight = self.amortize(batch.support), self.settings.logdet_weight
        if not weight:
            return mlpip_loss(self.predictive(q, batch.query.x), batch.query)
        predictive, log_det = self.with_curvature(q, batch.query.x, batch.support.y.shape[1])
        return mlpip_loss(predictive, batch.query) + weight / 2 * log_det.mean()

    def with_curvature(self, q: Posterior[Delta], query_x: Tensor, points: int) -> tuple[Distribution, Tensor]:
        """The predictive, and log det H of each task, from one pass of the queries.

        Args:
            q: of the support sets.
            query_x: of all queries.
            points: how many the curvature is to be of.
        """
        settings = self.settings
        if settings.curvature == "head":
            features = self.network.outputs(q, query_x, features=True)
            parameters = self.network.unflatten(q.psi.mean)
            rows = torch.cat([parameters["head.weight"], parameters["head.bias"].unsqueeze(-1)], -1)
            predictive = self.likelihood.predictive(linear_outputs(features, rows))
            return predictive, head_log_det(features, output_root(predictive), points, settings.tau)
        if not q.psi.mean.requires_grad:
            q = Posterior(Delta(q.psi.mean.detach().requires_grad_(), event_dim=1), q.norm_statistics)
        with torch.enable_grad(), watched(self.network) as layers:
            outputs = self.network.outputs(q, query_x)
            predictive = self.likelihood.predictive(outputs)
            root = output_root(predictive)
            return predictive, network_log_det(layers, outputs, root, points, settings.tau)

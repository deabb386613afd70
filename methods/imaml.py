"""iMAML: MAML whose steps are held near psi_0, with the gradient of the point that they approach.

psi: all parameters of the backbone and of a linear classifier, or of a linear output in regression.
q: a point mass near the minimum of L(psi; D) + proximal / 2 |psi - psi_0|^2, after gradient steps from a learned psi_0;
L is the mean loss of the support set, cross-entropy in nats or squared error.
Reference: Rajeswaran, Finn, Kakade & Levine, NeurIPS 2019.
Objective: log-loss of the queries under psi. Its gradient g in psi reaches psi_0 as (I + H / proximal)^-1 g, with H the
Hessian of L at psi: that of the minimum, by the implicit function theorem. A few steps of conjugate gradients solve for
it, with products H v by automatic differentiation. What a step of descent computed is freed at once: the memory of a
training step does not grow with their number, as MAML's does. Statistics of normalization are those of psi, and g goes
through them.

The gradient is that of a minimum, which a few steps do not reach, so that it is not the gradient of the loss: it takes
steep directions to have forgotten psi_0 as far as at the minimum. Flat ones, along which psi stays where it started,
are right at any number of steps. With many, on a network without kinks, the two agree to rounding; with ReLU and max
pooling the minimum may be at a kink, where descent goes back and forth and the two stay some percent from each other.
Conjugate gradients that stop early leave out curvature that spreads over many directions; without any step the gradient
is that of first-order MAML. Where H has an eigenvalue below -proximal there is no minimum, and the solution ends before
the first direction that shows it.

Differences from their paper:

- ``proximal`` and rate are stated for a mean loss; 2.0 is of their experiments on Omniglot. For a sum over n support
  points the same minimum has n times the weight.
- 16 steps of descent, at test as in training, and 5 of conjugate gradients, are theirs on Omniglot (at 20-way they take
  25, on miniImageNet 10). Fewer are no way to save time: with 5 steps, of which those that overshoot are lost, descent
  ends short of the minimum also along steep directions, which the gradient takes psi_0 to be forgotten in. psi_0 then
  drifts along them, and training on Omniglot diverges after some hundred iterations.
- A step that raises a task's objective is not taken, and its further steps are half as long; theirs have one length.
  The path has no derivative, so that nothing in training keeps descent stable, as in MAML: with 256 features the
  largest eigenvalue of H grows until steps of one length diverge, and training with them.
- Descent is plain; their Hessian-free variant, which takes Newton steps, is left out.
- The network is the run's backbone, head and normalization as in ``maml``, with its 256 features.
- In regression the outer loss is a log-loss with one variance for all tasks, which it reaches directly.
- Test tasks with more classes than the training way start the further classes from the mean of the learned rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.gradient_steps import OF_CURVES, AdaptedNetwork, StepSettings
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class IMAMLSettings(StepSettings):
    """Settings of iMAML, beyond those of gradient steps.

    Attributes:
        train_steps: inner gradient steps in training.
        test_steps: inner gradient steps at evaluation.
        inner_rate: rate of a step for a mean loss, as in ``maml``; halved for a task whose objective a step raises.
        proximal: weight of half the squared distance from psi_0, for a mean loss.
        cg_steps: of conjugate gradients, for the gradient in psi_0; 0 leaves the second derivatives out.
    """

    train_steps: int = 16
    test_steps: int = 16
    inner_rate: float | tuple[float, ...] = 0.05
    proximal: float = 2.0
    cg_steps: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.proximal < math.inf:
            raise ValueError(f"proximal must be positive and finite; got {self.proximal}")
        if (product := max(self._rates) * self.proximal) >= 2:
            raise ValueError(
                f"inner_rate times proximal must be below 2, or steps on a flat loss diverge; got {product:g}"
            )
        if self.cg_steps < 0:
            raise ValueError(f"cg_steps cannot be negative; got {self.cg_steps}")


class IMAML(Method[Delta]):
    """Gradient descent held near a meta-learned psi_0, which has the gradient of the minimum."""

    reference = "Rajeswaran et al. 2019, Meta-Learning with Implicit Gradients (NeurIPS)"
    psi = "point mass at all network parameters near the minimum of a loss that holds them to psi_0"
    handles = ("classification", "regression")
    Settings = IMAMLSettings
    settings: IMAMLSettings
    search_space: ClassVar = {
        **Method.search_space,
        "inner_rate": LogUniform(0.01, 0.3),
        "proximal": LogUniform(0.2, 5.0),
    }
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "iterations": 60_000},
            "omni5w1s": {"tasks_per_batch": 32},
            "omni5w5s": {"tasks_per_batch": 32},
            "omni20w1s": {"tasks_per_batch": 16, "train_steps": 25, "test_steps": 25},
            "omni20w5s": {"tasks_per_batch": 16, "train_steps": 25, "test_steps": 25},
            "mini": {"tasks_per_batch": 4, "proximal": 0.5, "train_steps": 10, "test_steps": 10},
            "sinusoid": {"iterations": 70_000, **OF_CURVES},
            "gp": {"iterations": 50_000, **OF_CURVES},
        },
        "quick": {"sinusoid": OF_CURVES, "gp": OF_CURVES},
    }
    xfail_checks: ClassVar = {
        "class_relabeling": "every class starts from its own learned row of the head",
        "gradient": "it is that of the minimum, which a few steps do not reach",
    }

    def __init__(self, problem: Problem, settings: IMAMLSettings) -> None:
        super().__init__(problem, settings)
        self.network = AdaptedNetwork(problem)
        self.likelihood = Likelihood(problem)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Where steps on each task's support loss and distance from psi_0 lead, and the support statistics there."""
        return self.network.in_groups(support, self._adapted)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax, or Gaussian, of each task's own adapted network."""
        return self.likelihood.predictive(self.network.outputs(q, query_x))

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the queries under the adapted parameters, with the implicit gradient in psi_0."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)

    def _adapted(self, support: Labeled, _tasks: slice) -> tuple[Mapping[str, Tensor], Statistics]:
        network, settings = self.network, self.settings
        start = network.initial(support.tasks, support.way)
        frozen = {name: start[name] for name in start.keys() - set(network.moving)}
        psi_0 = network.flat(start)
        origin = psi_0.detach()

        def parameters(psi: Tensor) -> dict[str, Tensor]:
            return network.unflatten(psi) | frozen

        def slope(psi: Tensor, *, create_graph: bool = False) -> tuple[Tensor, Tensor, Tensor]:
            """A point at psi, each task's support loss there, and its gradient."""
            with torch.enable_grad():
                point = psi.detach().requires_grad_()
                losses, _ = network.losses(parameters(point), support)
                (gradient,) = torch.autograd.grad(losses.sum(), point, create_graph=create_graph)
            return point, losses.detach(), gradient

        def objective(psi: Tensor) -> tuple[Tensor, Tensor]:
            """What descent makes small for each task, and its gradient."""
            _, losses, gradient = slope(psi)
            away = psi - origin
            value = losses + settings.proximal / 2 * away.square().sum(-1)
            return value.unsqueeze(-1), gradient + settings.proximal * away

        psi, share = origin, origin.new_ones(support.tasks, 1)
        value, gradient = objective(psi)
        for rate in settings.rates(training=self.training):
            tried = psi - share * rate * gradient
            found, at_tried = objective(tried)
            lower = found <= value  # of each task; not where it is not a number
            psi, value = torch.where(lower, tried, psi), torch.where(lower, found, value)
            gradient, share = torch.where(lower, at_tried, gradient), torch.where(lower, share, share / 2)
        reached = psi

        def implicit(gradient: Tensor) -> Tensor:
            point, _, of_support = slope(reached, create_graph=True)

            def product(v: Tensor) -> Tensor:
                (curved,) = torch.autograd.grad(of_support, point, v, retain_graph=True)
                return v + curved / settings.proximal

            return conjugate_gradients(product, gradient, settings.cg_steps)

        if self.training and torch.is_grad_enabled():
            psi = reached + (psi_0 - origin)  # of the value reached, and of derivative 1 before the hook
            psi.register_hook(implicit)
        _, statistics = network.losses(parameters(psi), support)
        return parameters(psi), statistics


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], b: Float[Tensor, "task psi"], steps: int
) -> Float[Tensor, "task psi"]:
    """Each task's A^-1 b after so many steps from 0, for symmetric A.

    A task's steps end before the first direction d of d^T A d <= 0; where that is b itself, or none is taken, it is b.
    They end as well where the residual is down to rounding, of which more steps would make directions.
    """
    solution, residual, direction = torch.zeros_like(b), b, b
    squared = b.square().sum(-1, keepdim=True)
    least = torch.finfo(b.dtype).eps ** 2 * squared
    going = squared > 0
    for _ in range(steps):
        image = product(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        going = going & (curvature > 0) & (squared > least)
        size = torch.where(going, squared / curvature, 0.0)  # without a branch, which a CUDA graph cannot have
        solution, residual = solution + size * direction, residual - size * image
        before, squared = squared, residual.square().sum(-1, keepdim=True)
        direction = residual + torch.where(going, squared / before, 0.0) * direction
    return torch.where((solution == 0).all(-1, keepdim=True), b, solution)

"""ABML: a Gaussian over all weights, by a few steps of Bayes by backprop from a prior that is learned.

psi: all parameters of the backbone and of a linear classifier, or of a linear output in regression.
q: N(mu, diag(sigma^2)) after gradient steps in mu and log sigma from the learned prior p(psi | theta) = N(mu_0,
diag(sigma_0^2)), on the support set's mean loss under reparameterized draws + kl_weight KL[q || p]; kept as draws.
Reference: Ravi & Beatson, ICLR 2019; the steps are Bayes by backprop, Blundell et al., ICML 2015.
Objective: the mean log-loss of the queries under draws of q + kl_weight KL[q || p], differentiated through the steps.
It is their bound's mean of logs, and not ML-PIP's log of a mean: its gradient is unbiased with however few draws. With
the one draw of the default the two are the same.

Differences from their paper:

- The KL has a weight, in the steps and in the objective. In nats per point the bound has one over the number of points;
  that of ours is 1e-6 by default, as re-implementations have it. In some 1e5 coordinates the KL rules everything or
  nothing: a step that moves psi by a length of 0.3 is (0.3 / sigma_0)^2 / 2, or 130 nats at sigma_0 = exp(-4), where
  all that a task can gain is log 5 a point. With a weight of 0.01 a small network stays at chance for hundreds of
  iterations. A first step begins where the KL is flat: with one step, it is in the objective alone.
- There is no hyper-prior over mu_0 and sigma_0, which theirs has: they are point estimates.
- The likelihood of the objective has the queries alone, as that of other methods here, and not the support set.
- A draw is the same for all tasks of a batch and all images of a task. There are estimators with less variance, which
  draw anew for each image (local reparameterization, Flipout).
- At evaluation the draws are fixed, in all steps and for all queries, and in pairs of opposite points. A batch
  normalization has the statistics of each draw.
- Network, head and rates are as in ``maml``; one rate serves mu and log sigma. In regression the loss of a step is the
  squared error, and that of the queries has a variance that is learned.
- Parameters that are frozen are points.

Differences from the published figure:

- It was published on miniImageNet and CIFAR-100 only, as the accuracy of 5-way tasks of one and five shots, by a
  network and a budget of its own. On Omniglot there is none, and none of its figures has a counterpart here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from mlpip_bench.inference import particles
from mlpip_bench.inference.distributions import MonteCarloMixture
from mlpip_bench.inference.gradient_steps import OF_CURVES, AdaptedNetwork, StepSettings
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.particles import Particles
from mlpip_bench.inference.search import LogUniform, OneOf
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.tasks.batch import Labeled, TaskBatch

_LEAST, _MOST = -20.0, 5.0
"""Of log sigma_0: what keeps the KL finite in float32, whatever training does."""


@dataclass(frozen=True)
class ABMLSettings(StepSettings):
    """Settings of ABML, beyond those of gradient steps.

    Attributes:
        samples: draws of q in each step and in the objective while training; a second one doubles the cost, and was not
            better in short trainings.
        eval_samples: the same at evaluation, where they are also those of the predictive; 1 is the mean of q.
        kl_weight: of KL[q || p], against the mean loss of a point.
        initial_log_std: log sigma_0 of each coordinate at the start of training, from -20 to 0. With -20 and a
            ``kl_weight`` of 0 it is MAML.
        first_order: leave the second derivatives out.
    """

    samples: int = 1
    eval_samples: int = 10
    kl_weight: float = 1e-6
    initial_log_std: float = -4.0
    first_order: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.samples, self.eval_samples) < 1:
            raise ValueError(f"samples and eval_samples must be at least 1; got {self.samples}, {self.eval_samples}")
        if not 0 <= self.kl_weight < math.inf:
            raise ValueError(f"kl_weight must be finite and not negative; got {self.kl_weight}")
        particles.check_initial_log_std(self.initial_log_std)


class Gaussian(NamedTuple):
    """A factorized Gaussian over the parameters that adapt, which have a leading task dimension."""

    mean: Mapping[str, Tensor]
    log_std: Mapping[str, Tensor]

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Gaussian:
        """With a function of each tensor in its place."""
        return Gaussian(*({name: function(t) for name, t in part.items()} for part in self))

    def stepped(self, objective: Tensor, rate: float, *, create_graph: bool) -> Gaussian:
        """After a gradient step in means and log standard deviations."""
        gradients = iter(
            torch.autograd.grad(objective, [t for part in self for t in part.values()], create_graph=create_graph)
        )
        return Gaussian(*({name: t - rate * next(gradients) for name, t in part.items()} for part in self))

    def draws(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As many networks of each task as the noise has, in the place of tasks."""
        return {
            name: particles.folded(mean.unsqueeze(1) + self.log_std[name].exp().unsqueeze(1) * noise[name])
            for name, mean in self.mean.items()
        }

    def kl(self, prior: Gaussian) -> Tensor:
        """KL[self || prior] of each task; the form that is exactly 0 where they are the same."""
        each = []
        for name, mean in self.mean.items():
            log_ratio = self.log_std[name] - prior.log_std[name]
            distance = (mean - prior.mean[name]) * (-prior.log_std[name]).exp()
            twice = torch.expm1(2 * log_ratio) - 2 * log_ratio + distance.square()
            each.append(twice.reshape(len(twice), -1).sum(1) / 2)
        return torch.stack(each).sum(0)


class ABML(Method[Particles]):
    """Bayes by backprop in all weights, from a prior that is learned."""

    reference = "Ravi & Beatson 2019, Amortized Bayesian Meta-Learning (ICLR)"
    psi = "draws of a Gaussian over all network parameters, fitted by a few gradient steps"
    handles = ("classification", "regression")
    Settings = ABMLSettings
    settings: ABMLSettings
    search_space: ClassVar = {
        **Method.search_space,
        "inner_rate": LogUniform(0.01, 1.0),
        "kl_weight": LogUniform(1e-8, 1e-3),
        "initial_log_std": OneOf((-4.0, -3.0, -5.0, -6.0)),
    }
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "iterations": 60_000},
            "mini": {"tasks_per_batch": 4, "inner_rate": 0.05, "train_steps": 5, "test_steps": 10},
            "sinusoid": {"iterations": 70_000, **OF_CURVES},
            "gp": {"iterations": 50_000, **OF_CURVES},
        },
        "quick": {"sinusoid": OF_CURVES, "gp": OF_CURVES},
    }
    xfail_checks: ClassVar = {"class_relabeling": "every class starts from its own learned row of the head"}

    def __init__(self, problem: Problem, settings: ABMLSettings) -> None:
        super().__init__(problem, settings)
        self.network = AdaptedNetwork(problem)  # its own parameters are mu_0
        self.likelihood = Likelihood(problem)
        self.log_std = nn.ParameterList(
            nn.Parameter(torch.full_like(p, settings.initial_log_std), requires_grad=p.requires_grad)
            for p in self.network.parameters()
        )

    def _prior(self, tasks: int, way: int) -> Gaussian:
        """p(psi | theta) of what adapts, for each task."""
        network = self.network
        names = [name for name, _ in network.named_parameters()]
        log_std = network.for_way(dict(zip(names, self.log_std, strict=True)), way)
        limited = {name: log_std[name].clamp(_LEAST, _MOST) for name in network.moving}
        mean = network.initial(tasks, way)
        return Gaussian(
            {name: mean[name] for name in limited}, {name: s.expand(tasks, *s.shape) for name, s in limited.items()}
        )

    def _inferred(self, support: Labeled) -> tuple[Posterior[Particles], Tensor]:
        """Draws of q, each with its own support statistics, and KL[q || p] of each task."""
        settings, network, way = self.settings, self.network, support.way
        samples = settings.samples if self.training else settings.eval_samples
        rates = settings.rates(training=self.training)
        keep_graph = self.training and torch.is_grad_enabled()
        whole = network.flat(network.initial(1, way))
        noise = [  # of all groups of tasks: their size must not count
            network.unflatten(particles.noise(samples, whole.shape[1], fixed=not self.training, like=whole))
            for _ in range(len(rates) + 1)
        ]
        divergences: list[Tensor] = []

        def of_group(part: Labeled, _: slice) -> tuple[Mapping[str, Tensor], Statistics]:
            data, prior = particles.repeated(part, samples), self._prior(part.tasks, way)
            others = network.initial(data.tasks, way)  # of which frozen ones stay
            if not keep_graph:
                prior = prior.mapped(lambda t: t.detach().requires_grad_())
            q = prior
            with torch.enable_grad():
                for rate, drawn in zip(rates, noise[:-1], strict=True):
                    losses, _statistics = network.losses(others | q.draws(drawn), data)
                    objective = losses.sum() / samples + settings.kl_weight * q.kl(prior).sum()
                    q = q.stepped(objective, rate, create_graph=keep_graph and not settings.first_order)
            if not keep_graph:
                prior, q = prior.mapped(Tensor.detach), q.mapped(Tensor.detach)
            psi = others | q.draws(noise[-1])
            divergences.append(q.kl(prior))
            return psi, network.losses(psi, data)[1]

        found = network.in_groups(support, of_group, networks=samples)
        psi = Particles(particles.unfolded(found.psi.mean, samples))
        return Posterior(psi, found.norm_statistics), torch.cat(divergences)

    def amortize(self, support: Labeled) -> Posterior[Particles]:
        """Draws of q after the steps on each task's support set."""
        return self._inferred(support)[0]

    def predictive(self, q: Posterior[Particles], query_x: Tensor) -> MonteCarloMixture:
        """Mean over the draws of the softmax, or Gaussian, of each one's network."""
        return particles.mixture(self.likelihood, particles.network_outputs(self.network, q, query_x), q.psi.count)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Mean log-loss of the queries under the draws, and the weighted KL, differentiated through the steps."""
        q, divergences = self._inferred(batch.support)
        components: Distribution = self.predictive(q, batch.query.x).components
        log_likelihood: Tensor = components.log_prob(batch.query.y)
        return self.settings.kl_weight * divergences.mean() - log_likelihood.mean()

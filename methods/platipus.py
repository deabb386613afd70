"""PLATIPUS (probabilistic MAML): gradient steps from an initialization that is itself uncertain.

psi: all parameters of the backbone and of a linear classifier, or of a linear output in regression.
q: what gradient steps on the support set D make of a Gaussian over their start theta, known by its samples alone:
p(theta | D) = N(mu - gamma_p grad L(mu; D), sigma^2), with L the mean cross-entropy, or squared error. Learned are mu,
gamma_p, and sigma for each coordinate.
Reference: Finn, Xu & Levine, NeurIPS 2018 (training: their Algorithm 1; prediction: their Algorithm 2).
Objective: a variational bound. In training theta is drawn from q(theta | D') = N(mu - gamma_q grad L(mu; D'), v_q),
with D' the queries and their labels, and then adapted to D. The loss is the log-loss of the queries, a mean over draws
(of logs), plus ``kl_weight`` times KL[q(theta | D') || p(theta | D)].

The weight of the KL: the loss is a mean over queries, and so the bound's own weight is one over their number. But theta
has 10^5 coordinates. Where the standard deviations of q and p differ by a factor of 1.1, the KL is about 1,000 nats,
against about one for each query: at the bound's own weight it rules everything, and q becomes p. At the default, 1e-6,
those 1,000 nats are 0.001, and training is that of MAML from a noisy start. sigma and gamma_p have no part in the
log-loss and are learned by the KL alone. Adam takes out the scale of their gradients, so they follow v_q and gamma_q at
any weight but 0, where they stay as they are.

Differences from their paper:

- The paper leaves most numbers open. Those of the settings are choices of this suite, as is that the KL is in nats of a
  task.
- p and q start with the same standard deviation, ``initial_log_std``, in all coordinates.
- mu starts as ``maml`` does, the head at zero. Network, inner steps and further classes at test are as in ``maml``; the
  log standard deviations of further classes start from the mean of the learned rows, too.
- Each gradient at mu is taken with the normalization statistics of its own data, D or D'.
- All tasks of a batch have the same noise, drawn anew for each loss. At evaluation it is fixed, in pairs of opposite
  points.
- In regression the log-loss has one learned variance for all tasks, as in ``maml``.

Differences from the published figure:

- It was published for miniImageNet alone, at 5-way 1-shot; there is no counterpart on these benches.
- Its protocol was that of MAML, with 32 filters in each of four blocks. How many samples a prediction had is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from mlpip_bench.inference import particles
from mlpip_bench.inference.distributions import MonteCarloMixture
from mlpip_bench.inference.gradient_steps import OF_CURVES, AdaptedNetwork, StepSettings
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.particles import Particles
from mlpip_bench.inference.search import LogUniform, OneOf
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class PLATIPUSSettings(StepSettings):
    """Settings of PLATIPUS, beyond those of gradient steps.

    Attributes:
        samples: of the start, in training. Each costs what MAML does, so they are few.
        eval_samples: of the start, at evaluation; 1 is the mean of p(theta | D).
        kl_weight: of the KL, in nats a task, against the mean log-loss of a query; the bound's own is one over the
            number of queries.
        mean_rate: where the learned rates of the steps that move the means, gamma_p and gamma_q, start.
        initial_log_std: where the learned log standard deviations of all coordinates start, in p and in q, from -20 to
            0. With -20, a ``kl_weight`` of 0 and a ``mean_rate`` near 0 it is MAML.
        first_order_means: leave out the second derivatives of those steps, of which the one on all queries costs more
            than MAML. The inner steps keep theirs.
    """

    samples: int = 2
    eval_samples: int = 10
    kl_weight: float = 1e-6
    mean_rate: float = 0.01
    initial_log_std: float = -4.0
    first_order_means: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.samples, self.eval_samples) < 1:
            raise ValueError(f"samples and eval_samples must be at least 1; got {self.samples}, {self.eval_samples}")
        if not 0 <= self.kl_weight < math.inf:
            raise ValueError(f"kl_weight must be finite and not negative; got {self.kl_weight}")
        if not 0 < self.mean_rate < math.inf:
            raise ValueError(f"mean_rate must be positive and finite; got {self.mean_rate}")
        particles.check_initial_log_std(self.initial_log_std)


class Start(NamedTuple):
    """A Gaussian over where the steps start, by parameter; those that are frozen have no standard deviation.

    Attributes:
        mean: with a leading task dimension.
        std: the same for all tasks.
    """

    mean: Mapping[str, Tensor]
    std: Mapping[str, Tensor]

    @property
    def normal(self) -> Normal:
        """Over the parameters that are not frozen, ``[task, coordinate]``."""
        mean = AdaptedNetwork.flat({name: self.mean[name] for name in self.std})
        std = AdaptedNetwork.flat({name: std.unsqueeze(0) for name, std in self.std.items()})
        return Normal(mean, std.expand_as(mean), validate_args=False)


class LearnedStart(nn.Module):
    """N(mu - gamma grad L(mu, data), std^2), with gamma and the standard deviations learned."""

    def __init__(self, network: AdaptedNetwork, settings: PLATIPUSSettings) -> None:
        super().__init__()
        moving = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.names = list(moving)
        self.log_rate = nn.Parameter(torch.tensor(settings.mean_rate).log())
        self.log_std = nn.ParameterList(torch.full_like(p, settings.initial_log_std) for p in moving.values())

    def forward(self, network: AdaptedNetwork, data: Labeled, *, first_order: bool) -> Start:
        """Of each task, from data of it; mu is psi_0 of the network."""
        log_std = network.for_way(dict(zip(self.names, self.log_std, strict=True)), data.way)
        mean = network.stepped(data, self.log_rate.exp(), first_order=first_order)
        return Start(mean, {name: value.exp() for name, value in log_std.items()})


class PLATIPUS(Method[Particles]):
    """MAML from a start that is drawn from a learned Gaussian, which a step on the support set has moved."""

    reference = "Finn et al. 2018, Probabilistic Model-Agnostic Meta-Learning (NeurIPS)"
    psi = "samples of all network parameters after a few gradient steps from a Gaussian start"
    handles = ("classification", "regression")
    Settings = PLATIPUSSettings
    settings: PLATIPUSSettings
    search_space: ClassVar = {
        **Method.search_space,
        "inner_rate": LogUniform(0.01, 1.0),
        "kl_weight": LogUniform(1e-8, 0.1),
        "initial_log_std": OneOf((-4.0, -5.0, -6.0, -3.0)),
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
    xfail_checks: ClassVar = {
        "class_relabeling": "every class starts from its own learned row of the head, and with noise of its own"
    }

    def __init__(self, problem: Problem, settings: PLATIPUSSettings) -> None:
        super().__init__(problem, settings)
        self.network = AdaptedNetwork(problem)
        self.likelihood = Likelihood(problem)
        self.prior = LearnedStart(self.network, settings)
        self.inference = LearnedStart(self.network, settings)

    def amortize(self, support: Labeled) -> Posterior[Particles]:
        """Gradient steps on the support loss from each draw of p(theta | D) (their Algorithm 2)."""
        return self.adapted(support, self.start(self.prior, support))

    def start(self, learned: LearnedStart, data: Labeled) -> Start:
        """p(theta | D) of the learned ``prior``, or q(theta | D') of ``inference``."""
        start: Start = learned(self.network, data, first_order=self.settings.first_order_means)
        return start

    def adapted(self, support: Labeled, start: Start) -> Posterior[Particles]:
        """Draws of a start after gradient steps; at evaluation with fixed noise."""
        settings, training = self.settings, self.training
        samples = settings.samples if training else settings.eval_samples
        coordinates = sum(mean[0].numel() for mean in start.mean.values())
        noise = particles.noise(samples, coordinates, fixed=not training, like=self.prior.log_rate)
        of = self.network.unflatten(noise)
        drawn = {
            name: particles.folded(mean.unsqueeze(1) + start.std[name] * of[name])
            if name in start.std
            else mean.repeat_interleave(samples, 0)
            for name, mean in start.mean.items()
        }
        found = self.network.adapt(particles.repeated(support, samples), settings.rates(training=training), start=drawn)
        values = particles.unfolded(found.psi.mean, samples)
        return Posterior(Particles(values), found.norm_statistics)

    def predictive(self, q: Posterior[Particles], query_x: Tensor) -> MonteCarloMixture:
        """The mean over the draws of each one's softmax, or Gaussian."""
        return particles.mixture(self.likelihood, particles.network_outputs(self.network, q, query_x), q.psi.count)

    def loss(self, batch: TaskBatch) -> Tensor:
        """The bound with its KL weighted, for starts that have seen the queries (their Algorithm 1)."""
        start = self.start(self.inference, batch.query)
        predictive = self.predictive(self.adapted(batch.support, start), batch.query.x)
        log_loss = -predictive.components.log_prob(batch.query.y).mean()
        return log_loss + self.settings.kl_weight * self.kl(start, batch.support).mean()

    def kl(self, start: Start, support: Labeled) -> Tensor:
        """KL[q(theta | D') || p(theta | D)] of each task, in nats."""
        return kl_divergence(start.normal, self.start(self.prior, support).normal).sum(-1)

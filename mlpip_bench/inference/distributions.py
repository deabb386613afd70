"""What ``torch.distributions`` lacks: a point mass, and the mixture over samples of psi.

Shapes: sample dimensions first, then ``task``, then ``point``, then the event.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal, constraints
from torch.distributions.constraints import Constraint

_NO_SHAPE = torch.Size()


class Delta(Distribution):
    """A point mass, q(psi | D) of every method with a point estimate (paper, section 4).

    Its log-density is taken against the counting measure: 0 at the point, minus infinity elsewhere.

    Args:
        value: where the mass is, ``[*batch, *event]``.
        event_dim: how many trailing dimensions are the event.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    has_rsample = True

    def __init__(self, value: Tensor, event_dim: int = 0) -> None:
        self.value = value
        split = value.dim() - event_dim
        super().__init__(value.shape[:split], value.shape[split:], validate_args=False)

    @property
    def support(self) -> Constraint:
        """The reals; the mass is at one point of them."""
        return constraints.independent(constraints.real, len(self.event_shape))

    @property
    def mean(self) -> Tensor:
        """The point."""
        return self.value

    @property
    def variance(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.value)

    def rsample(self, sample_shape: Any = _NO_SHAPE) -> Tensor:
        """The point, once per sample."""
        return self.value.expand(self._extended_shape(torch.Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """0 at the point, minus infinity elsewhere."""
        log_mass = torch.where(value == self.value, 0.0, -math.inf).to(self.value.dtype)
        event = len(self.event_shape)
        return log_mass.flatten(log_mass.dim() - event).sum(-1) if event else log_mass


class MonteCarloMixture(Distribution):
    """q(y | x, D) = 1/L sum_l p(y | x, psi_l), the inner sum of the paper's Eq. 4.

    Args:
        components: p(y | x, psi_l) with batch shape ``[sample, *batch]``; its first dimension is the
            equally weighted samples.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, components: Distribution) -> None:
        self.components = components
        self.samples = components.batch_shape[0]
        super().__init__(components.batch_shape[1:], components.event_shape, validate_args=False)

    @property
    def support(self) -> Constraint | None:
        """Support of the components."""
        return self.components.support

    @property
    def mean(self) -> Tensor:
        """Mean of the mixture."""
        return self.components.mean.mean(0)

    @property
    def variance(self) -> Tensor:
        """Variance of the mixture: mean of variances plus (population) variance of means."""
        return self.components.variance.mean(0) + self.components.mean.var(0, correction=0)

    @property
    def log_probs(self) -> Tensor:
        """Log of the mean class probabilities, ``[task, point, way]``; components over classes only."""
        logits: Tensor = self.components.logits  # type: ignore[attr-defined]
        return logits.log_softmax(-1).logsumexp(0) - math.log(self.samples)

    @property
    def probs(self) -> Tensor:
        """Mean class probabilities, ``[task, point, way]``; components over classes only."""
        return self.log_probs.exp()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log of the mean density, by log-sum-exp: never a mean of logs."""
        log_density: Tensor = self.components.log_prob(value.unsqueeze(0))
        return log_density.logsumexp(0) - math.log(self.samples)

    @torch.no_grad()
    def sample(self, sample_shape: Any = _NO_SHAPE) -> Tensor:
        """Draws from the mixture."""
        shape = torch.Size(sample_shape)
        draws = self.components.sample(shape)  # [*shape, L, *batch, *event]
        event = len(self.event_shape)
        pick = torch.randint(self.samples, (*shape, 1, *self.batch_shape), device=draws.device)
        pick = pick.reshape(*pick.shape, *(1,) * event).expand(*pick.shape, *self.event_shape)
        return draws.gather(len(shape), pick).squeeze(len(shape))


class GaussianSoftmax(Distribution):
    """Class probabilities of a softmax whose logits are independent Gaussians, averaged over fixed points.

    E[softmax(z)] by quasi-Monte-Carlo points in ``way`` dimensions. A class has the dimension of its rank in the task,
    so that relabeling the classes relabels the probabilities and nothing else. The points are gone through a part at
    a time, which keeps the memory small whatever their number.

    Args:
        logits: batch shape ``[task, point, way]``.
        points: standard normal, ``[sample, way]``.
        rank: of each class, from :func:`class_rank`.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, logits: Normal, points: Tensor, rank: Int[Tensor, "task way"]) -> None:
        self.gaussian, self.points, self.rank = logits, points, rank
        super().__init__(logits.batch_shape[:-1], validate_args=False)

    @property
    def support(self) -> Constraint:
        """The classes."""
        return constraints.integer_interval(0, self.rank.shape[-1] - 1)

    @functools.cached_property
    def log_probs(self) -> Tensor:
        """Log of the mean class probabilities, ``[task, point, way]``."""
        most, (tasks, _, way) = _LOGITS_AT_ONCE.get(self.rank.device.type, 2**22), self.gaussian.mean.shape
        some = max(1, most // (tasks * way))
        mean, std = (t.mT.contiguous().split(some, -1) for t in (self.gaussian.mean, self.gaussian.stddev))
        points = self.points.to(mean[0])
        parts = [_log_mean_softmax(*part, points, self.rank, most) for part in zip(mean, std, strict=True)]
        return torch.cat(parts, -1).mT

    @property
    def probs(self) -> Tensor:
        """Mean class probabilities, ``[task, point, way]``."""
        return self.log_probs.exp()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log of the mean probability of a class."""
        log_prob: Tensor = Categorical(logits=self.log_probs, validate_args=False).log_prob(value)
        return log_prob

    def sample(self, sample_shape: Any = _NO_SHAPE) -> Tensor:
        """Classes."""
        drawn: Tensor = Categorical(logits=self.log_probs, validate_args=False).sample(sample_shape)
        return drawn


_LOGITS_AT_ONCE = {"cpu": 2**17}
"""Of all samples of a part; on a CPU few enough for the cache."""


def _log_mean_softmax(
    mean: Float[Tensor, "task way point"],
    std: Float[Tensor, "task way point"],
    noise: Float[Tensor, "sample way"],
    rank: Int[Tensor, "task way"],
    most: int,
) -> Float[Tensor, "task way point"]:
    """Log of the mean of softmax(mean + std * noise); the last dimension, which is gone through at once, is long."""
    parts = noise.split(max(1, most // max(1, mean.numel())))

    def logits(part: Tensor) -> Tensor:
        return torch.addcmul(mean, std, part[:, rank].unsqueeze(-1))

    total = torch.zeros_like(mean)
    for part in parts:
        total += logits(part).softmax(-2).sum(0)
    limits = torch.finfo(mean.dtype)
    if not (total < limits.tiny / limits.eps).any():
        return total.log() - math.log(len(noise))
    total = torch.full_like(mean, -math.inf)  # some vanish, whose logs take four times as long
    for part in parts:
        total = torch.logaddexp(total, logits(part).log_softmax(-2).logsumexp(0))
    return total - math.log(len(noise))


def linear_gaussian_outputs(features: Float[Tensor, "task point feature"], psi: Normal) -> Normal:
    """Distribution of a linear layer's outputs (logits, or a regression's mean) whose weights are Gaussian.

    The local reparameterization of Kingma et al. (2015), which the paper uses in its appendix D.3:
    an output is a sum of independent Gaussians, so it is Gaussian, independently between classes.

    Args:
        features: h(x).
        psi: factorized Gaussian over ``[task, way, feature + 1]``; the last coordinate is the bias.

    Returns:
        Normal with batch shape ``[task, point, way]``.
    """
    mean = linear_outputs(features, psi.mean)
    variance = linear_outputs(features.square(), psi.variance)
    return Normal(mean, variance.sqrt(), validate_args=False)


def linear_outputs(
    features: Float[Tensor, "task point feature"], psi: Float[Tensor, "task way feature_and_bias"]
) -> Float[Tensor, "task point way"]:
    """Outputs of a linear layer whose bias is the last coordinate of psi."""
    return torch.baddbmm(psi[..., -1:].mT, features, psi[..., :-1].mT)


def attention_vote(
    scores: Float[Tensor, "task point support"], one_hot: Float[Tensor, "task support way"]
) -> Categorical:
    """The attention on each class: a softmax of the scores, summed over the support points with its label.

    A support point whose label is all zeros has no part in it.
    """
    other_class = (one_hot.mT == 0).unsqueeze(1)  # [task, 1, way, support]
    by_class = scores.unsqueeze(2).masked_fill(other_class, -math.inf)
    return Categorical(logits=by_class.logsumexp(-1), validate_args=False)


def class_rank(values: Float[Tensor, "task way feature"]) -> Int[Tensor, "task way"]:
    """The place of each class in its task, in the order of sums of its values: another labeling has the same places."""
    return values.sum(-1).argsort(-1).argsort(-1)


def sampled_normal(
    normal: Normal, samples: int, *, fixed_noise: bool, rank: Int[Tensor, "task way"] | None = None
) -> Float[Tensor, sample * batch]:
    """Reparameterized draws, with noise drawn afresh or, if fixed, the same for all but the last dimension.

    Args:
        normal: batch shape ``[task, ...]``.
        samples: how many.
        fixed_noise: whether the noise is that of the fixed points.
        rank: of the last dimension's coordinates in each task, which dimension of the fixed points each has; None for
            their own order.
    """
    mean = normal.mean
    if fixed_noise:
        points: Tensor = sobol_normal(samples, mean.shape[-1]).to(mean)
        noise = points.view(samples, *(1,) * (mean.dim() - 1), -1) if rank is None else points[:, rank].unsqueeze(2)
    else:
        noise = torch.randn(samples, *mean.shape, dtype=mean.dtype, device=mean.device)
    return mean + normal.stddev * noise


def sampled_predictive(
    outputs: Normal,
    samples: int,
    *,
    noise_std: float | None = None,
    fixed_noise: bool,
    rank: Int[Tensor, "task way"] | None = None,
) -> MonteCarloMixture:
    """Predictive of a model with Gaussian outputs, by ``samples`` draws of them.

    Args:
        outputs: batch shape ``[task, point, way]``, independent between classes.
        samples: L.
        noise_std: None for a softmax over the outputs; in regression, the standard deviation of the
            target given the one output.
        fixed_noise: ``False`` draws noise afresh for each point, from torch's generator (training).
            ``True`` uses one fixed set of L quasi-Monte-Carlo points, a scrambled Sobol sequence in
            ``way`` dimensions, for every point: what is made of them is then a function of q and its query
            alone, whatever else is in the batch.
        rank: of each class, which dimension of the fixed points it has.
    """
    drawn = sampled_normal(outputs, samples, fixed_noise=fixed_noise, rank=rank)
    if noise_std is None:
        return MonteCarloMixture(Categorical(logits=drawn, validate_args=False))
    return MonteCarloMixture(Normal(drawn.squeeze(-1), noise_std, validate_args=False))


def gaussian_linear_predictive(
    features: Float[Tensor, "task point feature"],
    psi: Normal,
    samples: int,
    *,
    noise_std: float | None,
    fixed_noise: bool,
    rank: Int[Tensor, "task way"] | None = None,
) -> MonteCarloMixture:
    """Predictive of a linear classifier or regression with Gaussian weights; arguments as of the two above."""
    outputs = linear_gaussian_outputs(features, psi)
    return sampled_predictive(outputs, samples, noise_std=noise_std, fixed_noise=fixed_noise, rank=rank)


def evaluation_predictive(
    features: Float[Tensor, "task point feature"],
    psi: Normal,
    samples: int,
    *,
    noise_std: float | None,
    scramble: int = 0,
) -> Distribution:
    """Predictive of the same without noise of its own: in closed form in regression, else by fixed points.

    Args:
        features: h(x).
        psi: factorized Gaussian over ``[task, way, feature + 1]``.
        samples: number of points; nothing to a regression.
        noise_std: None for a softmax.
        scramble: which of the scrambled point sets.
    """
    if noise_std is not None:
        return closed_form_predictive(features, psi, noise_std=noise_std)
    points = sobol_normal(samples, psi.mean.shape[1], scramble)
    return GaussianSoftmax(linear_gaussian_outputs(features, psi), points, class_rank(psi.mean))


def closed_form_predictive(features: Float[Tensor, "task point feature"], psi: Normal, *, noise_std: float) -> Normal:
    """Predictive of a regression with Gaussian weights in closed form, the limit of infinitely many samples.

    Eq. 3 of the paper for a Gaussian likelihood: the variance is the output's plus the noise's.
    """
    outputs = linear_gaussian_outputs(features, psi)
    std = (outputs.variance + noise_std**2).sqrt().squeeze(-1)
    return Normal(outputs.mean.squeeze(-1), std, validate_args=False)


# Compiled, it would draw anew at each call, behind the cache. torch.compiler.disable is this, with a slow import.
@torch._disable_dynamo  # type: ignore[attr-defined]
@functools.lru_cache(maxsize=32)
def sobol_normal(samples: int, dimensions: int, scramble: int = 0) -> Tensor:
    """Standard normal quasi-Monte-Carlo points, ``[samples, dimensions]`` in float64.

    A single point is the center, so that one sample of a Gaussian is its mean. Sets of other scrambles are as good.
    """
    if samples == 1:
        return torch.zeros(1, dimensions, dtype=torch.float64)
    engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=scramble)
    first = engine.quasi.double() / 2**engine.MAXBIT
    uniform: Tensor = engine.draw(samples, dtype=torch.float64)
    uniform[0] = first  # which torch has in the default dtype: the points would depend on when they are drawn
    normal: Tensor = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    return normal


def where_float64_is(x: Tensor) -> Tensor:
    """The tensor on a device that has float64: itself, but for one of MPS, which has none, a copy on the CPU."""
    return x.cpu() if x.device.type == "mps" else x


@functools.singledispatch
def to_float64(distribution: Distribution) -> Distribution:
    """The same distribution with float64 parameters, in which evaluation computes log-densities.

    Raises:
        TypeError: a distribution that this suite does not know; register it with
            ``to_float64.register``.
    """
    raise TypeError(
        f"predictive must be a distribution that to_float64 knows; got {type(distribution).__name__}. "
        "Register yours with mlpip_bench.inference.distributions.to_float64.register."
    )


@to_float64.register
def _(distribution: Categorical) -> Categorical:
    # Probabilities that it was made of are taken as they are: torch clips them where it makes logits of them.
    given = distribution._param
    logits = given if given is vars(distribution).get("logits") else where_float64_is(given).double().log()
    return Categorical(logits=where_float64_is(logits).double(), validate_args=False)


@to_float64.register
def _normal_to_float64(distribution: Normal) -> Normal:
    loc, scale = (where_float64_is(x).double() for x in (distribution.loc, distribution.scale))
    return Normal(loc, scale, validate_args=False)


@to_float64.register
def _(distribution: Independent) -> Independent:  # type: ignore[type-arg]  # not generic at run time
    base = to_float64(distribution.base_dist)
    return Independent(base, distribution.reinterpreted_batch_ndims, validate_args=False)


@to_float64.register
def _(distribution: MonteCarloMixture) -> MonteCarloMixture:
    return MonteCarloMixture(to_float64(distribution.components))


@to_float64.register
def _(distribution: GaussianSoftmax) -> GaussianSoftmax:
    rank = where_float64_is(distribution.rank)
    return GaussianSoftmax(_normal_to_float64(distribution.gaussian), distribution.points, rank)

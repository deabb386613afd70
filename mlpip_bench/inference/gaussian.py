"""Probabilistic models with a Gaussian q(psi | D) from an amortization network, one for each kind of task.

Both have the same three parts, which Versa and the variational methods put together to objectives of their own:
features of the inputs, q(psi | D), and p(y | x, psi) averaged over samples of psi.
"""

from __future__ import annotations

import abc

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from mlpip_bench.inference.distributions import (
    MonteCarloMixture,
    evaluation_predictive,
    gaussian_linear_predictive,
    sampled_normal,
)
from mlpip_bench.inference.method import Problem
from mlpip_bench.nn.amortization import OfRegression, amortization
from mlpip_bench.nn.layers import last_bias, mlp, std_from_log_variance
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.nn.views import ViewGenerator
from mlpip_bench.tasks.batch import Labeled


class GaussianModel(nn.Module, abc.ABC):
    """What amortized inference with a Gaussian q needs of a model."""

    @abc.abstractmethod
    def features(self, x: Tensor, support: Statistics | None = None) -> tuple[Tensor, Statistics]:
        """Features of inputs ``[task, point, ...]``; ``support`` is None where x is the support set."""

    @abc.abstractmethod
    def posterior(self, features: Float[Tensor, "task point feature"], data: Labeled) -> Normal:
        """q(psi | D), from the features of D's inputs."""

    @abc.abstractmethod
    def log_variance_biases(self) -> list[Tensor]:
        """Biases of the layers whose outputs are the log-variances of q."""

    @abc.abstractmethod
    def predictive(
        self,
        features: Float[Tensor, "task point feature"],
        psi: Normal,
        samples: int,
        *,
        fixed_noise: bool,
        scramble: int = 0,
    ) -> Distribution:
        """q(y | x, D) over ``samples`` draws of psi; ``fixed_noise``, of which ``scramble`` is, is for evaluation."""


def gaussian_model(
    problem: Problem, *, dropout: bool, initial_log_variance: float = 0.0, of_regression: OfRegression = "linear"
) -> GaussianModel:
    """The model of a problem, the same for all methods that amortize a Gaussian.

    Args:
        problem: what it is for.
        dropout: whether training drops activations at the bench's rate.
        initial_log_variance: added to the log-variance of q by the initial biases.
        of_regression: how a regression is amortized.
    """
    model = (
        ViewModel(problem)
        if problem.kind == "reconstruction"
        else LinearModel(problem, dropout=dropout, of_regression=of_regression)
    )
    with torch.no_grad():
        for bias in model.log_variance_biases():
            bias += initial_log_variance
    return model


class LinearModel(GaussianModel):
    """A linear classifier, or regression, with Gaussian weights on shared features.

    Args:
        problem: classification or regression.
        dropout: whether training drops activations at the bench's rate.
        of_regression: how a regression is amortized.
    """

    def __init__(self, problem: Problem, *, dropout: bool, of_regression: OfRegression = "linear") -> None:
        super().__init__()
        self.noise_std = problem.noise_std
        self.backbone = problem.build_backbone(dropout=dropout)
        self.amortizer = amortization(
            self.backbone.features, regression=problem.kind == "regression", of_regression=of_regression
        )

    def features(self, x: Tensor, support: Statistics | None = None) -> tuple[Tensor, Statistics]:
        """h_theta(x)."""
        features: tuple[Tensor, Statistics] = self.backbone(x, support)
        return features

    def posterior(self, features: Tensor, data: Labeled) -> Normal:
        """Factorized Gaussian over ``[task, way, feature + 1]``, the bias last (Eq. 5)."""
        mean, std = self.amortizer(features, data)
        return Normal(mean, std, validate_args=False)

    def log_variance_biases(self) -> list[Tensor]:
        """Of the amortization network."""
        return self.amortizer.log_variance_biases()

    def predictive(
        self, features: Tensor, psi: Normal, samples: int, *, fixed_noise: bool, scramble: int = 0
    ) -> Distribution:
        """By local reparameterization, in regression in closed form: at evaluation, and where ``samples`` is 0."""
        if fixed_noise or samples == 0:
            return evaluation_predictive(features, psi, samples, noise_std=self.noise_std, scramble=scramble)
        return gaussian_linear_predictive(features, psi, samples, noise_std=self.noise_std, fixed_noise=False)


class ViewModel(GaussianModel):
    """Images of an object, seen from angles x, that share a Gaussian vector psi (paper, section 5.3 and appendix E).

    Encoder, amortization network with instance pooling, and generator have the paper's layers and no
    normalization; all layers have biases, which the reference code leaves out. The width of a last
    convolution's output is the paper's d_phi = d_psi = 256.

    Args:
        problem: reconstruction; its images are square, and its backbone encodes them.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
        self.encoder = problem.build_backbone()
        width = self.encoder.features
        self.before_pooling = nn.Sequential(mlp(width + problem.inputs, width, width), nn.ELU())
        self.after_pooling = nn.Sequential(mlp(width, width, width), nn.ELU())
        self.mean = mlp(width, width)
        self.log_variance = mlp(width, width)
        self.generator = ViewGenerator(problem.input_shape, width + problem.inputs)

    def features(self, x: Tensor, support: Statistics | None = None) -> tuple[Tensor, Statistics]:  # noqa: ARG002
        """The angles themselves."""
        return x, ()

    def posterior(self, features: Tensor, data: Labeled) -> Normal:
        """Factorized Gaussian over ``[task, d_psi]``; the mean over the given views makes their order irrelevant."""
        encoded = self.before_pooling(torch.cat([self.encoder(data.y)[0], features], -1))
        pooled = self.after_pooling(encoded.mean(1))
        return Normal(self.mean(pooled), std_from_log_variance(self.log_variance(pooled)), validate_args=False)

    def log_variance_biases(self) -> list[Tensor]:
        """Of the last layer."""
        return [last_bias(self.log_variance)]

    def predictive(
        self,
        features: Tensor,
        psi: Normal,
        samples: int,
        *,
        fixed_noise: bool,
        scramble: int = 0,  # noqa: ARG002  # what is scored is the mean image
    ) -> MonteCarloMixture:
        """Generated images under pixel noise; one draw of psi serves all points of a task."""
        drawn = sampled_normal(psi, samples, fixed_noise=fixed_noise)
        drawn = drawn.unsqueeze(2).expand(-1, -1, features.shape[1], -1)
        images = self.generator(torch.cat([drawn, features.expand(samples, *features.shape)], -1))
        return MonteCarloMixture(view_likelihood(images, self.problem))


def view_likelihood(images: Float[Tensor, "*batch channel height width"], problem: Problem) -> Independent:  # type: ignore[type-arg]  # not generic at run time
    """p(y | x, psi): Gaussian noise on each pixel of generated images."""
    assert problem.noise_std is not None  # reconstruction has one
    return Independent(Normal(images, problem.noise_std, validate_args=False), 3)

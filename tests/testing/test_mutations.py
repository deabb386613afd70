"""The conformance suite finds faults: a correct method is broken in one place at a time, and the right check says so.

Two methods that are correct: one trained on predictive log-loss, one on the evidence bound. Each mutation is a
subclass that changes one function.
"""

import dataclasses
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from mlpip_bench.methods.abml import ABML
from mlpip_bench.methods.bmaml import BMAML
from mlpip_bench.methods.imaml import IMAML
from mlpip_bench.methods.llama import LLAMA
from mlpip_bench.methods.map_dlm import MapDLM
from mlpip_bench.methods.map_ssvm import MapSSVM
from mlpip_bench.methods.memory_mod import MemoryMod
from mlpip_bench.methods.meta_lstm import MetaLSTM
from mlpip_bench.methods.neural_statistician import NeuralStatistician
from mlpip_bench.methods.platipus import PLATIPUS
from mlpip_bench.methods.siamese_nets import SiameseNets
from mlpip_bench.methods.versa import Versa
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence

from mlpip_bench.inference.distributions import MonteCarloMixture
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.inference.particles import Particles
from mlpip_bench.nn.normalization import Moments
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.testing.conformance import CHECKS, assert_conforms, check_method


@dataclass(frozen=True)
class SampleSettings:
    samples: int = 10
    eval_samples: int = 100


class Predictive(Method[Normal]):
    """Gaussian over a linear classifier or regression, from sums of features, trained on predictive log-loss."""

    reference = "Nobody et al. 2020, A Correct Method"
    psi = "Gaussian over the weights and the bias"
    handles = ("classification", "regression")
    Settings = SampleSettings

    def __init__(self, problem, settings):
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()
        features = self.backbone.features
        self.to_mean = nn.Linear(features + 1, features + 1)
        self.to_log_std = nn.Linear(features + 1, features + 1)

    def features(self, x: Tensor, statistics=None):
        features, statistics = self.backbone(x, statistics)
        return torch.cat([features, torch.ones_like(features[..., :1])], -1), statistics

    def summary(self, features: Tensor, support: Labeled) -> Tensor:
        """[task, way, feature + 1]: class means, or the mean of y times the features."""
        if self.problem.noise_std is None:
            return support.class_means(features)
        return (support.y.unsqueeze(-1) * features).mean(1, keepdim=True)

    def gaussian(self, summary: Tensor) -> Normal:
        return Normal(self.to_mean(summary), self.to_log_std(summary).clamp(-5, 2).exp(), validate_args=False)

    def amortize(self, support):
        features, statistics = self.features(support.x)
        return Posterior(self.gaussian(self.summary(features, support)), statistics)

    def std(self, features: Tensor, psi: Normal) -> Tensor:
        return (features.square() @ psi.variance.mT).sqrt()

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """[sample, task, point, way]; in evaluation the same for every task and point, from a generator of its own."""
        if self.training:
            return torch.randn(shape, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        half = torch.randn(-(-shape[0] // 2), 1, 1, shape[-1], generator=generator, dtype=torch.float64)
        return torch.cat([half, -half])[: shape[0]]

    def outputs(self, q: Posterior, query_x: Tensor) -> Tensor:
        features, _ = self.features(query_x, q.norm_statistics)
        mean, std = features @ q.psi.mean.mT, self.std(features, q.psi)
        samples = self.settings.samples if self.training else self.settings.eval_samples
        noise = self.noise((samples, *mean.shape)).to(mean)
        return mean + std * (noise if self.training else self.by_rank(noise, q.psi))

    def by_rank(self, noise: Tensor, psi: Normal) -> Tensor:
        """A class has the noise of its place in the task, which other labels do not change."""
        rank = psi.mean.sum(-1).argsort(-1).argsort(-1)  # [task, way]
        return noise[:, 0, 0][:, rank].unsqueeze(2)

    def conditional(self, outputs: Tensor):
        if self.problem.noise_std is None:
            return MonteCarloMixture(Categorical(logits=outputs, validate_args=False))
        return MonteCarloMixture(Normal(outputs.squeeze(-1), self.problem.noise_std, validate_args=False))

    def predictive(self, q, query_x):
        return self.conditional(self.outputs(q, query_x))

    def loss(self, batch):
        return -self.predictive(self.amortize(batch.support), batch.query.x).log_prob(batch.query.y).mean()


class Bound(Predictive):
    """The same q, trained on the evidence lower bound."""

    bounds_evidence = True

    def kl(self, psi: Normal) -> Tensor:
        """[task]."""
        prior = Normal(torch.zeros_like(psi.mean), torch.ones_like(psi.mean))
        return kl_divergence(psi, prior).sum((1, 2))

    def loss(self, batch):
        q = self.amortize(batch.support)
        conditional = self.predictive(q, batch.support.x).components
        log_likelihood = conditional.log_prob(batch.support.y).mean(0).sum(-1)
        return (self.kl(q.psi) - log_likelihood).mean() / batch.support.y.shape[1]


@pytest.mark.parametrize("method", [Predictive, Bound])
def test_the_unbroken_methods_conform(method):
    assert_conforms(method)


MUTATIONS: dict[str, tuple[type[Method], str]] = {}


def caught_by(check: str):
    """The class is a mutation that this check must find."""

    def register(mutation: type[Method]) -> type[Method]:
        assert mutation.__name__ not in MUTATIONS
        MUTATIONS[mutation.__name__] = mutation, check
        return mutation

    return register


# the loss


@caught_by("loss_mean_over_tasks")
class LossSummedOverTasks(Predictive):
    def loss(self, batch):
        return super().loss(batch) * batch.support.tasks


@caught_by("loss_mean_over_tasks")
class BoundSummedOverTasks(Bound):
    def loss(self, batch):
        return super().loss(batch) * batch.support.tasks


@caught_by("loss_mean_over_tasks")
class LossOfTheFirstTaskOnly(Predictive):
    def loss(self, batch):
        return super().loss(TaskBatch(batch.support.task(0), batch.query.task(0)))


@caught_by("loss_mean_over_points")
class CurvatureSummedOverQueries(LLAMA):
    def with_curvature(self, q, query_x, points):
        return super().with_curvature(q, query_x, query_x.shape[1])  # of as many points as there are queries


@caught_by("loss_mean_over_points")
class LossSummedOverPoints(Predictive):
    def loss(self, batch):
        return super().loss(batch) * batch.query.y.shape[1]


@caught_by("loss_scalar")
class LossPerTask(Predictive):
    def loss(self, batch):
        return super().loss(batch).expand(batch.support.tasks)


@caught_by("loss_scalar")
class LossWithoutGradient(Predictive):
    def loss(self, batch):
        return super().loss(batch).detach()


@caught_by("loss_scalar")
class LossNotFinite(Predictive):
    def loss(self, batch):
        return super().loss(batch) * torch.inf


@caught_by("shapes")
class LossInFloat64(Predictive):
    def loss(self, batch):
        return super().loss(batch).double()


@caught_by("evidence_bound")
class WrongSignOfTheKL(Bound):
    def kl(self, psi):
        return -super().kl(psi)


@caught_by("evidence_bound")
class NoKL(Bound):
    def kl(self, psi):
        return 0 * super().kl(psi)


# losses of pairs and of margins, which are no likelihoods


@caught_by("loss_mean_over_points")
class QueriesPairedWithQueries(SiameseNets):
    def loss(self, batch):
        return super().loss(TaskBatch(batch.merged, batch.query))


@caught_by("loss_mean_over_tasks")
class MeanOfPairsThatAreWrong(SiameseNets):
    def loss(self, batch):
        logits, _ = self.pairs(self.amortize(batch.support), batch.query.x)
        same = batch.query.one_hot @ batch.support.one_hot.mT
        losses = nn.functional.binary_cross_entropy_with_logits(logits, same, reduction="none")
        return losses[(logits > 0) != same.bool()].mean()


@caught_by("loss_mean_over_tasks")
class MeanOfMarginsThatAreMissed(MemoryMod):
    def loss(self, batch):
        margins = self.eval().margins(batch)  # in one order, whose draws would explain the difference
        return margins.sum() / (margins > 0).sum()


@caught_by("loss_mean_over_tasks")
class PointsOfOtherTasksRanked(MapSSVM):
    def loss(self, batch):
        parts = (batch.support, batch.query)
        return super().loss(TaskBatch(*(Labeled(p.x.flatten(0, 1)[None], p.y.flatten()[None], p.way) for p in parts)))


# gradients


@caught_by("every_parameter")
class DetachedParameter(Predictive):
    def gaussian(self, summary):
        psi = super().gaussian(summary)
        return Normal(psi.mean, psi.stddev.detach(), validate_args=False)


@caught_by("every_parameter")
class DetachedExtractor(Predictive):
    def features(self, x, statistics=None):
        features, statistics = super().features(x, statistics)
        return features.detach(), statistics


@caught_by("every_parameter")
class UnusedParameter(Predictive):
    def __init__(self, problem, settings):
        super().__init__(problem, settings)
        self.unused = nn.Parameter(torch.ones(3))

    def loss(self, batch):
        return super().loss(batch) + 0 * self.unused.sum()


@caught_by("gradient")
class GradientScaled(Predictive):
    def loss(self, batch):
        loss = super().loss(batch)
        return 2 * loss - loss.detach()


@caught_by("gradient")
class HalfOfTheGradient(Predictive):
    def summary(self, features, support):
        summary = super().summary(features, support)
        return (summary + summary.detach()) / 2


@caught_by("gradient")
class ValueOfTheRankingsAlone(MapDLM):
    def loss(self, batch):
        loss = super().loss(batch)
        return loss - loss.detach() + loss.detach().round(decimals=2)  # piecewise constant, as 1 - AP is


@caught_by("gradient")
class ContextDrawnWithoutGradient(NeuralStatistician):
    def _draw(self, x, features, context, noise):
        return super()._draw(x, features, context.detach(), noise)


@caught_by("gradient")
class MeansMovedToFirstOrder(PLATIPUS):
    def start(self, learned, data):
        return learned(self.network, data, first_order=True)


@caught_by("every_parameter")
class BoundWithoutGradientOfItsKL(PLATIPUS):
    def kl(self, start, support):
        return super().kl(start, support).detach()


@caught_by("loss_mean_over_tasks")
class SumsTheDivergenceOverTasks(ABML):
    def loss(self, batch):
        q, divergences = self._inferred(batch.support)
        log_likelihood = self.predictive(q, batch.query.x).components.log_prob(batch.query.y)
        return 1e-3 * divergences.sum() - log_likelihood.mean()


@caught_by("loss_scalar")
class MinimumWithoutItsGradient(IMAML):
    def amortize(self, support):
        with torch.no_grad():
            return super().amortize(support)


# q and the predictive


@caught_by("predictive_integrates")
class VarianceForStandardDeviation(Predictive):
    def std(self, features, psi):
        return features.square() @ psi.variance.mT


@caught_by("predictive_integrates")
class StandardDeviationForVariance(Predictive):
    def std(self, features, psi):
        return (features.square() @ psi.stddev.mT).sqrt()


@caught_by("predictive_integrates")
class NoiseLeftOut(Predictive):
    def noise(self, shape):
        return 0 * super().noise(shape)


@caught_by("predictive_integrates")
class NoiseLeftOutOfEvaluation(Bound):
    def noise(self, shape):
        return super().noise(shape) * self.training


@caught_by("predictive_integrates")
class MeanLogitsOfTheSamples(Predictive):
    def outputs(self, q, query_x):
        return super().outputs(q, query_x).mean(0, keepdim=True)


@caught_by("predictive_integrates")
class MeanOutputsOfTheParticles(ABML):
    def predictive(self, q, query_x):
        components = super().predictive(q, query_x).components
        if isinstance(components, Normal):
            return Normal(components.mean.mean(0), components.stddev[0])
        return Categorical(logits=components.logits.mean(0))


@caught_by("predictive_integrates")
class PredictiveOfTheMeanParticle(BMAML):
    def predictive(self, q, query_x):
        mean = Particles(q.psi.mean.unsqueeze(1))
        return super().predictive(dataclasses.replace(q, psi=mean), query_x)


@caught_by("probabilities")
class NotNormalized(Predictive):
    class Wrong(MonteCarloMixture):
        def log_prob(self, value):
            return self.components.log_prob(value.unsqueeze(0)).logsumexp(0)  # the samples are not averaged

    def predictive(self, q, query_x):
        return self.Wrong(super().predictive(q, query_x).components)


@caught_by("probabilities")
class OneClassTooMany(Predictive):
    handles = ("classification",)

    def outputs(self, q, query_x):
        return nn.functional.pad(super().outputs(q, query_x), (0, 1))


@caught_by("posterior")
class TaskIsNotTheFirstDimension(Predictive):
    def amortize(self, support):
        q = super().amortize(support)
        return dataclasses.replace(q, psi=Normal(q.psi.mean.mT.mT[None], q.psi.stddev[None], validate_args=False))

    def predictive(self, q, query_x):
        psi = Normal(q.psi.mean[0], q.psi.stddev[0], validate_args=False)
        return super().predictive(dataclasses.replace(q, psi=psi), query_x)


@caught_by("shapes")
class PointBeforeTask(Predictive):
    def outputs(self, q, query_x):
        return super().outputs(q, query_x).transpose(1, 2)


# the support set


@caught_by("support_counts")
class SupportPointDropped(Predictive):
    def summary(self, features, support):
        return super().summary(features[:, 1:], Labeled(support.x[:, 1:], support.y[:, 1:], support.way))


@caught_by("support_order")
class LaterPointsWeighMore(Predictive):
    def summary(self, features, support):
        return super().summary(features * torch.linspace(0.5, 1.5, features.shape[1]).to(features)[:, None], support)


@caught_by("unequal_shots")
class ShotsByReshape(Predictive):
    handles = ("classification",)

    def summary(self, features, support):
        order = support.y.argsort(1, stable=True)
        return features[torch.arange(support.tasks)[:, None], order].unflatten(1, (support.way, -1)).mean(2)


@caught_by("class_relabeling")
class FirstClassIsSpecial(Predictive):
    def outputs(self, q, query_x):
        return super().outputs(q, query_x) + torch.eye(q.psi.mean.shape[1]).to(query_x)[0]


@caught_by("class_relabeling")
class ClassesByNumber(Predictive):
    """The noise of a class is that of its label."""

    def by_rank(self, noise, psi):
        return noise


@caught_by("way_and_shot")
class WayOfTrainingOnly(Predictive):
    handles = ("classification",)

    def outputs(self, q, query_x):
        return super().outputs(q, query_x)[..., : self.problem.way]


# tasks and queries that see each other


@caught_by("batch_of_tasks")
class LossOfAllTasks(MetaLSTM):
    def amortize(self, support):
        own = self.network.losses

        def losses(*args):
            found, statistics = own(*args)
            return found + (found.mean() - found).detach(), statistics

        self.network.losses = losses
        try:
            return super().amortize(support)
        finally:
            del self.network.losses


@caught_by("batch_of_tasks")
class StatisticsAveragedOverTheBatch(Predictive):
    def features(self, x, statistics=None):
        features, statistics = super().features(x, statistics)
        return features, tuple(
            Moments(m.mean.mean(0, keepdim=True).expand_as(m.mean), m.variance, m.images) for m in statistics
        )


@caught_by("batch_of_tasks")
class TaskLeaksIntoTheNext(Predictive):
    def summary(self, features, support):
        summary = super().summary(features, support)
        return summary + 0.01 * summary.roll(1, 0)


@caught_by("queries_independent")
class QueriesNormalisedByQueries(Predictive):
    def outputs(self, q, query_x):
        return super().outputs(dataclasses.replace(q, norm_statistics=None), query_x)


@caught_by("queries_independent")
class SecondHalfOfTheQueriesIgnored(Predictive):
    def outputs(self, q, query_x):
        half = query_x[:, : (query_x.shape[1] + 1) // 2]
        return super().outputs(q, torch.cat([half, half], 1)[:, : query_x.shape[1]])


@caught_by("query_order")
class QueriesSeeThoseBefore(Predictive):
    """As a causal sequence model does, where queries may see each other."""

    def features(self, x, statistics=None):
        features, own = super().features(x, statistics)
        if statistics is not None and self.problem.norm == "transductive":
            features = features.cumsum(1) / torch.arange(1, x.shape[1] + 1).to(features)[:, None]
        return features, own


@caught_by("query_order")
class QueriesClassifiedByPosition(Predictive):
    handles = ("classification",)

    def outputs(self, q, query_x):
        outputs = super().outputs(q, query_x)
        if self.training or self.problem.norm != "transductive":
            return outputs
        points, way = outputs.shape[-2:]
        return outputs + 9 * nn.functional.one_hot(torch.arange(points) * way // points, way).to(outputs)


@caught_by("query_order")
class NoiseOfEachPosition(Predictive):
    """Fixed samples that are other ones for every query."""

    def noise(self, shape):
        generator = torch.Generator().manual_seed(0)
        half = torch.randn(-(-shape[0] // 2), 1, *shape[2:], generator=generator, dtype=torch.float64)
        return super().noise(shape) if self.training else torch.cat([half, -half])[: shape[0]]

    def by_rank(self, noise, psi):  # of no place in the task, but of the query's
        return noise


# noise and state


@caught_by("training_noise")
class NumpyNoise(Predictive):
    def noise(self, shape):
        return torch.from_numpy(np.random.standard_normal(shape)) if self.training else super().noise(shape)  # noqa: NPY002


@caught_by("training_noise")
class UnseededNoise(Predictive):
    def noise(self, shape):
        rng = np.random.default_rng()
        return torch.from_numpy(rng.standard_normal(shape)) if self.training else super().noise(shape)


@caught_by("training_noise")
class GlobalRandomIsDrawnFrom(Predictive):
    def loss(self, batch):
        random.random()
        return super().loss(batch)


@caught_by("evaluation_fixed")
class NoiseInEvaluation(Predictive):
    def noise(self, shape):
        return torch.randn(shape, dtype=torch.float64)


@caught_by("evaluation_keeps_state")
class SupportStoredOnTheModule(Predictive):
    def amortize(self, support):
        self.stored = super().amortize(support)
        return self.stored

    def predictive(self, q, query_x):
        return super().predictive(self.stored, query_x)


@caught_by("evaluation_keeps_state")
class TasksKeptInAList(Predictive):
    def __init__(self, problem, settings):
        super().__init__(problem, settings)
        self.seen = []

    def amortize(self, support):
        self.seen.append(support)
        return super().amortize(support)


@caught_by("evaluation_keeps_state")
class BufferUpdatedInEvaluation(Predictive):
    def __init__(self, problem, settings):
        super().__init__(problem, settings)
        self.register_buffer("seen", torch.zeros(()))

    def amortize(self, support):
        self.seen += support.tasks
        return super().amortize(support)


@caught_by("evaluation_keeps_state")
class SeedSetInEvaluation(Predictive):
    def noise(self, shape):
        if not self.training:
            torch.manual_seed(0)
        return super().noise(shape)


@caught_by("evaluation_keeps_state")
class DefaultDtypeChanged(Predictive):
    def predictive(self, q, query_x):
        if not self.training:
            torch.set_default_dtype(torch.float64 if self.problem.way else torch.float32)
        return super().predictive(q, query_x)


def leaves(change: Callable[[], object]) -> type[Method]:
    """A method whose loss changes something of the process."""

    class Leaves(Predictive):
        def loss(self, batch):
            change()
            return super().loss(batch)

    return Leaves


def wrap(owner: object, name: str) -> None:
    """Replace a function by one that does the same."""
    honest = getattr(owner, name)
    setattr(owner, name, lambda *values, **named: honest(*values, **named))


LEFT: dict[str, Callable[[], object]] = {
    "ThreadsChanged": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "DtypeLeft": lambda: torch.set_default_dtype(torch.float64),
    "PrecisionLeft": lambda: torch.set_float32_matmul_precision("medium"),
    "RecursionLimitSet": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "HandlerSet": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "UmaskSet": lambda: os.umask(0o027),
    "FolderChanged": lambda: os.chdir("/"),
    "VariableSet": lambda: os.environ.update(OMP_NUM_THREADS="3"),
    "FunctionOfTorchReplaced": lambda: wrap(nn.functional, "relu"),
    "OtherMethodReplaced": lambda: wrap(Versa, "predictive"),
    "TensorsFunctionHidden": lambda: wrap(Tensor, "mean"),
}
for _name, _change in LEFT.items():
    _mutation = leaves(_change)
    _mutation.__name__ = _name
    caught_by("process_state")(_mutation)


@caught_by("state_round_trip")
class BuiltOnlyOnce(Predictive):
    built = 0

    def __init__(self, problem, settings):
        super().__init__(problem, settings)
        type(self).built += 1
        if type(self).built % 3 == 0:  # interface builds one, the case another, and then a fresh one is wanted
            raise RuntimeError("the device is taken")


@caught_by("evaluation_without_graph")
class GraphInEvaluation(Predictive):
    def predictive(self, q, query_x):
        with torch.enable_grad():
            return super().predictive(q, query_x)


@caught_by("evaluation_without_graph")
class AutogradNeededInEvaluation(Predictive):
    def amortize(self, support):
        q = super().amortize(support)
        (slope,) = torch.autograd.grad(q.psi.mean.sum(), [self.to_mean.bias], retain_graph=True)
        return dataclasses.replace(q, psi=Normal(q.psi.mean - slope, q.psi.stddev, validate_args=False))


@caught_by("state_round_trip")
class StateOutsideTheStateDict(Predictive):
    def __init__(self, problem, settings):
        super().__init__(problem, settings)
        self.factor = torch.rand(())

    def outputs(self, q, query_x):
        return super().outputs(q, query_x) * self.factor


@caught_by("state_round_trip")
class StateThatIsNoTensor(Predictive):
    def get_extra_state(self):
        return self.problem

    def set_extra_state(self, state):
        self.problem = state


# the inputs


@caught_by("inputs_unchanged")
class SupportShiftedInPlace(Predictive):
    def amortize(self, support):
        support.x.sub_(0.1)
        return super().amortize(support)


@caught_by("inputs_unchanged")
class QueriesScaledInPlace(Predictive):
    def predictive(self, q, query_x):
        return super().predictive(q, query_x.mul_(0.5))


@caught_by("inputs_unchanged")
class NoiseAddedInPlaceInTraining(Predictive):
    def loss(self, batch):
        batch.query.x.add_(torch.randn_like(batch.query.x))
        return super().loss(batch)


@caught_by("inputs_unchanged")
class TargetsCenterdInPlace(Predictive):
    handles = ("regression",)

    def loss(self, batch):
        batch.support.y.sub_(batch.support.y.mean())
        return super().loss(batch)


# the class


@caught_by("interface")
class PresetOfAnUnknownField(Predictive):
    presets = {"quick": {"*": {"nofield": 3}}}  # noqa: RUF012


@caught_by("interface")
class NoDefault(Predictive):
    @dataclass(frozen=True)
    class Settings:
        rate: float


@caught_by("interface")
class RaisesWhenBuilt(Predictive):
    def __init__(self, problem, settings):
        raise RuntimeError("not today")


@caught_by("shapes")
class Raises(Predictive):
    def amortize(self, support):
        raise KeyError("missing")


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught_by_the_check_that_names_it(name):
    mutation, check = MUTATIONS[name]
    dtype = torch.get_default_dtype()
    (result,) = check_method(mutation, [check])
    assert result.status == "failed", result
    assert result.detail
    assert torch.get_default_dtype() == dtype


def test_every_check_finds_a_fault():
    assert {check for _, check in MUTATIONS.values()} == set(CHECKS)

"""The neural statistician against a linear-Gaussian model of sets, whose posteriors and evidence are known."""

import functools
import itertools
import math

import pytest
import torch
from mlpip_bench.methods.neural_statistician import NeuralStatistician, NeuralStatisticianSettings
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.nn import functional as F

from builders import backbone, make_batch, make_method
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.testing.cases import Case
from mlpip_bench.testing.conformance import CHECKS

# The toy: c ~ N(0, I), z ~ N(a c, I) and x ~ N(w c + v z, s^2 I), each coordinate by itself.
A, W, V, S = torch.tensor([[0.5, -0.3, 0.2], [1.0, -2.0, 0.5], [0.7, 0.4, -1.0], [0.6, 0.6, 0.6]], dtype=torch.float64)
D = len(A)
MIXED = W + V * A  # x = MIXED c + noise of variance SPREAD
SPREAD = V**2 + S**2
SHOTS, QUERIES = 2, 3


class Fixed(nn.Module):
    """A network that is a formula."""

    def __init__(self, formula):
        super().__init__()
        self.formula = formula

    def forward(self, inputs: Tensor) -> Tensor:
        return self.formula(inputs)


def outputs(mean: Tensor, variance: Tensor) -> Tensor:
    return torch.cat([mean, variance.log().expand_as(mean)], -1)


def exact_context(mean_x: Tensor, images: int) -> Normal:
    precision = 1 + images * MIXED**2 / SPREAD
    return Normal(images * MIXED * mean_x / SPREAD / precision, precision.rsqrt())


def exact_latent(x: Tensor, c: Tensor) -> Normal:
    precision = 1 + V**2 / S**2
    return Normal((A * c + V * (x - W * c) / S**2) / precision, precision.rsqrt())


def toy(
    context=lambda mean_x, images: exact_context(mean_x, images),
    latent=exact_latent,
    *,
    images: int,
    **settings: object,
):
    """The method with the toy's networks; q(c | D) and q(z | x, c) may be others than the exact ones."""
    spec = backbone("identity", (D, 1, 1))
    method = make_method("neural_statistician", spec=spec, context=D, latent=D, **settings).double()

    def statistic(mean_x: Tensor) -> Tensor:
        q = context(mean_x, images)
        return outputs(q.mean, q.variance)

    def latent_posterior(features_and_context: Tensor) -> Tensor:
        q = latent(*features_and_context.chunk(2, -1))
        return outputs(q.mean, q.variance)

    def decoder(latent_and_context: Tensor) -> Tensor:
        z, c = latent_and_context.chunk(2, -1)
        return (W * c + V * z)[..., None, None]

    method.statistic, method.latent_posterior = Fixed(statistic), Fixed(latent_posterior)
    method.latent_prior, method.decoder = Fixed(lambda c: outputs(A * c, torch.ones_like(A))), Fixed(decoder)
    with torch.no_grad():
        assert (S[0] == S).all()
        method.log_std.fill_(S[0].log())
    return method


def sets(tasks: int, way: int = 2) -> tuple[TaskBatch, Tensor]:
    """The same task many times, each with noise of its own in training; and its images ``[way, image, D]``."""
    generator = torch.Generator().manual_seed(0)
    c = torch.randn(way, 1, D, generator=generator, dtype=torch.float64)
    images = MIXED * c + SPREAD.sqrt() * torch.randn(way, SHOTS + QUERIES, D, generator=generator, dtype=torch.float64)

    def labeled(part: Tensor) -> Labeled:
        y = torch.arange(way).repeat_interleave(part.shape[1])
        return Labeled(part.reshape(1, -1, D, 1, 1).expand(tasks, -1, -1, -1, -1), y.expand(tasks, -1), way)

    return TaskBatch(labeled(images[:, :SHOTS]), labeled(images[:, SHOTS:])), images


def log_evidence(images: Tensor) -> Tensor:
    """Of each set ``[set, image, D]``, coordinates being independent."""
    n = images.shape[1]
    covariance = MIXED[:, None, None] ** 2 + SPREAD[:, None, None] * torch.eye(n, dtype=torch.float64)
    return MultivariateNormal(torch.zeros(D, n, dtype=torch.float64), covariance).log_prob(images.mT).sum(-1)


def bound(method, tasks: int = 20_000) -> tuple[float, float]:
    """Nats per task by many draws of the training noise, and the standard error of that."""
    batch, images = sets(tasks // 10)
    torch.manual_seed(0)
    with torch.no_grad():
        values = [-float(method.loss(batch)) * images.shape[0] * images.shape[1] for _ in range(10)]
    draws = torch.tensor(values)
    return float(draws.mean()), float(draws.std()) / math.sqrt(len(values))


def test_the_bound_is_the_evidence_at_the_exact_posteriors():
    value, error = bound(toy(images=SHOTS + QUERIES))
    exact = float(log_evidence(sets(1)[1]).sum())
    assert error < 0.05
    assert value == pytest.approx(exact, abs=4 * error)


def shifted(q: Normal) -> Normal:
    return Normal(q.mean + 0.5, 1.4 * q.stddev)


def test_elsewhere_it_is_lower_by_the_divergence_of_q_from_the_posterior():
    _, images = sets(1)
    exact, posterior = float(log_evidence(images).sum()), exact_context(images.mean(1), SHOTS + QUERIES)
    gap = float(kl_divergence(shifted(posterior), posterior).sum())
    assert gap > 1
    value, error = bound(toy(lambda *given: shifted(exact_context(*given)), images=SHOTS + QUERIES))
    assert value == pytest.approx(exact - gap, abs=4 * error + 0.01)
    # That of z is the same whatever x and c are, for each image of each class.
    one = exact_latent(images[0, 0], posterior.mean[0])
    gap = float(kl_divergence(shifted(one), one).sum()) * images.shape[0] * images.shape[1]
    value, error = bound(toy(latent=lambda *given: shifted(exact_latent(*given)), images=SHOTS + QUERIES))
    assert value == pytest.approx(exact - gap, abs=4 * error + 0.01)


def test_classification_by_likelihood_is_bayes_rule_with_the_exact_predictive_densities():
    batch, images = sets(1)
    method = toy(images=SHOTS, classify="likelihood", eval_samples=2**10).eval()
    with torch.no_grad():
        probs = method.predictive(method.amortize(batch.support), batch.query.x).probs[0]
    posterior = exact_context(images[:, :SHOTS].mean(1), SHOTS)
    density = Normal(MIXED * posterior.mean, (MIXED**2 * posterior.variance + SPREAD).sqrt())
    queries = batch.query.x.flatten(2)[0].unsqueeze(1)
    torch.testing.assert_close(probs, density.log_prob(queries).sum(-1).softmax(-1), atol=0.01, rtol=0)


@pytest.mark.parametrize("norm", ["metabn", "layer"])
@pytest.mark.parametrize("classify", ["kl", "kl_reversed"])
def test_a_query_belongs_to_the_class_whose_context_is_nearest_to_its_own(classify, norm):
    method, batch = (
        make_method("neural_statistician", norm, classify=classify, context=6).double().eval(),
        make_batch(2),
    )
    with torch.no_grad():
        q = method.amortize(batch.support)
        logits = method.predictive(q, batch.query.x).logits
        for t, m in itertools.product(range(2), range(12)):
            features, _ = method.backbone(batch.query.x[t : t + 1, m : m + 1], tuple(one(t, q.norm_statistics)))
            mean, log_variance = method.statistic(features[0, 0]).chunk(2)
            alone = Normal(mean, (log_variance / 2).exp())
            classes = [Normal(q.psi.mean[t, c], q.psi.stddev[t, c]) for c in range(3)]
            pairs = [(k, alone) if classify == "kl" else (alone, k) for k in classes]
            scores = torch.stack([-kl_divergence(*pair).sum() for pair in pairs])
            torch.testing.assert_close(logits[t, m], scores.log_softmax(0))


def one(task: int, statistics):
    return (type(m)(m.mean[task : task + 1], m.variance[task : task + 1], m.images) for m in statistics)


def test_the_two_directions_differ_and_equal_contexts_leave_classes_equally_likely():
    batch = make_batch(2)
    answers = []
    for classify in ("kl", "kl_reversed"):
        method = make_method("neural_statistician", classify=classify).double().eval()
        with torch.no_grad():
            answers.append(method.predictive(method.amortize(batch.support), batch.query.x).probs)
            for parameter in method.statistic.parameters():
                parameter.zero_()
            uniform = method.predictive(method.amortize(batch.support), batch.query.x).probs
        torch.testing.assert_close(uniform, torch.full_like(uniform, 1 / 3))
    assert not torch.allclose(*answers)


def test_a_context_is_inferred_from_the_images_of_its_class_alone():
    method, batch = make_method("neural_statistician", "layer").double().eval(), make_batch(1)
    changed = batch.support.x.clone()
    changed[:, batch.support.y[0] == 1] += 0.5
    with torch.no_grad():
        before, after = (method.amortize(Labeled(x, batch.support.y, 3)).psi for x in (batch.support.x, changed))
    torch.testing.assert_close(after.mean[:, [0, 2]], before.mean[:, [0, 2]])
    assert not torch.allclose(after.mean[:, 1], before.mean[:, 1])


def test_the_loss_on_images_of_one_channel_is_that_of_bernoulli_pixels_written_out():
    method, batch, seen = make_method("neural_statistician", context=6).double(), make_batch(2), {}
    for name in ("statistic", "latent_posterior", "latent_prior", "decoder"):
        getattr(method, name).register_forward_hook(lambda _m, _given, made, name=name: seen.update({name: made}))
    batch = TaskBatch(*(Labeled(part.x.clamp(0, 1), part.y, part.way) for part in (batch.support, batch.query)))
    with torch.no_grad():
        loss, total = method.loss(batch).item(), 0.0
    for t, i in itertools.product(range(2), range(18)):
        z, prior = (Normal(*halves(seen[name][t, i])) for name in ("latent_posterior", "latent_prior"))
        total += float(kl_divergence(z, prior).sum())
        total += float(F.binary_cross_entropy_with_logits(seen["decoder"][t, i], batch.merged.x[t, i], reduction="sum"))
    for t, k in itertools.product(range(2), range(3)):
        q = Normal(*halves(seen["statistic"][t, k]))
        total += float(kl_divergence(q, Normal(torch.zeros_like(q.mean), 1.0)).sum())
    assert loss == pytest.approx(total / 36)


def test_gray_pixels_have_the_mean_loss_over_pixels_that_are_drawn():
    method = make_method("neural_statistician", spec=backbone("mlp", (1, 2, 2), features=4)).double()
    for parameter in method.backbone.parameters():
        nn.init.zeros_(parameter)  # networks see the gray image in any case
    gray = torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.float64).view(1, 1, 1, 2, 2)
    y = torch.zeros(1, 1, dtype=torch.long)

    def loss(query: Tensor) -> float:
        torch.manual_seed(0)
        return method.loss(TaskBatch(Labeled(torch.ones_like(gray), y, 1), Labeled(query, y, 1))).item()

    mean = 0.0
    for values in itertools.product((0.0, 1.0), repeat=4):
        drawn = torch.tensor(values, dtype=torch.float64).view_as(gray)
        mean += float((gray * drawn + (1 - gray) * (1 - drawn)).prod()) * loss(drawn)
    assert loss(gray) == pytest.approx(mean)


def halves(outputs: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_variance = outputs.chunk(2, -1)
    return mean, (log_variance / 2).exp()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 84, 84)])
def test_images_of_the_suites_sizes_are_decoded(shape):
    method = make_method("neural_statistician", spec=backbone("conv4", shape, blocks=4, channels=2)).double()
    batch = make_batch(1, 2, 1, 1, shape=shape)
    method.loss(batch).backward()
    for name, parameter in method.named_parameters():
        assert parameter.grad.any(), name
    assert (method.log_std is None) == (shape[0] == 1)


def test_classification_by_likelihood_keeps_the_promises_of_methods():
    class ByLikelihood(NeuralStatistician):
        Settings = functools.partial(NeuralStatisticianSettings, classify="likelihood", eval_samples=2)

    checks = "shapes", "batch_of_tasks", "queries_independent", "class_relabeling", "way_and_shot", "evaluation_fixed"
    case = Case(ByLikelihood, "classification")
    assert case.method().settings.classify == "likelihood"
    for name in checks:
        CHECKS[name].run(case)


@pytest.mark.parametrize("wrong", [{"context": 0}, {"latent": 0}, {"eval_samples": 0}, {"classify": "nearest"}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="; got"):
        NeuralStatisticianSettings(**wrong)

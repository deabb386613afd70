"""The point-estimate relatives of section 4, each against its formula written out."""

import math

import pytest
import torch
from mlpip_bench.methods.amortized_map import AmortizedMAPSettings
from mlpip_bench.methods.matching_nets import MatchingNetsSettings
from mlpip_bench.methods.meta_sgd import MetaSGDSettings
from torch.nn import functional as F

from builders import backbone
from mlpip_bench import registry
from mlpip_bench.inference.method import Problem
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.testing.cases import Case

SPEC = backbone("conv4", (1, 8, 8), blocks=2, channels=4)


def batch(way: int = 3) -> TaskBatch:
    return Case(registry.method("protonets"), "classification").batch(tasks=2, way=way, queries=4)


def make(name: str, norm: str = "metabn", way: int = 3, **settings: object):
    torch.manual_seed(0)
    plugin = registry.method(name)
    method = plugin(Problem(SPEC, norm, way), plugin.Settings(**settings)).double()
    with torch.no_grad():
        for parameter in method.parameters():  # a point where nothing is zero by initialization
            parameter += 0.05 * torch.randn_like(parameter)
    return method


def features(method, tasks: TaskBatch) -> tuple[torch.Tensor, torch.Tensor]:
    support, statistics = method.backbone(tasks.support.x)
    return support, method.backbone(tasks.query.x, statistics)[0]


def gradients(method) -> list[torch.Tensor]:
    return [p.grad for p in method.parameters()]


# Amortized MAP


def test_amortised_map_is_a_linear_classifier_from_class_means():
    method, tasks = make("amortized_map").eval(), batch()
    support, query = features(method, tasks)
    probs = method.predictive(method.amortize(tasks.support), tasks.query.x).probs
    for t in range(2):
        means = torch.stack([support[t, tasks.support.y[t] == c].mean(0) for c in range(3)])
        logits = torch.stack([query[t] @ method.weight(m) + method.bias(m) for m in means], -1)
        torch.testing.assert_close(probs[t], logits.softmax(-1))


def test_amortised_map_adds_the_priors_log_density_once_a_task_per_point_of_d():
    tasks = batch()
    with_prior, without = (make("amortized_map", prior_std=std) for std in (2.0, math.inf))
    psi = with_prior.amortize(tasks.support).psi.mean
    # -log N(psi; 0, 4 I) without its constant, over 6 support points, averaged over tasks.
    penalty = sum(float(p.square().sum().detach()) / (2 * 4) for p in psi) / 2 / 6
    difference = with_prior.loss(tasks) - without.loss(tasks)
    assert float(difference.detach()) == pytest.approx(penalty)


# Conditional models


def test_a_conditional_neural_process_scores_each_class_by_its_own_summary_and_the_mean_of_all():
    method, tasks = make("cnp").eval(), batch()
    support, query = features(method, tasks)
    logits = method.predictive(method.amortize(tasks.support), tasks.query.x).logits
    for t in range(2):
        r = [method.encoder(support[t, tasks.support.y[t] == c]).mean(0) for c in range(3)]
        everything = sum(r) / 3
        for m in range(12):
            scores = torch.cat([method.decoder(torch.cat([query[t, m], r[c], everything])) for c in range(3)])
            torch.testing.assert_close(logits[t, m], scores.log_softmax(0))


def test_a_relation_network_scores_pairs_of_class_mean_and_query():
    method, tasks = make("relation_nets").eval(), batch()
    support, query = features(method, tasks)
    logits = method.predictive(method.amortize(tasks.support), tasks.query.x).logits
    for t in range(2):
        means = [support[t, tasks.support.y[t] == c].mean(0) for c in range(3)]
        for m in range(12):
            scores = torch.cat([method.relation(torch.cat([mean, query[t, m]])) for mean in means])
            torch.testing.assert_close(logits[t, m], scores.log_softmax(0))


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_matching_networks_vote_with_a_softmax_of_cosines(scale):
    method, tasks = make("matching_nets", scale=scale).eval(), batch()
    support, query = features(method, tasks)
    probs = method.predictive(method.amortize(tasks.support), tasks.query.x).probs
    for t in range(2):
        for m in range(12):
            cosines = F.cosine_similarity(support[t], query[t, m].unsqueeze(0))
            attention = (scale * cosines).softmax(0)
            votes = [attention[tasks.support.y[t] == c].sum() for c in range(3)]
            torch.testing.assert_close(probs[t, m], torch.stack(votes))


# Gradient-based


def test_first_order_maml_is_maml_without_second_derivatives():
    tasks, results = batch(), []
    for name, settings in (("fomaml", {}), ("maml", {"first_order": True}), ("maml", {})):
        method = make(name, train_steps=3, **settings)
        loss = method.loss(tasks)
        loss.backward()
        results.append((loss.detach(), gradients(method)))
    for value, theirs in results[1:]:
        torch.testing.assert_close(results[0][0], value)
        same = all(torch.allclose(a, b) for a, b in zip(results[0][1], theirs, strict=True))
        assert same == (theirs is results[1][1])


def test_meta_sgd_with_equal_rates_is_maml_and_learns_its_rates():
    tasks = batch()
    meta_sgd, maml = make("meta_sgd"), make("maml", inner_rate=0.3)
    maml.load_state_dict({k: v for k, v in meta_sgd.state_dict().items() if k.startswith("network.")})
    with torch.no_grad():
        for rate in meta_sgd.rates:
            rate.fill_(0.3)
    losses = [method.loss(tasks) for method in (meta_sgd, maml)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for a, b in zip(meta_sgd.network.parameters(), maml.network.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    # d loss / d rate, all rates moved together, is that of the one rate of MAML.
    step, moved = 1e-5, []
    for rate in (0.3 - step, 0.3 + step):
        maml.settings = registry.method("maml").Settings(inner_rate=rate)
        moved.append(maml.loss(tasks).item())
    total = sum(float(rate.grad.sum()) for rate in meta_sgd.rates)
    assert total == pytest.approx((moved[1] - moved[0]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("way", [2, 3, 5])
def test_meta_sgd_moves_each_parameter_by_its_own_rate(way):
    method, tasks = make("meta_sgd").eval(), batch(way=way)
    names = [n for n, _ in method.network.named_parameters()]
    start = method.network.for_way(dict(method.network.named_parameters()), way)
    psi = method.network.unflatten(method.amortize(tasks.support).psi.mean[0])
    doubled = make("meta_sgd").eval()
    doubled.load_state_dict(method.state_dict())
    chosen = names.index("backbone.blocks.0.conv.weight")
    with torch.no_grad():
        doubled.rates[chosen] *= 2
    other = method.network.unflatten(doubled.amortize(tasks.support).psi.mean[0])
    for name in names:
        factor = 2 if name == names[chosen] else 1
        torch.testing.assert_close(other[name] - start[name], factor * (psi[name] - start[name]))


def test_reptile_moves_toward_the_parameters_that_steps_on_the_whole_task_reach():
    method, tasks = make("reptile", train_steps=3), batch()
    loss = method.loss(tasks)
    loss.backward()
    everything = Labeled(
        torch.cat([tasks.support.x, tasks.query.x], 1), torch.cat([tasks.support.y, tasks.query.y], 1), 3
    )
    with torch.no_grad():
        q = method.amortize(everything)
        log_loss = -method.predictive(q, tasks.query.x).log_prob(tasks.query.y).mean()
    torch.testing.assert_close(loss.detach(), log_loss)
    reached = [method.network.unflatten(psi) for psi in q.psi.mean]
    for name, parameter in method.network.named_parameters():
        torch.testing.assert_close(parameter.grad, parameter.detach() - (reached[0][name] + reached[1][name]) / 2)


@pytest.mark.parametrize("steps", [1, 3])
def test_anil_descends_on_the_head_alone_with_the_gradient_of_softmax_regression(steps):
    method, tasks = make("anil", test_steps=steps, inner_rate=0.4).eval(), batch()
    support, _ = features(method, tasks)
    with torch.no_grad():
        psi = method.amortize(tasks.support).psi.mean
        for t in range(2):
            phi, head = F.pad(support[t], (0, 1), value=1.0), method.head.clone()
            for _ in range(steps):
                error = (phi @ head.mT).softmax(-1) - F.one_hot(tasks.support.y[t], 3)
                head = head - 0.4 * error.mT @ phi / 6
            torch.testing.assert_close(psi[t], head)


def test_anil_differentiates_through_its_steps():
    method, tasks, step = make("anil", train_steps=2, inner_rate=0.3), batch(), 1e-6
    method.loss(tasks).backward()
    for parameter in (method.head, method.backbone.blocks[0].conv.weight):
        index = (0,) * parameter.dim()
        values = []
        for move in (step, -2 * step):
            with torch.no_grad():
                parameter[index] += move
            values.append(method.loss(tasks).item())
        assert float(parameter.grad[index]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (AmortizedMAPSettings, {"prior_std": 0.0}),
        (MatchingNetsSettings, {"scale": -1.0}),
        (MetaSGDSettings, {"inner_rate": 0.0}),
        (MetaSGDSettings, {"train_steps": -1}),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, wrong):
    with pytest.raises(ValueError, match="got"):
        settings(**wrong)

"""Bayesian MAML against ANIL and MAML, steps written out in loops, and a posterior in closed form."""

import math

import pytest
import torch
from mlpip_bench.methods.bmaml import BMAMLSettings
from torch.nn import functional as F

from builders import SMALL, backbone, linear_problem, linear_stream, make_batch, make_method
from mlpip_bench import registry
from mlpip_bench.inference import gradient_steps
from mlpip_bench.inference.method import Problem
from mlpip_bench.tasks.batch import Labeled, TaskBatch

STEPS = {"train_steps": 3, "test_steps": 3, "inner_rate": (0.3, 0.2)}
KINDS = ["head", "all"]


def make(norm: str = "metabn", **settings: object):
    """With parameters at a point where nothing is zero by initialization."""
    method = make_method("bmaml", norm, **(STEPS | settings)).double()
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return method


def batch(tasks: int = 2, **shape: int) -> TaskBatch:
    torch.manual_seed(1)
    return make_batch(tasks, **shape)


def probs(method, tasks: TaskBatch) -> torch.Tensor:
    with torch.no_grad():
        return method.predictive(method.amortize(tasks.support), tasks.query.x).probs


def regression(name: str, **settings: object):
    """On a problem whose inputs are not the features, and with a learned variance."""
    torch.manual_seed(0)
    problem = Problem(backbone("mlp", (3, 1, 1), features=6), "layer", 1, "regression", 0.5)
    plugin = registry.method(name)
    return plugin(problem, plugin.Settings(**(STEPS | settings))).double()


# -- one particle ----------------------------------------------------------------------------------------------------


def of_ours(name: str) -> str:
    """What has a name in ANIL or MAML."""
    return name if name.startswith("likelihood") else f"model.{'heads' if name == 'head' else name}"


def paired(adapted: str, kind: str, norm: str):
    """One particle without a prior, and the method that it is, with the same parameters; and tasks."""
    torch.manual_seed(2)
    build = regression if kind == "regression" else lambda name, **s: make_method(name, norm, **(STEPS | s)).double()
    ours = build("bmaml", particles=1, prior_std=0.0, adapted=adapted)
    theirs = build({"head": "anil", "all": "maml"}[adapted])
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    ours.load_state_dict({of_ours(name): v[None] if name == "head" else v for name, v in theirs.state_dict().items()})
    torch.manual_seed(1)
    return ours, theirs, linear_stream(3, 5, 4).batch(0, 2) if kind == "regression" else make_batch(2)


def doubled(tasks: TaskBatch) -> TaskBatch:
    parts = (tasks.support, tasks.query)
    return TaskBatch(*(Labeled(p.x.double(), p.y.double() if p.y.is_floating_point() else p.y, p.way) for p in parts))


CASES = [("classification", "metabn"), ("classification", "running"), ("regression", "layer")]


@pytest.mark.parametrize(("kind", "norm"), CASES)
@pytest.mark.parametrize("adapted", KINDS)
def test_one_particle_without_a_prior_is_anil_or_maml(adapted, kind, norm):
    ours, theirs, tasks = paired(adapted, kind, norm)
    tasks = doubled(tasks)
    losses = [method.train().loss(tasks) for method in (ours, theirs)]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    for loss in losses:
        loss.backward()
    found = {name: p.grad for name, p in ours.named_parameters()}
    for name, p in theirs.named_parameters():
        torch.testing.assert_close(found[of_ours(name)].view_as(p), p.grad, rtol=1e-9, atol=1e-12, msg=name)
    with torch.no_grad():
        predictives = [m.eval().predictive(m.amortize(tasks.support), tasks.query.x) for m in (ours, theirs)]
    torch.testing.assert_close(*(p.log_prob(tasks.query.y) for p in predictives), rtol=1e-10, atol=1e-12)
    buffers = dict(ours.named_buffers())
    assert bool(buffers) == (norm == "running")
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(buffers[of_ours(name)], buffer, msg=name)


# -- several ---------------------------------------------------------------------------------------------------------


def step_by_hand(psi: torch.Tensor, slopes: torch.Tensor, rate: float, n: float, prior_std: float) -> torch.Tensor:
    """Their Eq. 1 with loops: psi [M, P], slopes of the sum of log p(y | x, psi)."""
    count = len(psi)
    pairs = torch.tensor([float((psi[i] - psi[j]).square().sum()) for i in range(count) for j in range(i)])
    h = pairs.double().quantile(0.5) / math.log(count)
    moved = torch.zeros_like(psi)
    for i in range(count):
        for j in range(count):
            k = math.exp(-float((psi[i] - psi[j]).square().sum()) / h)
            slope = slopes[j] - psi[j] / prior_std**2
            moved[i] += k * slope + 2 / h * (psi[i] - psi[j]) * k
    return psi + rate / (n * count) * moved


@pytest.mark.parametrize("particles", [2, 5])
def test_heads_move_by_their_equation_1(particles):
    method, tasks = make(particles=particles, prior_std=0.7).eval(), batch()
    with torch.no_grad():
        found = method.amortize(tasks.support).psi.values
        features, _ = method.model.backbone(tasks.support.x)
    for t in range(2):
        psi = method.model.heads.detach()
        for rate in (0.3, 0.2, 0.2):
            each = psi.clone().requires_grad_()
            logits = torch.einsum("pf,mcf->mpc", features[t], each[..., :-1]) + each[..., -1].unsqueeze(1)
            log_p = -sum(F.cross_entropy(logits[m], tasks.support.y[t], reduction="sum") for m in range(particles))
            (slopes,) = torch.autograd.grad(log_p, each)
            psi = step_by_hand(psi.flatten(1), slopes.flatten(1), rate, 6, 0.7).view(psi.shape)
        torch.testing.assert_close(found[t], psi, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("norm", ["metabn", "layer"])
def test_networks_move_by_their_equation_1(norm):
    method, tasks = make(norm, adapted="all", particles=3, prior_std=0.7).eval(), batch()
    with torch.no_grad():
        found = method.amortize(tasks.support).psi.values
    network = method.model.network
    for t in range(2):
        psi, support = method.model.start(1, 3)[0].detach(), tasks.support.task(t)
        for rate in (0.3, 0.2, 0.2):
            slopes = []
            for m in range(3):
                one = psi[m : m + 1].clone().requires_grad_()
                loss = network.losses(network.unflatten(one), support)[0].sum()
                slopes.append(-6 * torch.autograd.grad(loss, one)[0][0])
            psi = step_by_hand(psi, torch.stack(slopes), rate, 6, 0.7)
        torch.testing.assert_close(found[t], psi, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("adapted", KINDS)
def test_particles_start_at_distinct_places(adapted):
    method = make_method("bmaml", adapted=adapted, particles=4)
    start = method.model.start(2, 3).flatten(2)
    assert start.shape[:2] == (2, 4)
    assert torch.equal(start[0], start[1])
    distances = torch.cdist(start[0], start[0])
    assert (distances + torch.eye(4) > 0.05).all()


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_particles_of_a_task_are_adapted_together_whatever_fits_the_caches(at_once, monkeypatch):
    method, tasks = make(adapted="all", particles=3).eval(), batch(3)
    expected = torch.stack([probs(method, tasks.task(t))[0] for t in range(3)])
    monkeypatch.setattr(gradient_steps, "_tasks_at_once", lambda _: at_once)
    torch.testing.assert_close(probs(method, tasks), expected)


@pytest.mark.parametrize("adapted", KINDS)
def test_the_loss_is_at_most_the_mean_of_the_particles_losses(adapted):
    method, tasks = make(adapted=adapted), batch()
    loss, q = method.loss(tasks), method.amortize(tasks.support)
    log_p = method.predictive(q, tasks.query.x).components.log_prob(tasks.query.y)
    assert log_p.shape == (5, 2, 12)
    assert loss.item() == pytest.approx(-log_p.exp().mean(0).log().mean().item(), rel=1e-10)
    assert loss.item() < -log_p.mean().item()


def test_a_larger_way_starts_each_head_from_the_mean_of_its_own_rows():
    method = make(test_steps=0, inner_rate=0.1).eval()
    with torch.no_grad():
        values = method.amortize(batch(way=5).support).psi.values
        assert torch.equal(values[1, :, :3], method.model.heads)
        for further in (3, 4):
            torch.testing.assert_close(values[1, :, further], method.model.heads.mean(1))
        assert torch.equal(method.amortize(batch(way=2).support).psi.values[1], method.model.heads[:, :2])


def test_a_frozen_backbone_stays_and_is_that_of_all_particles(monkeypatch):
    build = Problem.build_backbone
    monkeypatch.setattr(Problem, "build_backbone", lambda problem: build(problem).requires_grad_(False))
    torch.manual_seed(0)
    method = registry.method("bmaml")(Problem(SMALL, "metabn", 3), BMAMLSettings(adapted="all")).double()
    with torch.no_grad():
        method.model.others[0].normal_(std=0.1)
    values = method.amortize(batch().support).psi.values
    body = method.model.network.backbone.parameters()
    frozen = torch.cat([p.flatten() for p in body])
    assert torch.equal(values[..., : len(frozen)], frozen.expand(2, 5, -1))
    assert (values[..., len(frozen) :].std(1) > 0).all()
    assert method.parameter_count == len(frozen) + 5 * (values.shape[-1] - len(frozen))


# -- regression ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior_std", [0.3, 2.0])
def test_many_steps_recover_the_posterior_of_the_mean_of_a_gaussian(prior_std):
    noise_std, problem = 0.5, linear_problem(0)
    torch.manual_seed(0)
    settings = BMAMLSettings(particles=30, prior_std=prior_std, test_steps=500, inner_rate=0.2)
    method = registry.method("bmaml")(problem, settings).double().eval()
    with torch.no_grad():
        method.likelihood.raw_std.fill_(-40.0)  # the noise alone
    support = doubled(linear_stream(0, 4, 1).batch(0, 3)).support
    with torch.no_grad():
        psi = method.amortize(support).psi
    precision = 4 / noise_std**2 + 1 / prior_std**2
    mean = support.y.sum(1) / noise_std**2 / precision
    assert ((psi.mean.flatten() - mean).abs() < 0.02 / math.sqrt(precision)).all()
    assert ((psi.variance.flatten() * precision).sqrt() - 1).abs().max() < 0.05


def test_the_likelihood_of_the_steps_is_that_of_the_predictive():
    method, tasks = (
        regression("bmaml", train_steps=1, inner_rate=0.1, prior_std=0.7),
        linear_stream(3, 5, 4).batch(0, 2),
    )
    tasks = doubled(tasks)
    with torch.no_grad():
        method.likelihood.raw_std.fill_(0.4)
        variance = 0.5**2 + math.log1p(math.exp(0.4)) ** 2
        psi = method.model.heads.flatten(1)
        features, _ = method.model.backbone(tasks.support.x)
        inputs = F.pad(features, (0, 1), value=1.0)
        found = method.amortize(tasks.support).psi.values
        for t in range(2):
            residuals = tasks.support.y[t] - psi @ inputs[t].mT  # [particle, point]
            slopes = residuals @ inputs[t] / variance
            expected = step_by_hand(psi, slopes, 0.1 * 2 * variance, 5, 0.7)
            torch.testing.assert_close(found[t].flatten(1), expected, rtol=1e-6, atol=1e-7)


# -- the chaser loss -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapted", KINDS)
def test_the_chaser_loss_is_0_where_the_leader_takes_no_steps(adapted):
    method = make(adapted=adapted, objective="chaser", leader_steps=0)
    assert method.loss(batch()).item() == 0
    assert make(adapted=adapted, objective="chaser").loss(batch()).item() > 1e-6


def leader_by_hand(method, tasks: TaskBatch, chaser: torch.Tensor) -> torch.Tensor:
    """Another model of the same parameters, but those of the chaser, adapted to all points."""
    with torch.no_grad():
        features, _ = method.model.backbone(tasks.merged.x)
    leader = []
    for t in range(len(chaser)):
        psi = chaser[t].detach()
        for _ in range(2):
            each = psi.clone().requires_grad_()
            logits = torch.einsum("pf,mcf->mpc", features[t], each[..., :-1]) + each[..., -1].unsqueeze(1)
            log_p = -sum(F.cross_entropy(one, tasks.merged.y[t], reduction="sum") for one in logits)
            (slopes,) = torch.autograd.grad(log_p, each)
            psi = step_by_hand(psi.flatten(1), slopes.flatten(1), 0.2, 18, 1.0).view(psi.shape)
        leader.append(psi)
    return torch.stack(leader)


def test_the_chaser_loss_is_the_squared_distance_to_the_leader_and_moves_the_chaser_alone():
    method, tasks = make(objective="chaser", leader_steps=2), batch()
    parameters = list(method.parameters())
    chaser = method.amortize(tasks.support).psi.values
    leader = leader_by_hand(method, tasks, chaser)
    expected = (chaser - leader).square().sum() / 2  # tasks
    loss = method.loss(tasks)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    # d/d theta of |a - b|^2 with b fixed: 2 (a - b) times the derivative of a.
    by_hand = torch.autograd.grad(chaser, parameters, grad_outputs=2 * (chaser - leader).detach() / 2)
    for found, wanted in zip(torch.autograd.grad(loss, parameters), by_hand, strict=True):
        assert wanted.any()
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-8)


def test_the_chaser_loss_of_networks_goes_on_from_the_chasers():
    method, tasks = make(adapted="all", objective="chaser", particles=2), batch()
    q = method.amortize(tasks.support)
    loss, network, expected = method.loss(tasks), method.model.network, 0.0
    for t in range(2):
        slopes = []
        for m in range(2):
            one = q.psi.values[t, m : m + 1].detach().requires_grad_()
            of_all = network.losses(network.unflatten(one), tasks.merged.task(t))[0].sum()
            slopes.append(-18 * torch.autograd.grad(of_all, one)[0][0])
        psi = q.psi.values[t].detach()
        expected += (psi - step_by_hand(psi, torch.stack(slopes), 0.2, 18, 1.0)).square().sum().item() / 2
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    for parameter, slope in zip(method.parameters(), torch.autograd.grad(loss, method.parameters()), strict=True):
        assert slope.shape == parameter.shape
        assert slope.isfinite().all()
    assert any(p.any() for p in torch.autograd.grad(method.loss(tasks), list(method.model.others)))


def test_the_variance_of_a_regression_learns_from_the_queries_and_not_from_the_chaser_loss():
    method, tasks = regression("bmaml", objective="chaser"), doubled(linear_stream(3, 5, 4).batch(0, 2))
    raw, body = method.likelihood.raw_std, method.model.backbone.parameters()
    loss = method.loss(tasks)
    assert loss.item() > 1e-6
    with torch.no_grad():
        outputs = method.model.outputs(method.amortize(tasks.support), tasks.query.x)
    components = method.likelihood.predictive(outputs.unflatten(0, (2, 5)).transpose(0, 1))
    log_p = components.log_prob(tasks.query.y).logsumexp(0) - math.log(5)
    (expected,) = torch.autograd.grad(-log_p.mean(), raw)
    found, *others = torch.autograd.grad(loss, [raw, *body])
    torch.testing.assert_close(found, expected)
    assert all(slope.any() for slope in others)
    assert regression("bmaml", objective="chaser", leader_steps=0).loss(tasks).item() == 0


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("particles", 0),
        ("adapted", "body"),
        ("objective", "elbo"),
        ("leader_steps", -1),
        ("prior_std", -1.0),
        ("prior_std", math.inf),
        ("prior_std", math.nan),
        ("inner_rate", 0.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(field, value):
    with pytest.raises(ValueError, match=field.replace("_rate", " rate")):
        BMAMLSettings(**{field: value})

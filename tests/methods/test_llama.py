"""LLAMA: curvature against autograd's Hessian, MAML where it has no weight, and the MAP estimate that steps imply."""

import math

import pytest
import torch
from mlpip_bench.methods.llama import LLAMASettings
from torch.distributions import Categorical, Normal
from torch.func import functional_call

from builders import in_float64, linear_problem, linear_stream, make_batch, make_method
from mlpip_bench import registry
from mlpip_bench.inference.curvature import head_log_det, output_root
from mlpip_bench.inference.distributions import linear_outputs
from mlpip_bench.tasks.batch import TaskBatch


def make(name: str = "llama", norm: str = "metabn", **settings: object):
    method = make_method(name, norm, **settings).double().train()
    with torch.no_grad():
        for parameter in method.parameters():  # a point where nothing is zero by initialization
            parameter += 0.1 * torch.randn_like(parameter)
    return method


def batch(tasks: int = 2) -> TaskBatch:
    torch.manual_seed(1)
    return make_batch(tasks)


def loss_and_gradients(method, tasks: TaskBatch) -> list[torch.Tensor]:
    loss = method.loss(tasks)
    return [loss.detach(), *torch.autograd.grad(loss, list(method.parameters()))]


def head_hessian(method, tasks: TaskBatch, task: int) -> torch.Tensor:
    """Of a task's summed query loss in weights and biases of the adapted network's head, by autograd."""
    q, way = method.amortize(tasks.support), method.problem.way
    parameters = {n: p.detach() for n, p in method.network.unflatten(q.psi.mean).items()}
    features, _ = functional_call(method.network, parameters, (tasks.query.x, q.norm_statistics), {"features": True})

    def loss(rows: torch.Tensor) -> torch.Tensor:
        outputs = linear_outputs(features[task : task + 1], rows.view(1, way, -1))
        return -method.likelihood.predictive(outputs).log_prob(tasks.query.y[task : task + 1]).sum()

    rows = torch.cat([parameters["head.weight"][task], parameters["head.bias"][task].unsqueeze(-1)], -1)
    return torch.autograd.functional.hessian(loss, rows.flatten()).detach()


# -- the objective ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_without_weight_it_is_maml(steps):
    ours, maml, tasks = make(logdet_weight=0.0, train_steps=steps), make("maml", train_steps=steps), batch()
    for own, theirs in zip(loss_and_gradients(ours, tasks), loss_and_gradients(maml, tasks), strict=True):
        assert torch.equal(own, theirs)


def test_predictions_are_those_of_maml_whatever_the_weight():
    ours, maml, tasks = make(logdet_weight=10.0).eval(), make("maml").eval(), batch()
    found = [m.predictive(m.amortize(tasks.support), tasks.query.x).logits for m in (ours, maml)]
    assert torch.equal(*found)


@pytest.mark.parametrize("norm", ["metabn", "layer", "transductive"])
def test_the_loss_is_that_of_maml_and_half_the_log_determinant_of_the_exact_hessian(norm):
    weight, tau, tasks = 0.3, 0.7, batch()
    method, maml = make(norm=norm, logdet_weight=weight, tau=tau), make("maml", norm)
    (support, queries), log_dets = (tasks.support.y.shape[1], tasks.query.y.shape[1]), []
    for task in range(2):
        curvature = support / queries * head_hessian(method, tasks, task)
        log_dets.append(torch.linalg.slogdet(curvature + tau * torch.eye(len(curvature), dtype=torch.float64))[1])
    expected = maml.loss(tasks) + weight / 2 * sum(log_dets) / 2
    torch.testing.assert_close(method.loss(tasks), expected, rtol=1e-12, atol=0)


def test_the_weight_moves_the_gradients_of_backbone_and_head():
    tasks = batch()
    for own, theirs in zip(
        loss_and_gradients(make(), tasks), loss_and_gradients(make(logdet_weight=0.0), tasks), strict=True
    ):
        assert not torch.allclose(own, theirs, rtol=1e-6, atol=0)


def test_in_regression_the_curvature_is_that_of_a_gaussian():
    weight, tau = 0.3, 0.7
    tasks = in_float64(linear_stream(3, 6, 9, "llama").batch(0, 2))
    method, maml = (
        registry.method(name)(linear_problem(3), registry.method(name).Settings(**settings)).double().train()
        for name, settings in (("llama", {"logdet_weight": weight, "tau": tau}), ("maml", {}))
    )
    log_dets = []
    for task in range(2):
        x = torch.cat([tasks.query.x[task].flatten(1), torch.ones(9, 1)], -1).double()
        variance = method.likelihood.predictive(torch.zeros(1, 1, 1).double()).variance.item()
        log_dets.append(torch.logdet(6 / 9 * x.mT @ x / variance + tau * torch.eye(4, dtype=torch.float64)))
        torch.testing.assert_close(head_hessian(method, tasks, task), (x.mT @ x / variance))
    expected = maml.loss(tasks) + weight / 2 * sum(log_dets) / 2
    torch.testing.assert_close(method.loss(tasks), expected)


@pytest.mark.parametrize("setting", [{"logdet_weight": -1.0}, {"logdet_weight": math.inf}, {"tau": 0.0}])
def test_settings_have_limits(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        LLAMASettings(**setting)


# -- steps as MAP ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_steps_on_a_linear_model_find_the_map_estimate_of_the_prior_that_they_imply(steps):
    """Q = O Lambda^-1 ((I - alpha Lambda)^-k - I) O', for 1/2 |y - X psi|^2 with X'X = O Lambda O' and rate alpha."""
    rate, shots = 0.05, 12
    tasks = in_float64(linear_stream(3, shots, 2, "llama").batch(0, 2))
    method = registry.method("llama")(linear_problem(3), LLAMASettings(inner_rate=rate, train_steps=steps)).double()
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += torch.randn_like(parameter)
    found = method.train().amortize(tasks.support).psi.mean
    start = method.network.flat(method.network.initial(1, 1))[0]
    for task in range(2):
        x = torch.cat([tasks.support.x[task].flatten(1), torch.ones(shots, 1).double()], -1)
        y, alpha = tasks.support.y[task], 2 * rate / shots  # the loss of steps is |y - X psi|^2 / n
        values, o = torch.linalg.eigh(x.mT @ x)
        assert (alpha * values < 1).all()
        q = o @ torch.diag(((1 - alpha * values) ** -steps - 1) / values) @ o.mT
        precision = torch.linalg.inv(q)
        expected = torch.linalg.solve(x.mT @ x + precision, x.mT @ y + precision @ start)
        torch.testing.assert_close(found[task], expected)


# -- curvature of the head -------------------------------------------------------------------------------------------


def test_the_root_is_that_of_the_hessian_in_the_outputs():
    outputs = torch.randn(1, 1, 4, dtype=torch.float64)
    root = output_root(Categorical(logits=outputs))[0, 0]
    hessian = torch.autograd.functional.hessian(
        lambda z: -Categorical(logits=z).log_prob(torch.tensor(2)), outputs[0, 0]
    )
    torch.testing.assert_close(root @ root.mT, hessian)
    root = output_root(Normal(outputs, 0.3))[..., 0, 0]
    torch.testing.assert_close(root.square(), torch.full_like(outputs, 1 / 0.09))


@pytest.mark.parametrize(("number", "way", "width"), [(2, 3, 7), (9, 4, 2)], ids=["fewer points", "more points"])
def test_the_lemma_gives_the_dense_log_determinant(number, way, width):
    torch.manual_seed(0)
    features = torch.randn(2, number, width, dtype=torch.float64)
    root = output_root(Categorical(logits=3 * torch.randn(2, number, way, dtype=torch.float64)))
    found = head_log_det(features, root, points=5, tau=0.2)
    for task in range(2):
        dense = 0.2 * torch.eye(way * (width + 1), dtype=torch.float64)
        for point in range(number):
            h = torch.cat([features[task, point], torch.ones(1)])
            dense += 5 / number * torch.kron(root[task, point] @ root[task, point].mT, torch.outer(h, h))
        torch.testing.assert_close(found[task], torch.linalg.slogdet(dense)[1])


def test_it_is_finite_in_float32_where_the_determinant_underflows_and_where_classes_are_certain():
    features = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(0)).mul(30).requires_grad_()
    logits = torch.tensor([[500.0, 0.0, -500.0]]).expand(1, 6, 3).clone()
    logits[0, 0] = 0.0
    logits.requires_grad_()
    found = head_log_det(features, output_root(Categorical(logits=logits)), 6, 1e-3)
    assert torch.det(1e-3 * torch.eye(195)) == 0.0
    assert found.dtype == torch.float32
    assert -1347 < found.item() < -1300  # 195 ln 1e-3 = -1347, and two directions that one point has
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), (features, logits)))

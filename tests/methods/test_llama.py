"""LLAMA: curvature against autograd's Hessian, MAML where it has no weight, and the MAP estimate that steps imply."""

import itertools
import math

import pytest
import torch
from mlpip_bench.methods.llama import LLAMASettings
from torch.distributions import Categorical, Normal
from torch.func import functional_call
from torch.nn import functional as F

from builders import backbone, in_float64, linear_problem, linear_stream, make_batch, make_method
from mlpip_bench import registry
from mlpip_bench.inference.curvature import (
    head_log_det,
    kronecker_log_det,
    network_log_det,
    output_root,
    watched,
)
from mlpip_bench.inference.distributions import linear_outputs
from mlpip_bench.inference.method import Problem
from mlpip_bench.nn import accelerator
from mlpip_bench.nn.normalization import EPSILON
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.errors import UserError


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


def test_it_keeps_the_prior_of_long_features_in_float32():
    features = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(0)).mul(1e4)
    root = output_root(Categorical(logits=torch.zeros(1, 6, 3)))
    found = head_log_det(features, root, 6, 1e-3)
    torch.testing.assert_close(found, head_log_det(features.double(), root.double(), 6, 1e-3).float())


# -- K-FAC -----------------------------------------------------------------------------------------------------------

KFAC = {"curvature": "kfac", "logdet_weight": 0.01, "tau": 0.5}


def adapted_layers(method, tasks: TaskBatch):
    """What passes through the layers of adapted networks, and their outputs."""
    q = method.amortize(tasks.support)
    with watched(method.network) as layers:
        outputs = method.network.outputs(q, tasks.query.x)
    return q, layers, outputs


def point_by_hand(method, q, x: torch.Tensor, task: int):
    """Windows of each layer's inputs, ``[location, input]``, its pre-activations, and logits of one image."""
    parameters = {n: p[task].detach() for n, p in method.network.unflatten(q.psi.mean).items()}
    windows, outputs, h = [], [], x
    for index, moments in enumerate(q.norm_statistics):
        scale, shift = (parameters[f"backbone.blocks.{index}.norm.{n}"] for n in ("scale", "shift"))
        side, padded = h.shape[-1], F.pad(h, (1, 1, 1, 1))
        places = itertools.product(range(side), repeat=2)
        windows.append(torch.stack([padded[:, i : i + 3, j : j + 3].flatten() for i, j in places]))
        s = (windows[-1] @ parameters[f"backbone.blocks.{index}.conv.weight"].flatten(1).mT).requires_grad_()
        outputs.append(s)
        mean = moments.mean[task, 0].detach() * scale.sign()  # of filters that are negated where the scale is negative
        variance = moments.variance[task, 0].detach()
        normalized = (s.mT.unflatten(1, (side, side)) - mean) / (variance + EPSILON).sqrt() * scale + shift
        h = F.max_pool2d(F.relu(normalized), 2)
    windows.append(torch.cat([h.flatten(), torch.ones(1)]).double().unsqueeze(0))
    outputs.append(parameters["head.weight"] @ h.flatten() + parameters["head.bias"])
    return windows, outputs


def factors_by_hand(method, q, tasks: TaskBatch, task: int, signs: torch.Tensor):
    """Of each layer, by a loop over points and locations."""
    points, found = tasks.query.x.shape[1], {}
    for point in range(points):
        windows, outputs = point_by_hand(method, q, tasks.query.x[task, point], task)
        p = outputs[-1].detach().softmax(0)
        v = (torch.eye(3).double() - p.unsqueeze(1)) @ (p.sqrt() * signs[point])
        gradients = torch.autograd.grad(outputs[-1] @ v, outputs)
        for index, (window, gradient) in enumerate(zip(windows, gradients, strict=True)):
            a, b = found.setdefault(index, (0, 0))
            g = gradient.view(len(window), -1)
            a = a + sum(torch.outer(w, w) for w in window) / points
            found[index] = a, b + sum(torch.outer(x, x) for x in g) / (points * len(window))
    return list(found.values())


def random_signs(seed: int, points: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return (torch.randint(2, (points, 3)) * 2 - 1).double()


def test_factors_are_second_moments_of_inputs_and_gradients_of_single_points():
    method, tasks, signs = make(), batch(), random_signs(3, 12)
    q, layers, outputs = adapted_layers(method, tasks)
    assert list(layers) == ["backbone.blocks.0.conv", "backbone.blocks.1.conv", "head"]
    passed = [layer for (layer,) in layers.values()]
    root = output_root(Categorical(logits=outputs))
    gradients = torch.autograd.grad(
        outputs, [layer.outputs for layer in passed], (root @ signs.unsqueeze(-1)).squeeze(-1)
    )
    for task in range(2):
        by_hand = factors_by_hand(method, q, tasks, task, signs)
        for layer, gradient, (a, b) in zip(passed, gradients, by_hand, strict=True):
            found = layer.factors(gradient)
            torch.testing.assert_close(found[0][task], a)
            torch.testing.assert_close(found[1][task], b)


def test_the_loss_has_half_the_log_determinants_of_all_layers():
    method, maml, tasks = make(**KFAC), make("maml"), batch()
    with torch.no_grad():
        for m in (method, maml):
            m.network.backbone.blocks[1].norm.scale[1] *= -1
    q, signs = method.amortize(tasks.support), random_signs(5, 12)
    log_dets = [
        kronecker_log_det(a[None], b[None], 6, KFAC["tau"])
        for task in range(2)
        for a, b in factors_by_hand(method, q, tasks, task, signs)
    ]
    torch.manual_seed(5)
    expected = maml.loss(tasks) + KFAC["logdet_weight"] / 2 * sum(log_dets).item() / 2
    torch.testing.assert_close(method.loss(tasks), expected)


@pytest.mark.parametrize("layer", ["backbone.blocks.1.conv", "head"])
def test_a_block_of_one_point_at_one_location_is_exact_in_the_mean_over_signs(layer):
    spec = backbone("conv4", (1, 2, 2), blocks=2, channels=3, ceil_mode=True)
    method = make_method("llama", spec=spec).double().train()
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    tasks = make_batch(1, shape=(1, 2, 2))
    tasks = TaskBatch(tasks.support, Labeled(tasks.query.x[:, :1], tasks.query.y[:, :1], 3))
    q, layers, outputs = adapted_layers(method, tasks)
    root, ((one,),) = output_root(Categorical(logits=outputs)), [layers[layer]]
    mean = 0
    for signs in itertools.product((-1.0, 1.0), repeat=3):
        v = root @ torch.tensor(signs, dtype=torch.float64)
        a, b = one.factors(torch.autograd.grad(outputs, one.outputs, v, retain_graph=True)[0])
        mean = mean + torch.kron(b[0], a[0]) / 8
    parameters = {n: p.detach() for n, p in method.network.unflatten(q.psi.mean).items()}
    own = [n for n in parameters if n.startswith(layer)]

    def logits(*changed: torch.Tensor) -> torch.Tensor:
        arguments = (tasks.query.x, q.norm_statistics)
        return functional_call(method.network, parameters | dict(zip(own, changed, strict=True)), arguments)[0][0, 0]

    jacobians = torch.autograd.functional.jacobian(logits, tuple(parameters[n] for n in own))
    j = torch.cat([part.reshape(3, part.shape[2], -1) for part in jacobians], -1).flatten(1)
    exact = j.mT @ root[0, 0] @ root[0, 0].mT @ j
    assert exact.abs().max() > 1e-3
    torch.testing.assert_close(mean, exact)


def test_a_kronecker_log_determinant_is_the_dense_one():
    torch.manual_seed(0)
    x, y = torch.randn(2, 5, 20, dtype=torch.float64), torch.randn(2, 3, 9, dtype=torch.float64)
    a, b = x @ x.mT, y @ y.mT / 100
    found = kronecker_log_det(a, b, 7, 0.3)
    for task in range(2):
        c = math.sqrt(7 * a[task].trace() / 5 / (b[task].trace() / 3))
        left = 7 * a[task] + c * math.sqrt(0.3) * torch.eye(5)
        right = b[task] + math.sqrt(0.3) / c * torch.eye(3)
        torch.testing.assert_close(found[task], torch.linalg.slogdet(torch.kron(left, right))[1], rtol=1e-6, atol=0)
        exact = torch.linalg.slogdet(torch.kron(7 * a[task], b[task]))[1]
        torch.testing.assert_close(kronecker_log_det(a, b, 7, 1e-20)[task], exact)
    torch.testing.assert_close(kronecker_log_det(1000 * a, b / 1000, 7, 0.3), found)
    torch.testing.assert_close(kronecker_log_det(a, 0 * b, 7, 0.3), torch.full((2,), 15 * math.log(0.3)).double())


@pytest.mark.parametrize("setting", [{"curvature": "full"}, {"curvature": ""}])
def test_there_are_two_curvatures(setting):
    with pytest.raises(ValueError, match="head, kfac"):
        LLAMASettings(**setting)


def test_its_gradient_is_that_of_the_loss_with_the_same_signs():
    method, tasks = make(**KFAC), batch()

    def loss() -> torch.Tensor:
        torch.manual_seed(3)
        return method.loss(tasks)

    parameters = list(method.parameters())
    gradients = torch.autograd.grad(loss(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction, values = torch.randn_like(parameter), []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                parameter += step * direction
                values.append(loss())
        with torch.no_grad():
            parameter += 1e-6 * direction
        assert ((values[0] - values[1]) / 2e-6).item() == pytest.approx((gradient * direction).sum().item(), rel=1e-5)


def test_in_float32_it_is_the_same_though_other_loops_would_pass_the_layers_by():
    method, tasks = make(**KFAC), batch()
    torch.manual_seed(3)
    expected = method.loss(tasks).item()
    single = TaskBatch(*(Labeled(d.x.float(), d.y, d.way) for d in (tasks.support, tasks.query)))
    torch.manual_seed(3)
    assert method.float().loss(single).item() == pytest.approx(expected, rel=1e-5)


def test_operations_of_accelerators_do_not_pass_the_layers_by(monkeypatch):
    method, tasks, found = make(norm="transductive", **KFAC), batch(), []
    for usable in (False, True):
        monkeypatch.setattr(accelerator, "usable", lambda _, usable=usable: usable)
        torch.manual_seed(3)
        found.append(method.loss(tasks))
    torch.testing.assert_close(*found)


def test_all_tasks_of_a_batch_have_the_same_signs():
    one, found = batch(1), []
    for tasks in (1, 4):
        data = (Labeled(d.x.repeat(tasks, 1, 1, 1, 1), d.y.repeat(tasks, 1), d.way) for d in (one.support, one.query))
        torch.manual_seed(3)
        found.append(make(**KFAC).loss(TaskBatch(*data)).item())
    assert found[1] == pytest.approx(found[0])


def test_layers_that_do_not_adapt_have_no_curvature():
    method, tasks = make(**KFAC), batch()
    method.network.backbone.requires_grad_(False)
    _, layers, outputs = adapted_layers(method, tasks)
    assert list(layers) == ["head"]
    assert network_log_det(layers, outputs, output_root(Categorical(logits=outputs)), 6, 1.0).shape == (2,)


def test_a_network_whose_layers_are_not_known_is_refused():
    spec, settings = backbone("resnet12", (1, 16, 16), channels=(4, 4)), LLAMASettings(curvature="kfac")
    with pytest.raises(UserError, match=r"Convolution and Linear .*; resnet12 has others\. Use curvature=head"):
        registry.method("llama")(Problem(spec, "metabn", 3), settings)
    registry.method("llama")(Problem(spec, "metabn", 3), LLAMASettings())


def test_in_regression_it_has_no_noise():
    spec = backbone("mlp", (3, 1, 1), layers=2, features=8)
    torch.manual_seed(0)
    method = registry.method("llama")(Problem(spec, "metabn", 1, "regression", 0.5), LLAMASettings(**KFAC)).double()
    tasks = in_float64(linear_stream(3, 6, 9, "llama").batch(0, 2))
    found = [method.train().loss(tasks).item() for _ in range(3)]
    assert found[1:] == found[:1] * 2
    _, layers, _ = adapted_layers(method, tasks)
    assert len(layers) == 3

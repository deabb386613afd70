"""iMAML against closed forms of ridge regression, unrolled descent, dense solves, and MAML."""

import gc
import math
import weakref
from typing import Any

import pytest
import torch
from mlpip_bench.methods.imaml import IMAMLSettings, conjugate_gradients
from scipy.sparse.linalg import cg
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import functional as F

from builders import backbone, in_float64, linear_problem, linear_stream, make_batch, make_method
from mlpip_bench import registry
from mlpip_bench.inference import gradient_steps
from mlpip_bench.inference.gradient_steps import AdaptedNetwork
from mlpip_bench.inference.inner_loop import adapt
from mlpip_bench.inference.likelihood import mean_losses
from mlpip_bench.tasks.batch import Labeled, TaskBatch

TINY = backbone("conv4", (1, 4, 4), blocks=1, channels=2)
SMOOTH = backbone("mlp", (1, 4, 4), layers=1, features=4, activation="elu")
"""Without kinks: where the minimum is at one, descent goes back and forth across it."""


def batch(tasks: int = 3, **shape: Any) -> TaskBatch:
    torch.manual_seed(1)
    return make_batch(tasks, queries=2, **shape)


def moved(method):
    """Off the initial point, where a head of zeros hides the backbone."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return method.train()


def make(name: str = "imaml", norm: str = "metabn", **settings: object):
    return moved(make_method(name, norm, **settings).double())


def linear(**settings: object):
    plugin = registry.method("imaml")
    torch.manual_seed(0)
    return moved(plugin(linear_problem(2), plugin.Settings(**settings)).double())


def linear_batch() -> TaskBatch:
    return in_float64(linear_stream(2, 6, 7, "oracle").batch(0, 3))


def gradients(method, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names, parameters = zip(*method.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def design(data: Labeled, task: int) -> torch.Tensor:
    """Inputs and a constant, as the linear output has its weight and its bias."""
    return F.pad(data.x[task].flatten(1), (0, 1), value=1.0)


def ridge(support: Labeled, task: int, psi_0: torch.Tensor, proximal: float) -> torch.Tensor:
    """The minimum of a mean squared error and half a weighted squared distance from psi_0."""
    x, y = design(support, task), support.y[task]
    normal = 2 / len(x) * x.mT @ x + proximal * torch.eye(len(psi_0), dtype=x.dtype)
    return torch.linalg.solve(normal, 2 / len(x) * x.mT @ y + proximal * psi_0)


# -- linear regression, where all is known ---------------------------------------------------------------------------

MANY = {"train_steps": 250, "test_steps": 250, "inner_rate": 0.2, "cg_steps": 3}
"""Descent to the minimum, and as many conjugate gradients as psi has dimensions."""


@pytest.mark.parametrize("proximal", [0.3, 2.0])
def test_many_steps_reach_ridge_regression_toward_psi_0(proximal):
    method, tasks = linear(proximal=proximal, **MANY), linear_batch()
    head = method.network.head
    psi_0 = torch.cat([head.weight[0], head.bias]).detach()
    found = method.eval().amortize(tasks.support).psi.mean
    for t in range(3):
        torch.testing.assert_close(found[t], ridge(tasks.support, t, psi_0, proximal))


@pytest.mark.parametrize("proximal", [0.3, 2.0])
def test_loss_and_gradients_are_those_of_ridge_regression_differentiated(proximal):
    method, tasks = linear(proximal=proximal, **MANY), linear_batch()
    head = method.network.head
    psi_0 = torch.cat([head.weight[0], head.bias])
    std = (0.5**2 + F.softplus(method.likelihood.raw_std) ** 2).sqrt()
    losses = []
    for t in range(3):
        psi = ridge(tasks.support, t, psi_0, proximal)
        errors = tasks.query.y[t] - design(tasks.query, t) @ psi
        losses.append((errors.square() / (2 * std**2) + std.log() + math.log(2 * math.pi) / 2).mean())
    loss, expected = method.loss(tasks), torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected)
    wanted = gradients(method, expected)
    assert all(gradient.any() for gradient in wanted.values())
    torch.testing.assert_close(gradients(method, loss), wanted)


def test_descent_with_a_rate_that_diverges_on_some_tasks_reaches_the_minimum_of_all():
    """Inputs of one task are ten times as long, so that steps of one length that suit the others diverge on it."""
    method, tasks = linear(**{**MANY, "train_steps": 3000, "test_steps": 3000}), linear_batch()
    x = tasks.support.x.clone()
    x[1] *= 10
    support = Labeled(x, tasks.support.y, tasks.support.way)
    head = method.network.head
    psi_0 = torch.cat([head.weight[0], head.bias]).detach()
    curvature = 2 * design(support, 1).mT @ design(support, 1) / x.shape[1]
    assert MANY["inner_rate"] * (torch.linalg.eigvalsh(curvature)[-1] + method.settings.proximal) > 2
    found = method.eval().amortize(support).psi.mean
    for t in range(3):
        torch.testing.assert_close(found[t], ridge(support, t, psi_0, method.settings.proximal))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_no_step_raises_the_objective_of_a_task(steps):
    method, tasks = make(inner_rate=3.0, proximal=0.1, test_steps=steps), batch()
    network = method.eval().network

    def objectives(psi: torch.Tensor) -> torch.Tensor:
        losses, _ = network.losses(network.unflatten(psi), tasks.support)
        return losses + 0.05 * (psi - network.flat(network.initial(3, 3))).square().sum(-1)

    started = objectives(network.flat(network.initial(3, 3)))
    assert (objectives(method.amortize(tasks.support).psi.mean) <= started).all()


def test_few_conjugate_gradients_are_no_exact_ones():
    few, exact = (linear(proximal=0.3, **{**MANY, "cg_steps": steps}) for steps in (1, 3))
    head = "network.head.weight"
    tasks = linear_batch()
    assert not torch.allclose(*(gradients(m, m.loss(tasks))[head] for m in (few, exact)), rtol=1e-3)


# -- networks --------------------------------------------------------------------------------------------------------


class WithDistance(nn.Module):
    """The outputs of a network, and the squared distance of its parameters from some, summed over tasks."""

    def __init__(self, network: AdaptedNetwork, psi_0: torch.Tensor) -> None:
        super().__init__()
        self.network = network
        self.psi_0 = psi_0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        psi = self.network.flat(dict(self.network.named_parameters()))
        return self.network(x)[0], (psi - self.psi_0).square().sum()


def unrolled(method, tasks: TaskBatch) -> torch.Tensor:
    """The loss after descent on support loss and half the squared distance, differentiated through its steps."""
    network, settings = method.network, method.settings
    start = network.initial(tasks.support.tasks, tasks.support.way)

    def held(forward) -> torch.Tensor:
        outputs, distance = forward(tasks.support.x)
        return mean_losses(outputs, tasks.support.y).sum() + settings.proximal / 2 * distance

    reached = adapt(
        WithDistance(network, network.flat(start)),
        {f"network.{name}": value for name, value in start.items()},
        held,
        settings.rates(training=True),
    )
    return query_losses(network, network.flat(reached), tasks).mean()


def query_losses(network: AdaptedNetwork, psi: torch.Tensor, tasks: TaskBatch) -> torch.Tensor:
    """Of each task, with the support statistics of psi."""
    parameters = network.unflatten(psi)
    _, statistics = functional_call(network, parameters, (tasks.support.x,))
    outputs, _ = functional_call(network, parameters, (tasks.query.x, statistics))
    return F.cross_entropy(outputs.mT, tasks.query.y, reduction="none").mean(1)


def test_at_the_minimum_gradients_are_those_of_descent_unrolled():
    method, tasks = make(spec=SMOOTH, train_steps=60, inner_rate=0.2, cg_steps=20), batch(2, shape=(1, 4, 4))
    ours, theirs = method.loss(tasks), unrolled(method, tasks)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(method, ours), gradients(method, theirs), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_solve_the_dense_system_where_descent_ends(frozen):
    method, tasks = make(spec=TINY, cg_steps=60, proximal=5.0), batch(shape=(1, 4, 4))
    network = method.network
    network.backbone.requires_grad_(not frozen)
    names = network.moving
    loss = method.loss(tasks)
    found = torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad])
    moves = torch.cat([torch.full((p.numel(),), p.requires_grad) for p in network.parameters()])
    with torch.no_grad():
        psi = method.amortize(tasks.support).psi.mean
    start = network.flat(network.initial(3, 3)).detach()
    assert torch.equal((psi != start).any(0), moves)
    total = 0.0
    for t in range(3):
        task = TaskBatch(tasks.support.task(t), tasks.query.task(t))

        def support_loss(own: torch.Tensor, task: TaskBatch = task) -> torch.Tensor:
            return network.losses(network.unflatten(own.unsqueeze(0)), task.support)[0].squeeze(0)

        own = psi[t].clone().requires_grad_()
        (slope,) = torch.autograd.grad(query_losses(network, own.unsqueeze(0), task).sum(), own)
        hessian = torch.autograd.functional.hessian(support_loss, own)[moves][:, moves]
        system = torch.eye(int(moves.sum()), dtype=psi.dtype) + hessian / 5.0
        assert torch.linalg.eigvalsh(system)[0] > 0
        total = total + torch.linalg.solve(system, slope[moves]) / 3
    assert len(names) == len(found)
    torch.testing.assert_close(torch.cat([g.flatten() for g in found]), total, rtol=1e-6, atol=1e-9)


def test_one_step_without_conjugate_gradients_is_first_order_maml():
    tasks, rate = batch(), 0.1
    ours, theirs = make(train_steps=1, inner_rate=rate, cg_steps=0), make("fomaml", train_steps=1, inner_rate=rate)
    losses = ours.loss(tasks), theirs.loss(tasks)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*map(gradients, (ours, theirs), losses))


@pytest.mark.parametrize("proximal", [1e4, 1e6])
def test_a_great_weight_leaves_psi_at_psi_0_with_the_gradient_that_is_there(proximal):
    method, tasks = make(proximal=proximal, inner_rate=0.7 / proximal, train_steps=10), batch()
    network = method.network
    psi_0 = network.flat(network.initial(3, 3)).detach().requires_grad_()
    (slope,) = torch.autograd.grad(network.losses(network.unflatten(psi_0), tasks.support)[0].sum(), psi_0)
    with torch.no_grad():
        moved = method.amortize(tasks.support).psi.mean - psi_0
    torch.testing.assert_close(-proximal * moved, slope, rtol=0, atol=100 / proximal)
    loss = method.loss(tasks)
    at_psi_0 = query_losses(network, network.flat(network.initial(3, 3)), tasks).mean()
    expected = gradients(network, at_psi_0)
    for name, found in gradients(network, loss).items():
        torch.testing.assert_close(found, expected[name], rtol=0, atol=100 / proximal)


def test_gradients_do_not_depend_on_the_tasks_that_are_adapted_together(monkeypatch):
    method, tasks = make(), batch()
    together = gradients(method, method.loss(tasks))
    monkeypatch.setattr(gradient_steps, "_tasks_at_once", lambda _: 2)
    torch.testing.assert_close(gradients(method, method.loss(tasks)), together)


class Saved:
    """A tensor that a graph holds for its backward pass."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def numbers_held(name: str, steps: int) -> int:
    """How many numbers a loss holds for its backward pass."""
    method, tasks = make(name, train_steps=steps), batch()
    held: weakref.WeakSet[Saved] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> Saved:
        saved = Saved(tensor)
        held.add(saved)
        return saved

    with saved_tensors_hooks(pack, lambda saved: saved.tensor):
        loss = method.loss(tasks)
    assert loss.requires_grad
    return sum(saved.tensor.numel() for saved in held)


def test_memory_does_not_grow_with_steps_as_that_of_maml_does():
    assert numbers_held("imaml", 1) == numbers_held("imaml", 20) > 0
    assert numbers_held("maml", 20) > 5 * numbers_held("maml", 1)


def test_nothing_of_a_task_outlives_its_loss():
    method, tasks = make(), batch()
    images = weakref.ref(tasks.support.x)
    gc.disable()  # so that a circle of references, which would hold memory for a while, shows
    try:
        method.loss(tasks).backward()
        del tasks
        assert images() is None
    finally:
        gc.enable()


# -- conjugate gradients ---------------------------------------------------------------------------------------------


def systems() -> tuple[torch.Tensor, torch.Tensor]:
    """Of three tasks, far from each other in scale."""
    torch.manual_seed(0)
    root = torch.randn(3, 6, 6, dtype=torch.float64) * torch.tensor([0.1, 1.0, 10.0]).view(3, 1, 1)
    return torch.eye(6) + root @ root.mT, torch.randn(3, 6, dtype=torch.float64)


def solved(matrix: torch.Tensor, b: torch.Tensor, steps: int) -> torch.Tensor:
    return conjugate_gradients(lambda v: (matrix @ v.unsqueeze(-1)).squeeze(-1), b, steps)


def test_as_many_steps_as_dimensions_solve_the_systems_of_all_tasks():
    matrix, b = systems()
    torch.testing.assert_close(solved(matrix, b, 6), torch.linalg.solve(matrix, b), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(solved(matrix, b, 60), torch.linalg.solve(matrix, b), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_few_steps_are_those_of_scipy(steps):
    matrix, b = systems()
    found = solved(matrix, b, steps)
    for t in range(3):
        theirs, _ = cg(matrix[t].numpy(), b[t].numpy(), rtol=0.0, maxiter=steps)
        torch.testing.assert_close(found[t], torch.from_numpy(theirs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_after_the_solution_leave_it(dtype):
    matrix = torch.diag_embed(torch.tensor([[1.0, 2.0, 3.0, 3.0], [1.0, 1.0, 1.0, 1.0]], dtype=dtype))
    b = torch.tensor([[1.0, -2.0, 0.5, 4.0], [1.0, 3.0, 0.0, -1.0]], dtype=dtype)
    torch.testing.assert_close(solved(matrix, b, 500), torch.linalg.solve(matrix, b))


def test_a_task_ends_before_a_direction_of_negative_curvature_and_others_go_on():
    matrix, b = systems()
    alone = solved(matrix, b, 4)
    matrix[0], b[2] = -torch.eye(6), 0.0
    found = solved(matrix, b, 4)
    torch.testing.assert_close(found, torch.stack([b[0], alone[1], torch.zeros(6, dtype=b.dtype)]))


def test_a_task_that_has_ended_does_not_go_on_where_curvature_is_positive_again():
    matrix = torch.diag(torch.tensor([1.0, -0.25, -0.25], dtype=torch.float64)).unsqueeze(0)
    b = torch.ones(1, 3, dtype=torch.float64)
    for steps in (1, 2, 5):  # only the first direction has positive curvature, 1/2; the step is 3 / (1/2)
        torch.testing.assert_close(solved(matrix, b, steps), 6 * b)


@pytest.mark.parametrize(
    "wrong",
    [
        {"proximal": 0.0},
        {"proximal": math.inf},
        {"cg_steps": -1},
        {"train_steps": -1},
        {"inner_rate": 1.0},  # times 2, at which steps on a flat loss go there and back
        {"inner_rate": (0.1, 0.5), "proximal": 5.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        IMAMLSettings(**wrong)

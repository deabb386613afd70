import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mlpip_bench.inference.inner_loop import adapt
from mlpip_bench.utils.errors import TrialError

RATES = {1: [0.3], 5: [0.3, 0.2, 0.2, 0.1, 0.05]}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Softplus(), nn.Flatten(), nn.Linear(48, 4)).double()


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return (
        torch.randn(5, 1, 6, 6, dtype=torch.float64),
        torch.tensor([0, 1, 2, 3, 0]),
        torch.randn(8, 1, 6, 6, dtype=torch.float64),
        torch.arange(8) % 4,
    )


def outer_gradients(net: nn.Module, steps: int, **options: object) -> tuple[float, list[torch.Tensor]]:
    x, y, query_x, query_y = data()
    adapted = adapt(net, dict(net.named_parameters()), lambda f: F.cross_entropy(f(x), y), RATES[steps], **options)
    loss = F.cross_entropy(torch.func.functional_call(net, adapted, (query_x,)), query_y)
    return loss.item(), list(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.parametrize("steps", [1, 5])
def test_values_and_meta_gradients_equal_those_of_higher_used_directly(steps):
    import higher

    net = network()
    x, y, query_x, query_y = data()
    with higher.innerloop_ctx(net, torch.optim.SGD(net.parameters(), lr=1.0), copy_initial_weights=False) as (
        fnet,
        opt,
    ):
        for rate in RATES[steps]:
            opt.step(F.cross_entropy(fnet(x), y), override={"lr": [rate]})
        loss = F.cross_entropy(fnet(query_x), query_y)
        theirs = torch.autograd.grad(loss, list(net.parameters()))
    value, ours = outer_gradients(net, steps)
    assert value == pytest.approx(loss.item(), abs=1e-12)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("first_order", [False, True])
def test_the_higher_engine_gives_the_same_numbers(steps, first_order):
    ours = outer_gradients(network(), steps, first_order=first_order)
    theirs = outer_gradients(network(), steps, first_order=first_order, engine="higher")
    assert ours[0] == pytest.approx(theirs[0], abs=1e-12)
    for a, b in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 5])
def test_meta_gradients_equal_finite_differences(steps):
    net = network()
    _, gradients = outer_gradients(net, steps)
    parameter, gradient, step = net[3].bias, gradients[-1], 1e-6
    for index in range(4):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[index] += sign * step
            values.append(outer_gradients(net, steps)[0])
            with torch.no_grad():
                parameter[index] -= sign * step
        assert float(gradient[index]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-9)


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        return self.p


@pytest.mark.parametrize(("first_order", "power"), [(False, 3), (True, 0)])
def test_quadratic_has_its_closed_form(first_order, power):
    # Loss a p^2 / 2 has steps p <- (1 - rate a) p, so p3 = (1 - rate a)^3 p0. Its derivative is that
    # factor at second order and the identity at first order.
    a, rate, point = torch.tensor([0.5, 1.5], dtype=torch.float64), 0.4, Point()
    adapted = adapt(
        point, dict(point.named_parameters()), lambda f: (a * f() ** 2).sum() / 2, [rate] * 3, first_order=first_order
    )["p"]
    torch.testing.assert_close(adapted, (1 - rate * a) ** 3 * point.p)
    (gradient,) = torch.autograd.grad(adapted.sum(), point.p)
    torch.testing.assert_close(gradient, (1 - rate * a) ** power)


@pytest.mark.parametrize("engine", ["native", "higher"])
def test_test_time_steps_keep_no_graph_and_work_without_autograd(engine):
    net = network()
    x, y, *_ = data()
    before = {n: p.clone() for n, p in net.named_parameters()}
    with torch.no_grad():
        adapted = adapt(
            net,
            dict(net.named_parameters()),
            lambda f: F.cross_entropy(f(x), y),
            RATES[5],
            create_graph=False,
            engine=engine,
        )
    assert not any(p.requires_grad for p in adapted.values())
    assert all(torch.equal(p, before[n]) and p.grad is None for n, p in net.named_parameters())
    assert not torch.equal(adapted["3.weight"], before["3.weight"])


@pytest.mark.parametrize("create_graph", [True, False])
def test_frozen_parameters_stay_and_the_others_descend_as_without_them(create_graph):
    net, (x, y, *_) = network(), data()
    net[0].requires_grad_(False)
    adapted = adapt(
        net, dict(net.named_parameters()), lambda f: F.cross_entropy(f(x), y), [0.3], create_graph=create_graph
    )
    gradients = torch.autograd.grad(F.cross_entropy(net(x), y), list(net[3].parameters()))
    for name, parameter in net[0].named_parameters(prefix="0"):
        assert torch.equal(adapted[name], parameter)
    for (name, parameter), gradient in zip(net[3].named_parameters(prefix="3"), gradients, strict=True):
        torch.testing.assert_close(adapted[name], parameter - 0.3 * gradient, atol=1e-12, rtol=0)


def test_a_parameter_that_no_loss_depends_on_is_named():
    net, (x, y, *_) = network(), data()
    net.register_parameter("spare", nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    with pytest.raises(TrialError, match=r"it does not on spare\. Use it in the network, or freeze it"):
        adapt(net, dict(net.named_parameters()), lambda f: F.cross_entropy(f(x), y), [0.3])
    net.spare.requires_grad_(False)
    adapt(net, dict(net.named_parameters()), lambda f: F.cross_entropy(f(x), y), [0.3])

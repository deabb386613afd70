"""Peers do the same work as the suite: with equal parameters, predictions, losses and gradients are equal."""

import pytest
import torch
from torch import nn

from benchmarks.peers import INNER_RATE, MAML, PROTONETS
from benchmarks.sides import add_gradients, plain_network, random_tasks, suite_method
from mlpip_bench.inference.method import Method
from mlpip_bench.tasks.batch import Labeled, TaskBatch


def batch_of_three() -> TaskBatch:
    batch = random_tasks(3)
    return TaskBatch(*(Labeled(part.x.double(), part.y, part.way) for part in (batch.support, batch.query)))


def paired(method: Method, network: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Parameters of both that stand for the same, in the order of the network."""
    blocks = next(module for name, module in method.named_modules() if name.endswith("blocks"))
    ours = [p for block in blocks for p in (block.conv.weight, block.norm.scale, block.norm.shift)]
    ours += [p for name, p in method.named_parameters() if "blocks" not in name]
    theirs = list(network.parameters())
    assert [p.numel() for p in ours] == [p.numel() for p in theirs]
    return list(zip(ours, theirs, strict=True))


def with_equal_parameters(method: Method, network: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Drawn anew, so that no scale is one and no head zero."""
    random, pairs = torch.Generator().manual_seed(1), paired(method.double(), network.double())
    with torch.no_grad():
        for own, other in pairs:
            drawn = 0.05 * torch.randn(other.shape, generator=random) + (1.0 if other.dim() == 1 else 0.0)
            other.copy_(drawn)
            own.copy_(drawn.reshape(own.shape))
    return pairs


def assert_equal_gradients(pairs: list[tuple[nn.Parameter, nn.Parameter]], tolerance: float = 1e-6) -> None:
    for own, other in pairs:
        # The last shift moves all features, and distances not at all: its gradient is a small remainder.
        error = (own.grad.reshape(other.shape) - other.grad).norm() / own.grad.norm()
        assert error < tolerance, f"a gradient of shape {tuple(other.shape)} differs by {error:.1e}"


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("peer", MAML)
def test_maml_has_the_suites_loss_and_gradient(peer, steps):
    """Where queries are normalized by their own statistics, as batch norm in training mode does.

    Second derivatives of torch's ``vmap`` (2.13) differ: its gradient is off by up to 0.3 %, where the same functions
    in a loop over tasks have that of the others.
    """
    method = suite_method("maml", "transductive", train_steps=steps, inner_rate=INNER_RATE)
    network = plain_network("maml", channels_last=True)
    pairs, batch = with_equal_parameters(method, network), batch_of_three()
    loss = method.train().loss(batch)
    loss.backward()
    assert add_gradients(MAML[peer], network, batch, steps) == pytest.approx(loss.item(), rel=1e-9)
    assert_equal_gradients(pairs, 1e-2 if peer == "torch.func" else 1e-7)


@pytest.mark.parametrize("peer", PROTONETS)
def test_protonets_predict_what_the_suite_does(peer):
    """Under running statistics, which are the same whatever goes through the network together."""
    method, network = suite_method("protonets", "running", scale=2.0).eval(), plain_network("protonets").eval()
    pairs, batch = with_equal_parameters(method, network), batch_of_three()
    logits = torch.cat([logits.reshape(-1, batch.query.way) for logits, _ in PROTONETS[peer](network, batch, 0)])
    if peer == "easyfsl":  # whose distances are not squared
        logits = -logits.square()
    ours = method.predictive(method.amortize(batch.support), batch.query.x).probs.flatten(0, 1)
    assert torch.allclose(logits.softmax(-1), ours, atol=1e-9)
    if peer != "easyfsl":
        loss = method.loss(batch)
        loss.backward()
        assert add_gradients(PROTONETS[peer], network, batch, 0) == pytest.approx(loss.item(), rel=1e-9)
        assert_equal_gradients(pairs)

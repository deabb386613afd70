"""The same work done by the suite, and by plain implementations on the public API of its peers (``peers.py``).

All have the network of omni5w1s, its 16 tasks a step, and Adam; images are random. As a script, this does a piece of
work for each line on standard input, a :class:`Work` as JSON, and answers with the number of the model's parameters. It
has one thread, and the C allocator as Python has it; with ``--keep-freed-memory``, as the suite's runs have it.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.peers import MAML, PROTONETS, Peer
from mlpip_bench import registry
from mlpip_bench.inference.method import Method, Problem
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.nn.layers import channels_innermost
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.training.steps import descend
from mlpip_bench.utils.device import keep_freed_memory
from mlpip_bench.utils.numerics import Numerics

BENCH = registry.bench("omni5w1s")
CONV4 = registry.backbone("conv4")
BACKBONE = BackboneSpec("conv4", CONV4, CONV4.Settings(ceil_mode=True), (1, 28, 28))
WAY, QUERIES = BENCH.way, 15
TASKS = 16  # a training step
TASKS_EVALUATED, AT_ONCE = 40, 20


@dataclass(frozen=True)
class Work:
    """A piece of work, and who does it.

    Attributes:
        method: what is trained or tested.
        kind: a training step, or an evaluation.
        side: ``mlpip_bench``, or a peer's name.
        steps: inner ones.
        precision: of what is computed.
        channels_last: whether a peer's network has the channels innermost, as the suite's always has.
    """

    method: Literal["maml", "protonets"]
    kind: Literal["step", "evaluation"]
    side: str = "mlpip_bench"
    steps: int = 1
    precision: Literal["float32", "bf16"] = "float32"
    channels_last: bool = False


def random_tasks(tasks: int) -> TaskBatch:
    random = torch.Generator().manual_seed(0)

    def labeled(per_class: int) -> Labeled:
        y = torch.arange(WAY).repeat_interleave(per_class).expand(tasks, -1)
        return Labeled(torch.rand(*y.shape, *BACKBONE.input_shape, generator=random), y, WAY)

    return TaskBatch(labeled(BENCH.shot), labeled(QUERIES))


def parts_of(batch: TaskBatch) -> list[TaskBatch]:
    """So many tasks at once as the suite's evaluation has."""
    return [TaskBatch(*parts) for parts in zip(batch.support.split(AT_ONCE), batch.query.split(AT_ONCE), strict=True)]


def suite_method(name: str, norm: str = "metabn", **settings: Any) -> Method[Any]:
    plugin = registry.method(name)
    return plugin(Problem(BACKBONE, norm, WAY), plugin.Settings(**settings))


def suite_step(method: Method[Any]) -> Callable[[], None]:
    """A training step, as the suite's loop does it."""
    batch, adam = random_tasks(TASKS), torch.optim.Adam(method.parameters())
    method.train()
    return lambda: descend(method.loss(batch), adam)


def suite_evaluation(method: Method[Any]) -> Callable[[], None]:
    """Predictions, as the suite's evaluation makes them."""
    parts = parts_of(random_tasks(TASKS_EVALUATED))
    method.eval()

    @torch.no_grad()
    def evaluate() -> None:
        for part in parts:
            method.predictive(method.amortize(part.support), part.query.x).probs.argmax(-1)

    return evaluate


class ChannelsInnermost(nn.Module):
    """The layout that the suite's backbone gives its images; ``channels_last`` alone is none for a single channel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return channels_innermost(images)


def plain_network(method: str, *, channels_last: bool = False) -> nn.Sequential:
    """The bench's network of torch's own layers; that of MAML has a head."""
    layers: list[nn.Module] = [ChannelsInnermost()] if channels_last else []
    for channels in [BACKBONE.input_shape[0]] + [64] * 3:
        layers += [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2, ceil_mode=BACKBONE.settings.ceil_mode)]
    head = [nn.Linear(BACKBONE.build("metabn").features, WAY)] if method == "maml" else []
    network = nn.Sequential(*layers, nn.Flatten(), *head)
    return network.to(memory_format=torch.channels_last) if channels_last else network


def add_gradients(peer: Peer, network: nn.Module, batch: TaskBatch, steps: int) -> float:
    """The gradient of the mean loss of the queries, added up part by part; returns the loss."""
    total = 0.0
    for logits, y in peer(network, batch, steps):
        loss = F.cross_entropy(logits.flatten(0, -2), y.flatten()) * (y.numel() / batch.query.y.numel())
        loss.backward()
        total += loss.item()
    return total


def peer_step(peer: Peer, network: nn.Module, steps: int) -> Callable[[], None]:
    batch, adam = random_tasks(TASKS), torch.optim.Adam(network.parameters())

    def step() -> None:
        adam.zero_grad()
        add_gradients(peer, network, batch, steps)
        adam.step()

    return step


def peer_evaluation(peer: Peer, network: nn.Module, steps: int) -> Callable[[], None]:
    """Predictions; with batch norm as the examples of MAML test it, in training mode, and the others' in evaluation."""
    parts = parts_of(random_tasks(TASKS_EVALUATED))
    network.train(peer in MAML.values())

    @torch.no_grad()
    def evaluate() -> None:
        for part in parts:
            for logits, _ in peer(network, part, steps):
                logits.argmax(-1)

    return evaluate


def started(work: Work) -> tuple[nn.Module, Callable[[], None]]:
    """The model of some work, and a function that does it once."""
    model: nn.Module
    if work.side == "mlpip_bench":
        settings = {"train_steps": work.steps, "test_steps": work.steps} if work.method == "maml" else {}
        model = suite_method(work.method, **settings)
        return model, suite_step(model) if work.kind == "step" else suite_evaluation(model)
    model = plain_network(work.method, channels_last=work.channels_last)
    peer = (MAML if work.method == "maml" else PROTONETS)[work.side]
    return model, (peer_step if work.kind == "step" else peer_evaluation)(peer, model, work.steps)


@contextlib.contextmanager
def computed_as(work: Work) -> Iterator[None]:
    """The precision by the means of either side."""
    if work.side == "mlpip_bench":
        with Numerics(work.precision).applied():
            yield
    else:
        with torch.autocast("cpu", torch.bfloat16, enabled=work.precision == "bf16"):
            yield


def main(*options: str) -> None:
    """Work once for each line on standard input."""
    torch.set_num_threads(1)
    if options:
        keep_freed_memory()
    at_hand: dict[Work, tuple[nn.Module, Callable[[], None]]] = {}
    for line in sys.stdin:
        work = Work(**json.loads(line))
        if work not in at_hand:
            at_hand = {work: started(work)}
        model, do = at_hand[work]
        with computed_as(work):
            do()
        sys.stdout.write(f"{sum(p.numel() for p in model.parameters())}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

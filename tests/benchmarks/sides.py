"""Two ways to do the same work: the suite's, and a plain implementation on its peer's public API.

Peers are written as their users would: MAML as in the example that comes with ``higher``, one task after the other,
and prototypical networks over one flat batch with ``nn.BatchNorm2d``. All have the network of omni5w1s, its 16 tasks a
step, and Adam; images are random. As a script, this does a piece of work each time it is asked to, with the C allocator
as the suite's runs have it or as Python has it: ``python sides.py WORK SIDE [STEPS]``.
"""

import sys
from collections.abc import Callable
from typing import Any

import higher
import torch
from torch import nn
from torch.nn import functional as F

from mlpip_bench import registry
from mlpip_bench.inference.method import Method, Problem
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.training.steps import descend
from mlpip_bench.utils.device import keep_freed_memory

BENCH = registry.bench("omni5w1s")
CONV4 = registry.backbone("conv4")
BACKBONE = BackboneSpec("conv4", CONV4, CONV4.Settings(ceil_mode=True), (1, 28, 28))
WAY, QUERIES = BENCH.way, 15
TASKS = 16  # a training step
AT_ONCE = 20  # in evaluation


def random_tasks(tasks: int) -> TaskBatch:
    random = torch.Generator().manual_seed(0)

    def labeled(per_class: int) -> Labeled:
        y = torch.arange(WAY).repeat_interleave(per_class).expand(tasks, -1)
        return Labeled(torch.rand(*y.shape, *BACKBONE.input_shape, generator=random), y, WAY)

    return TaskBatch(labeled(BENCH.shot), labeled(QUERIES))


def suite_method(name: str, **settings: Any) -> Method[Any]:
    plugin = registry.method(name)
    return plugin(Problem(BACKBONE, "metabn", WAY), plugin.Settings(**settings))


def suite_step(method: Method[Any]) -> Callable[[], None]:
    """A training step, as the suite's loop does it."""
    batch, adam = random_tasks(TASKS), torch.optim.Adam(method.parameters())
    method.train()
    return lambda: descend(method.loss(batch), adam)


def suite_evaluation(method: Method[Any], batch: TaskBatch) -> Callable[[], None]:
    """Predictions of some tasks, so many at once as the suite's evaluation does."""
    parts = list(zip(batch.support.split(AT_ONCE), batch.query.split(AT_ONCE), strict=True))
    method.eval()

    @torch.no_grad()
    def evaluate() -> None:
        for support, query in parts:
            method.predictive(method.amortize(support), query.x).probs.argmax(-1)

    return evaluate


def plain_network(*head: nn.Module) -> nn.Sequential:
    """The bench's network of torch's own layers."""
    layers: list[nn.Module] = []
    for channels in [BACKBONE.input_shape[0]] + [64] * 3:
        layers += [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2, ceil_mode=BACKBONE.settings.ceil_mode)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def higher_maml_step(network: nn.Module, steps: int) -> Callable[[], None]:
    """A training step of MAML as in higher's example, maml-omniglot.py."""
    batch, adam = random_tasks(TASKS), torch.optim.Adam(network.parameters())
    inner = torch.optim.SGD(network.parameters(), lr=0.1)
    tasks = list(zip(batch.support.x, batch.support.y, batch.query.x, batch.query.y, strict=True))

    def step() -> None:
        adam.zero_grad()
        for support_x, support_y, query_x, query_y in tasks:
            with higher.innerloop_ctx(network, inner, copy_initial_weights=False) as (adapted, optimizer):
                for _ in range(steps):
                    optimizer.step(F.cross_entropy(adapted(support_x), support_y))
                F.cross_entropy(adapted(query_x), query_y).backward()
        adam.step()

    return step


def flat_protonets_logits(network: nn.Module, support: Labeled, query: Labeled) -> torch.Tensor:
    images = torch.cat([support.x, query.x], 1)
    features = network(images.flatten(0, 1)).unflatten(0, images.shape[:2])
    prototypes = features[:, : WAY * BENCH.shot].unflatten(1, (WAY, BENCH.shot)).mean(2)
    return -torch.cdist(features[:, WAY * BENCH.shot :], prototypes).square()


def flat_protonets_step(network: nn.Module) -> Callable[[], None]:
    batch, adam = random_tasks(TASKS), torch.optim.Adam(network.parameters())

    def step() -> None:
        adam.zero_grad()
        logits = flat_protonets_logits(network, batch.support, batch.query)
        F.cross_entropy(logits.flatten(0, 1), batch.query.y.flatten()).backward()
        adam.step()

    return step


def flat_protonets_evaluation(network: nn.Module, batch: TaskBatch) -> Callable[[], None]:
    parts = list(zip(batch.support.split(AT_ONCE), batch.query.split(AT_ONCE), strict=True))
    network.eval()

    @torch.no_grad()
    def evaluate() -> None:
        for support, query in parts:
            flat_protonets_logits(network, support, query).argmax(-1)

    return evaluate


def main(work: str, side: str, *steps: str) -> None:
    """Say how many parameters the model has; then work once for each line on standard input, and say so."""
    torch.set_num_threads(1)
    number = int(steps[0]) if steps else 1
    batch = random_tasks(100)
    model: nn.Module
    if side == "mlpip_bench":
        keep_freed_memory()
        model = suite_method("maml", train_steps=number) if work == "maml" else suite_method("protonets")
        do = suite_evaluation(model, batch) if work == "evaluation" else suite_step(model)
    elif work == "maml":
        model = plain_network(nn.Linear(BACKBONE.build("metabn").features, WAY))
        do = higher_maml_step(model, number)
    else:
        model = plain_network()
        do = flat_protonets_evaluation(model, batch) if work == "evaluation" else flat_protonets_step(model)
    _say(str(sum(p.numel() for p in model.parameters())))
    for _ in sys.stdin:
        do()
        _say("done")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

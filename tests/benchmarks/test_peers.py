"""The suite beside plain implementations of the same work: training steps, evaluation, adaptation to one task.

Peers are written on their public API as their users would: MAML as in the example that comes with ``higher``, one
task after the other, and prototypical networks over one flat batch with ``nn.BatchNorm2d``. All have the network of
omni5w1s, its 16 tasks a step, and Adam; images are random. Both sides run by turns on one thread: compare within
one run only. The C allocator keeps freed memory, as in the suite's runs, for both sides, since it is one process.
That helps the peers most: without it a step of higher takes up to 1.15 times as long, one of the flat batch 1.6.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import higher
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mlpip_bench import registry
from mlpip_bench.api import Method, Problem
from mlpip_bench.benches import parse_bench
from mlpip_bench.device import keep_freed_memory
from mlpip_bench.tasks import Labelled, TaskBatch

BENCH = parse_bench("omni5w1s")
WAY, QUERIES = BENCH.way, 15
TASKS = 16  # a training step
AT_ONCE = 20  # in evaluation


@pytest.fixture(scope="module", autouse=True)
def _as_in_a_run() -> None:
    keep_freed_memory()


def random_tasks(tasks: int) -> TaskBatch:
    random = torch.Generator().manual_seed(0)

    def labelled(per_class: int) -> Labelled:
        y = torch.arange(WAY).repeat_interleave(per_class).expand(tasks, -1)
        return Labelled(torch.rand(*y.shape, *BENCH.extractor.image_shape, generator=random), y, WAY)

    return TaskBatch(labelled(BENCH.shot), labelled(QUERIES))


def suite_method(name: str, **settings: Any) -> Method[Any]:
    plugin = registry.method(name)
    return plugin(Problem(BENCH.extractor, "metabn", WAY), plugin.Settings(**settings))


def suite_step(method: Method[Any]) -> Callable[[], None]:
    """A training step, as the suite's loop does it."""
    batch, adam = random_tasks(TASKS), torch.optim.Adam(method.parameters())
    method.train()

    def step() -> None:
        adam.zero_grad()
        method.loss(batch).backward()
        adam.step()

    return step


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
    for channels in [BENCH.extractor.image_shape[0]] + [64] * 3:
        layers += [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2, ceil_mode=BENCH.extractor.ceil_mode)]
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


def flat_protonets_logits(network: nn.Module, support: Labelled, query: Labelled) -> torch.Tensor:
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


def versa_and_maml() -> tuple[Method[Any], Method[Any]]:
    return suite_method("versa").eval(), suite_method("maml", test_steps=5).eval()


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.benchmark(group="training step, 16 tasks")
@pytest.mark.parametrize("steps", [1, 5])
def test_maml_step_beside_higher(faster, steps):
    ours, theirs = suite_method("maml", train_steps=steps), plain_network(nn.Linear(BENCH.extractor.features, WAY))
    assert parameters(ours) == parameters(theirs)
    inner = f"{steps} inner step{'s' if steps > 1 else ''}"
    of = f"higher / mlpip_bench, MAML step, {inner}"
    faster(suite_step(ours), higher_maml_step(theirs, steps), of, bar=1.5, limit=1.2, turns=5)


@pytest.mark.benchmark(group="training step, 16 tasks")
def test_protonets_step_beside_a_flat_batch(faster):
    ours, theirs = suite_method("protonets"), plain_network()
    assert parameters(ours) == parameters(theirs)
    of = "flat batch / mlpip_bench, ProtoNets step"
    faster(suite_step(ours), flat_protonets_step(theirs), of, bar=2, limit=1.5, turns=5)


@pytest.mark.benchmark(group="evaluation of 100 tasks")
def test_protonets_evaluation_beside_a_flat_batch(faster):
    batch = random_tasks(100)
    ours = suite_evaluation(suite_method("protonets"), batch)
    theirs = flat_protonets_evaluation(plain_network(), batch)
    faster(ours, theirs, "flat batch / mlpip_bench, ProtoNets evaluation of 100 tasks", bar=2, limit=1.6, turns=4)


@pytest.mark.benchmark(group="one task, 5 images")
def test_versa_adapts_faster_than_maml(faster):
    """Amortisation is one forward pass; MAML takes its steps."""
    support = random_tasks(1).support
    versa, maml = (torch.no_grad()(partial(method.amortize, support)) for method in versa_and_maml())
    faster(versa, maml, "MAML, 5 steps / Versa, adapting to one task", bar=5, turns=20)


@pytest.mark.benchmark(group="one task, 5 images, and predicting its 75 queries")
def test_versa_adapts_and_predicts_faster_than_maml(faster):
    """To predict the queries takes either the same time, several times that of Versa's adaptation."""
    versa, maml = (suite_evaluation(method, random_tasks(1)) for method in versa_and_maml())
    of = "MAML, 5 steps / Versa, adapting to one task and predicting 75 queries"
    faster(versa, maml, of, bar=5, limit=2, turns=20)

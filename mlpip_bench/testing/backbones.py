"""What every backbone must keep for the methods that share it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mlpip_bench.nn.backbone import Backbone, InputShape
from mlpip_bench.nn.normalization import MOMENTUM, Normalization, Statistics, task_statistics
from mlpip_bench.registry import backbone_faults
from mlpip_bench.utils.choices import NORM_MODES, NormMode

TASKS, SUPPORT, QUERIES = 3, 4, 5
ROUNDING = 1e-9


def assert_backbone_conforms(plugin: type[Backbone], input_shape: InputShape) -> None:
    """For test suites: one AssertionError that lists all that a backbone breaks.

    In each normalization mode: features have the dimension and the dtype that they should; a batch of tasks gives
    what each task gives alone, and moves running averages once; queries do not see each other, given the support set's
    statistics, unless the mode is transductive; evaluation has no noise; and a gradient reaches every parameter.

    Args:
        plugin: the class; it need not be registered.
        input_shape: of inputs to try it on, with its settings at their defaults.
    """
    problems = [f"it {fault}" for fault in backbone_faults(plugin)]
    if not problems:
        with torch.random.fork_rng(devices=[]):
            problems = [f"{norm}: {p}" for norm in NORM_MODES for p in _problems(plugin, input_shape, norm)]
    if problems:
        raise AssertionError(f"{getattr(plugin, '__name__', plugin)} does not conform:\n" + "\n".join(problems))


def _problems(plugin: type[Backbone], input_shape: InputShape, norm: NormMode) -> Iterator[str]:
    torch.manual_seed(0)
    network = plugin(input_shape, plugin.Settings(), norm, dropout=True).double()
    support, query = (torch.rand(TASKS, n, *input_shape, dtype=torch.float64) for n in (SUPPORT, QUERIES))
    _, moments = network(support)  # in training mode, so that running averages leave their initial values
    if norm == "running":
        yield from _misplaced_averages(network, moments)
    network.eval()
    features, statistics = network(support)
    of_queries, _ = network(query, statistics)

    for points, found in ((SUPPORT, features), (QUERIES, of_queries)):
        if found.shape != (TASKS, points, network.features) or found.dtype != torch.float64:
            yield (
                f"features must be {(TASKS, points, network.features)} (task, point, feature) in the inputs' "
                f"float64; got {tuple(found.shape)} in {found.dtype}"
            )
            return
    with torch.no_grad():
        yield from _dependences(network, support, query)
    torch.manual_seed(1)
    if not torch.equal(network(support)[0], features):
        yield "evaluation must have no noise: the same inputs gave other features"
    yield from _idle_parameters(network, features, of_queries)


def _dependences(network: Backbone, support: Tensor, query: Tensor) -> Iterator[str]:
    """What depends on what it must not."""
    features, statistics = network(support)
    of_queries, _ = network(query, statistics)
    for task in range(TASKS):
        rows = slice(task, task + 1)
        alone, own = network(support[rows])
        if not _equal(alone, features[rows]):
            yield "a task's features must not depend on the tasks that share its batch"
        if not _equal(network(query[rows], own)[0], of_queries[rows]):
            yield "a task's queries must not depend on the tasks that share its batch"
        if not _equal(network(query[rows], task_statistics(statistics, rows))[0], of_queries[rows]):
            yield "the statistics of a batch must be those of its tasks, along their first dimension"
    if network.norm_mode != "transductive" and not _equal(network(query[:, :1], statistics)[0], of_queries[:, :1]):
        yield "a query's features must not depend on the other queries, given the support set's statistics"


def _misplaced_averages(network: Backbone, statistics: Statistics) -> Iterator[str]:
    """Which of the averages, that begin at 0, did not make one move to the mean over the tasks."""
    layers = [layer for layer in network.modules() if isinstance(layer, Normalization)]
    for layer, moments in zip(layers, statistics, strict=True):
        if not _equal(layer.running_mean, MOMENTUM * moments.mean.mean((0, 1))):
            yield "a pass over a batch must move running averages once, whatever the number of its tasks"


def _idle_parameters(network: Backbone, *outputs: Tensor) -> Iterator[str]:
    total = torch.stack([(features * torch.randn_like(features)).sum() for features in outputs]).sum()
    named = dict(network.named_parameters())
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True) if named else ()
    for name, gradient in zip(named, found, strict=True):
        if gradient is None or not gradient.abs().max() > ROUNDING:
            yield f"a gradient must reach every parameter; {name} has none"


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=ROUNDING, atol=ROUNDING)

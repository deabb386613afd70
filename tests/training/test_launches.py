"""A training step on a GPU: the numbers of a CPU's, out of few operations; counted and compared without one."""

import contextlib
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from builders import backbone, make_batch, make_method, trained_classifiers
from mlpip_bench.inference import gradient_steps
from mlpip_bench.nn import accelerator
from mlpip_bench.nn import backbone as backbones
from mlpip_bench.nn.backbone import features_in_one_pass
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.choices import NORM_MODES

STARTS_NOTHING = {
    *("detach", "alias", "_unsafe_view", "lift_fresh", "promote_types", "_efficientzerotensor"),
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"),
}


class Launches(TorchDispatchMode):
    """Counts operations that are neither views nor fresh memory: on a GPU each starts a kernel, or several."""

    def __init__(self) -> None:
        super().__init__()
        self.of = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.removeprefix("aten::")
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in function._schema.returns)
        if not view and name not in STARTS_NOTHING:
            self.of[name] += 1
        return function(*args, **(kwargs or {}))


def launches_of_a_step(name: str, monkeypatch, **settings) -> int:
    """Of omni5w1s with 16 tasks and 15 queries; tensors have shapes alone, which no operation of a CPU is for."""
    monkeypatch.setattr(backbones, "backbone_autocast", lambda device: contextlib.nullcontext())  # float32
    monkeypatch.setitem(gradient_steps._PIXELS_AT_ONCE, "meta", gradient_steps._PIXELS_AT_ONCE["cuda"])
    method = make_method(name, way=5, spec=backbone("conv4", (1, 28, 28)), **settings)
    # torch has the fused update for the devices that there are alone; it does the same to the same parameters.
    optimizer = torch.optim.Adam(method.parameters(), fused=True)
    for parameter in method.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    with Launches() as update:
        optimizer.step()
    method.zero_grad()
    method = method.to("meta").train()
    parts = [
        Labeled(torch.empty(16, n, 1, 28, 28, device="meta"), torch.empty(16, n, dtype=torch.long, device="meta"), 5)
        for n in (5, 75)
    ]
    with Launches() as learning:
        batch = TaskBatch(*parts)
        with features_in_one_pass(method, batch):
            loss = method.loss(batch)
        loss.backward()
    return (update.of + learning.of).total()


@pytest.mark.parametrize(
    ("name", "settings", "most"),
    [("versa", {}, 300), ("protonets", {}, 190), ("maml", {"train_steps": 1}, 620), ("maml", {"train_steps": 5}, 1700)],
)
def test_a_step_starts_few_operations(name, settings, most, monkeypatch):
    assert 50 < launches_of_a_step(name, monkeypatch, **settings) <= most


def step(name: str, norm: str, *, on_gpu: bool):
    """Loss, gradients and buffers after a step in float64, by the operations of a GPU or by those of a CPU."""
    method = make_method(name, norm).double().train()
    torch.manual_seed(0)
    with torch.no_grad():
        for key, parameter in method.named_parameters():
            if key.endswith("norm.scale"):
                parameter[::2] *= -0.7  # negative scales are another way through a block
    batch = make_batch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator, "usable", lambda images: on_gpu)
        with features_in_one_pass(method, batch):
            loss = method.loss(batch)
        if loss.requires_grad:
            loss.backward()
    gradients = {key: p.grad for key, p in method.named_parameters()}
    return loss.detach(), gradients, dict(method.named_buffers())


@pytest.mark.parametrize("norm", NORM_MODES)
@pytest.mark.parametrize("name", trained_classifiers())
def test_a_step_on_a_gpu_gives_the_numbers_of_a_cpu(name, norm):
    ours, others = step(name, norm, on_gpu=True), step(name, norm, on_gpu=False)
    torch.testing.assert_close(ours, others, rtol=1e-7, atol=1e-9)


def counted_convolutions(patch: pytest.MonkeyPatch) -> list[int]:
    """Images of each call of a convolution from here on."""
    calls, convolve = [], torch.nn.functional.conv2d
    patch.setattr(torch.nn.functional, "conv2d", lambda x, *a, **k: calls.append(len(x)) or convolve(x, *a, **k))
    return calls


def test_support_and_queries_go_through_a_backbone_at_once(monkeypatch):
    monkeypatch.setattr(accelerator, "usable", lambda images: True)
    method, batch, calls = make_method("protonets").double(), make_batch(), counted_convolutions(monkeypatch)
    with features_in_one_pass(method, batch):
        method.loss(batch)
    assert calls == [3 * (6 + 12)] * 2


def test_features_are_of_the_parameters_and_statistics_that_are_asked_for(monkeypatch):
    method, batch = make_method("protonets").double(), make_batch()
    network = method.backbone
    moved = {key: p + 0.1 for key, p in network.named_parameters()}

    def features():
        found, statistics = network(batch.support.x)
        of_queries = network(batch.query.x, statistics)[0]
        by_copies = network(batch.query.x, tuple(statistics[:1] + network(batch.query.x)[1][1:]))[0]
        of_moved = torch.func.functional_call(network, moved, (batch.support.x,))[0]
        by_moved = torch.func.functional_call(network, moved, (batch.query.x, statistics))[0]
        return found, of_queries, by_copies, of_moved, by_moved

    plain = features()
    monkeypatch.setattr(accelerator, "usable", lambda images: True)
    with features_in_one_pass(method, batch):
        together = features()
    torch.testing.assert_close(together, plain)
    assert not torch.allclose(together[1], together[4])
    assert network._pass is None

"""Pre-training of a backbone by classification."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from builders import CPU, backbone, make_pool
from mlpip_bench.evaluation.metrics import ACCURACY
from mlpip_bench.inference.method import Problem
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.nn.network import NetworkBackbone
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import TaskStream
from mlpip_bench.training.pretraining import backbone_state, classification, pretrain
from mlpip_bench.utils.settings import NoSettings

SETTINGS = Pretraining(iterations=12, batch_size=8, learning_rate=0.05, crop=1, flip=True)


class Small(NetworkBackbone):
    """Plain torch layers."""

    reference = "none"

    def build_network(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())


def streams() -> tuple[TaskStream, TaskStream]:
    rng = np.random.default_rng(0)
    prototypes = rng.integers(0, 200, (9, 1, 1, 8, 8))
    pool = make_pool((prototypes + rng.integers(0, 55, (9, 6, 1, 8, 8))).astype(np.uint8))
    return TaskStream(pool, TaskShape(3, 1, 2), "train", 0), TaskStream(pool, TaskShape(3, 1, 3), "validation")


def problem(spec: BackboneSpec) -> Problem:
    return Problem(spec, "own", way=3)


def trained(spec: BackboneSpec, path, settings: Pretraining = SETTINGS):
    training, validation = streams()
    return pretrain(
        problem(spec), settings, training, validation,
        validation_tasks=10, metrics=(ACCURACY,), checkpoint=path, key="key",
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{}, {"head": "cosine", "scale": 3.0}, {"schedule": "StepLR"}, {"optimizer": "Adam", "schedule": "constant"}],
)
def test_it_is_what_a_loop_of_plain_torch_gives(changes, tmp_path):
    settings = Pretraining(**{**vars(SETTINGS), **changes})
    spec = BackboneSpec("small", Small, NoSettings(), (1, 8, 8))
    found = backbone_state(trained(spec, tmp_path / "p.pt", settings))

    classifier, _, images = classification(problem(spec), settings, streams()[0])
    network, weights = (
        copy.deepcopy(classifier.backbone.network),
        copy.deepcopy(dict(classifier.head.named_parameters())),
    )
    parameters = [*network.parameters(), *weights.values()]
    if settings.optimizer == "Adam":
        optimizer = torch.optim.Adam(parameters, lr=0.05, weight_decay=5e-4)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = {
        "CosineAnnealingLR": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12),
        "StepLR": lambda: torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.1),
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0),
    }[settings.schedule]()
    network.train()
    for number in range(12):
        batch = images.batch(number, 1).support
        features = network(batch.x[0])
        if settings.head == "linear":
            logits = features @ weights["weight"].T + weights["bias"]
        else:
            cosines = torch.cosine_similarity(features.unsqueeze(1), weights["weight"].unsqueeze(0), dim=-1)
            logits = 3.0 * cosines
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, batch.y[0]).backward()
        optimizer.step()
        schedule.step()
    expected = network.state_dict()
    assert {f"network.{name}" for name in expected} == set(found)
    for name, value in expected.items():
        torch.testing.assert_close(found[f"network.{name}"], value, rtol=1e-4, atol=1e-5)


def test_conv4_has_ordinary_batch_norm(tmp_path):
    """The same convolutions with torch's batch norm learn the same parameters."""
    spec = backbone("conv4", (1, 8, 8), blocks=1, channels=4)
    found = backbone_state(trained(spec, tmp_path / "p.pt"))
    classifier, _, images = classification(problem(spec), SETTINGS, streams()[0])
    block, head = classifier.backbone.blocks[0], copy.deepcopy(classifier.head)
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    with torch.no_grad():
        network[0].weight.copy_(block.conv.weight)
        assert block.conv.bias is None or not block.conv.bias.any()
        network[0].bias.zero_()
    network[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(
        [p for p in (*network.parameters(), *head.parameters()) if p.requires_grad],
        lr=0.05, momentum=0.9, weight_decay=5e-4,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    for number in range(12):
        batch = images.batch(number, 1).support
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(network(batch.x[0])), batch.y[0]).backward()
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(found["blocks.0.conv.weight"], network[0].weight.detach(), rtol=1e-3, atol=1e-4)
    mean = found["blocks.0.norm.running_mean"].flatten()
    torch.testing.assert_close(mean, network[1].running_mean, rtol=1e-3, atol=1e-4)
    variance = found["blocks.0.norm.running_variance"].flatten()
    images_and_positions = 8 * 8 * 8
    moved = 1 - 0.9**12  # of what torch's averages have of variances that divide by one less
    unbiased = 0.9**12 + (variance - 0.9**12) * images_and_positions / (images_and_positions - 1)
    torch.testing.assert_close(unbiased, network[1].running_var, rtol=1e-3, atol=1e-4)
    assert moved > 0.7


def test_it_learns_and_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    spec, settings = (
        backbone("conv4", (1, 8, 8), blocks=2, channels=8),
        Pretraining(iterations=60, batch_size=16, crop=0),
    )
    whole = trained(spec, tmp_path / "whole.pt", settings)
    assert whole.history[-1]["accuracy"] > 0.9
    assert whole.history[-1]["loss"] < 0.5

    class Killed(BaseException):
        pass

    def kill(done: int, _note: str) -> None:
        if done == 30:
            raise Killed

    monkeypatch.setattr("mlpip_bench.training.loop._CHECKPOINT_SECONDS", -1.0)
    training, validation = streams()
    with pytest.raises(Killed):
        pretrain(
            problem(spec), settings, training, validation,
            validation_tasks=10, metrics=(ACCURACY,), checkpoint=tmp_path / "part.pt", key="key", step=kill,
        )  # fmt: skip
    resumed = trained(spec, tmp_path / "part.pt", settings)
    for name, value in backbone_state(whole).items():
        assert torch.equal(value, backbone_state(resumed)[name])
    assert streams()[0].device == CPU


@pytest.mark.parametrize("wrong", [{"batch_size": 1}, {"jitter": 1.0}, {"iterations": 0}, {"learning_rate": -1.0}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Pretraining(**wrong)

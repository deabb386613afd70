"""All installed task families conform where no real data is needed, and one that breaks a rule is found out."""

import dataclasses

import numpy as np
import pytest
import torch

from builders import make_classes
from mlpip_bench import registry
from mlpip_bench.benches.budgets import SHORT
from mlpip_bench.benches.families.linear import Linear
from mlpip_bench.benches.images import ImageClassification, ImageFamily
from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.testing import assert_family_conforms

SLOW = {"mini", "views"}  # their stand-ins take long to draw


def conforming(name):
    """A family to test; skipped where it has no stand-in for real data."""
    plugin = registry.family(name)
    source = plugin(plugin.Options()).source() if issubclass(plugin, ImageFamily) else None
    if source is not None and source.stand_in is None:
        return pytest.param(name, marks=pytest.mark.skip(f"{name} needs real data"))
    return pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name


@pytest.mark.parametrize("name", [*map(conforming, registry.names("bench"))])
def test_an_installed_family_conforms(name):
    assert_family_conforms(registry.family(name))


class Noise(ImageClassification):
    """Images of noise."""

    title = needs = "noise"
    examples = ("noise5w1s",)
    budgets = {"quick": SHORT, "paper": SHORT}  # noqa: RUF012

    def load(self, request):
        rng = np.random.default_rng(0)
        splits = {}
        for split in SPLITS:
            classes = make_classes(rng.integers(0, 256, (6, 20, 1, 5, 5)).astype(np.uint8))
            splits[split] = ClassImages(classes.images, classes.counts, tuple(f"{split}{i}" for i in range(6)))
        return ImageDataset("noise", "synthetic", splits)


class SameClasses(Noise):
    def load(self, request):
        data = super().load(request)
        splits = {s: ClassImages(p.images, p.counts, tuple("abcdef")) for s, p in data.splits.items()}
        return dataclasses.replace(data, splits=splits, fingerprint="")


class SameImages(Noise):
    def load(self, request):
        data = super().load(request)
        splits = {
            s: ClassImages(data.splits["train"].images, part.counts, part.class_names)
            for s, part in data.splits.items()
        }
        return dataclasses.replace(data, splits=splits, fingerprint="")


class OtherNames(Noise):
    examples = ("noise5",)


class SeesTheSeed(Noise):
    def streams(self, *args, seed, **kwargs):
        streams = super().streams(*args, seed=seed, **kwargs)
        streams["test"].seed = (*streams["test"].seed, seed)
        return streams


class Changed:
    """A stream whose batches a function changes."""

    def __init__(self, stream, change):
        self.stream, self.change = stream, change

    def batch(self, first, tasks):
        return self.change(self.stream.batch(first, tasks))


def changing(change, base=Noise):
    class Changing(base):
        def streams(self, *args, **kwargs):
            return {split: Changed(stream, change) for split, stream in super().streams(*args, **kwargs).items()}

    return Changing


def random(batch):
    return TaskBatch(Labeled(torch.rand_like(batch.support.x), batch.support.y, batch.support.way), batch.query)


def by_batch(batch):
    support = batch.support
    return TaskBatch(Labeled(support.x + support.tasks, support.y, support.way), batch.query)


def overlapping(batch):
    x = torch.cat([batch.support.x[:, :1], batch.query.x[:, 1:]], 1)
    return TaskBatch(batch.support, Labeled(x, batch.query.y, batch.query.way))


def mislabeled(batch):
    return TaskBatch(Labeled(batch.support.x, batch.support.y * 0, batch.support.way), batch.query)


def flat(batch):
    return TaskBatch(Labeled(batch.support.x.flatten(2), batch.support.y, batch.support.way), batch.query)


def class_by_class(batch):
    order = batch.query.y.argsort(1)
    x, y = batch.query.x[torch.arange(len(order))[:, None], order], batch.query.y.gather(1, order)
    return TaskBatch(batch.support, Labeled(x, y, batch.query.way))


def cut_off(batch):
    points, shots = batch.merged, batch.support.y.shape[1]
    return TaskBatch(Labeled(points.x[:, :shots], points.y[:, :shots], 1), batch.query)


def test_noise_conforms():
    assert_family_conforms(Noise)


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (SameClasses, "splits must have no class in common; validation has 'a' of an earlier split"),
        (SameImages, "splits must have no image in common; validation has one of an earlier split"),
        (OtherNames, "examples must be names of its benches; 'noise5' does not read '{way}w{shot}s'"),
        (SeesTheSeed, "test: tasks must be the same for every training seed"),
        (changing(random), "train: the same seed must give the same tasks"),
        (changing(by_batch), "train: task i must be the same in a batch of any size"),
        (changing(overlapping), "test: queries must be none of the support points"),
        (changing(overlapping, Linear), "test: queries must be none of the support points"),
        (changing(class_by_class), "test: queries must be in an order of each task's own"),
        (changing(cut_off, Linear), "test: support set and images of queries must be in memory of their own"),
        (changing(mislabeled), "test: each of 5 classes must have 1 support points"),
        (changing(flat), r"test: support.x must be (4, 5, 1, 5, 5); got (4, 5, 25)"),
        (ImageClassification, "it lacks title, needs, examples, budgets"),
    ],
)
def test_a_family_that_breaks_a_rule_fails(plugin, says):
    with pytest.raises(AssertionError) as caught:
        assert_family_conforms(plugin)
    assert says in str(caught.value)

import dataclasses

import numpy as np
import pytest
import torch

from builders import family_of
from mlpip_bench.benches.family import TEST_QUERIES
from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.datasets.views import SIDE, VIEWS, view_dataset
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import HeldOutStream, ImagePool, TaskStream
from mlpip_bench.tasks.linear_gaussian import LinearGaussian
from mlpip_bench.tasks.stream import Repeated
from mlpip_bench.tasks.views import ViewStream
from mlpip_bench.utils.errors import UserError

CPU = torch.device("cpu")


def views(objects: int = 10) -> ImageDataset:
    """Every pixel of a view is 7 x object + view, so that a view says where it comes from."""
    numbers = 7 * np.arange(objects)[:, None] + np.arange(VIEWS)
    images = np.broadcast_to(numbers[..., None, None], (objects, VIEWS, SIDE, SIDE)).astype(np.uint8)
    return view_dataset("numbered", "real", images, [f"o{i}" for i in range(objects)], {})


def digits() -> ImageDataset:
    """Ten classes in each split; every pixel of an image is its number in the split, of 20 a class."""
    images = np.broadcast_to(np.arange(200, dtype=np.uint8)[:, None, None, None], (200, 1, 28, 28))
    data = ClassImages(np.ascontiguousarray(images), np.full(10, 20), tuple("0123456789"))
    return ImageDataset("numbered", "real", dict.fromkeys(SPLITS, data))


def streams(bench: str, dataset, seed: int = 0, options=None, **changes):
    spec, family = family_of(bench, **(options or {}))
    plan = dataclasses.replace(TrainingPlan(**family.budgets["quick"]), **changes)
    plan = family.fitted(plan, spec, dataset)
    queries = family.queries_at_test(TEST_QUERIES)
    return plan, family.streams(spec, dataset, plan, queries=queries, seed=seed, device=CPU)


# -- repeated


def test_a_training_set_of_250_tasks_comes_again_and_again():
    _, found = streams("toy5", LinearGaussian(0, 1.0))
    train = found["train"]
    y = torch.cat([train.batch(first, 70).support.y for first in range(0, 770, 70)])
    assert y.shape == (770, 5)
    torch.testing.assert_close(y[250:500], y[:250])
    torch.testing.assert_close(y[500:750], y[:250])
    assert len({tuple(row) for row in y[:250].tolist()}) == 250
    # The test tasks are others, and do not come again.
    test = found["test"].batch(0, 600).support.y
    assert len({tuple(row) for row in torch.cat([y[:250], test]).tolist()}) == 850


def test_the_other_toy_family_never_repeats_and_begins_with_the_same_kind_of_tasks():
    _, found = streams("toyfresh5", LinearGaussian(0, 1.0))
    y = found["train"].batch(0, 1000).support.y
    assert len({tuple(row) for row in y.tolist()}) == 1000


def test_a_batch_longer_than_the_training_set_holds_it_several_times():
    _, found = streams("toy5", LinearGaussian(0, 1.0))
    y = found["train"].batch(240, 520).query.y
    torch.testing.assert_close(y[10:260], y[260:510])


# -- fixed tasks whose queries are held out


def test_fifty_tasks_keep_classes_and_support_sets_in_all_splits_and_for_all_seeds():
    data = digits()
    with pytest.raises(UserError, match="need 25 images in each class"):
        streams("context16", data)
    pool = ImagePool(data.splits["train"], CPU)
    tasks = TaskStream(pool, TaskShape(5, 6, 4), "context16", "tasks", split="train")
    train, test = Repeated(tasks, 50), HeldOutStream(tasks, pool, 3, "context16", "test", split="test")
    first, second = train.batch(0, 50), test.batch(0, 50)
    torch.testing.assert_close(first.support.x, second.support.x)
    assert second.query.x.shape == (50, 15, 1, 28, 28)
    # Images are of the classes that the stream names, 20 a class.
    for part in (second.support, second.query):
        number = (part.x[:, :, 0, 0, 0] * 255).round().long()
        named = test.classes(0, 50).gather(1, part.y)
        assert (number // 20 == named).all()
    assert all(len(set(row)) == 5 for row in test.classes(0, 50).tolist())
    # A task does not depend on the batch it comes in, across the blocks of the stream too.
    whole = test.batch(120, 20).query.x
    torch.testing.assert_close(torch.cat([test.batch(i, 1).query.x for i in range(120, 140)]), whole)


def test_the_context_bench_has_the_same_tasks_for_every_training_seed():
    images = np.zeros((1000, 1, 28, 28), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(1000) % 251
    data = ImageDataset("d", "real", {s: ClassImages(images, np.full(10, 100), tuple("0123456789")) for s in SPLITS})
    plan, found = streams("context16", data)
    _, others = streams("context16", data, seed=7)
    assert (plan.validation_tasks, plan.test_tasks) == (50, 50)
    for split in SPLITS:
        torch.testing.assert_close(found[split].batch(3, 2).query.x, others[split].batch(3, 2).query.x)
        torch.testing.assert_close(found[split].batch(3, 2).support.x, found["train"].batch(53, 2).support.x)


# -- views


def where(images: torch.Tensor) -> torch.Tensor:
    """7 x object + view."""
    return (images[..., 0, 0, 0] * 255).round().long()


def test_a_test_task_is_an_object_and_asks_for_all_its_views_in_order():
    data = views(10)
    plan, found = streams("views1s", data)
    assert (plan.test_tasks, plan.validation_tasks, plan.train_queries) == (2, 1, 12)
    batch = found["test"].batch(0, 2)
    assert batch.query.x.shape == (2, VIEWS, 2)
    assert batch.query.y.shape == (2, VIEWS, 1, SIDE, SIDE)
    azimuth = torch.atan2(batch.query.x[..., 0], batch.query.x[..., 1]).rad2deg() % 360
    torch.testing.assert_close(azimuth, (10.0 * torch.arange(VIEWS)).expand(2, -1), atol=1e-3, rtol=0)
    names = data.splits["test"].class_names
    expected = torch.tensor([[7 * int(name[1:]) + view for view in range(VIEWS)] for name in names])
    assert torch.equal(where(batch.query.y), expected)
    # The given view is one of them, under its own angle.
    same = (batch.query.x == batch.support.x).all(-1)
    assert same.sum(1).tolist() == [1, 1]
    assert torch.equal(batch.query.y[same], batch.support.y[:, 0])


def test_a_training_task_never_asks_for_a_given_view_and_all_views_get_their_turn():
    _, found = streams("views5s", views(10), train_queries=35)
    assert found["train"].shape.queries == 31  # what the five given views leave
    batch = found["train"].batch(0, 200)
    together = torch.cat([where(batch.support.y), where(batch.query.y)], 1)
    view = together - together.min(1, keepdim=True).values
    assert torch.equal(view.sort(1).values, torch.arange(VIEWS).expand(200, -1))
    counts = torch.bincount(view[:, 0], minlength=VIEWS)
    assert counts.max() < 200 / VIEWS + 5 * (200 / VIEWS) ** 0.5


def test_splits_of_objects_are_disjoint_and_training_draws_from_its_own():
    data = views(10)
    _, found = streams("views1s", data)
    drawn = where(found["train"].batch(0, 500).query.y).flatten().unique()
    own = [7 * int(name[1:]) + view for name in data.splits["train"].class_names for view in range(VIEWS)]
    assert set(drawn.tolist()) <= set(own)


def test_degrees_stand_before_sine_and_cosine():
    _, found = streams("views1s", views(10), options={"angles": "degrees"})
    x = found["test"].batch(0, 1).query.x[0]
    torch.testing.assert_close(x[:, 0], 10.0 * torch.arange(VIEWS))
    torch.testing.assert_close(x[:, 1], x[:, 0].deg2rad().sin(), atol=1e-6, rtol=0)
    lengths = [family_of(*bench)[1].inputs for bench in (("views1s",), ("context16",))]
    assert (*lengths, family_of("views1s", angles="degrees")[1].inputs) == (2, 0, 3)


def test_a_view_task_is_the_same_in_every_batch():
    _, found = streams("views5s", views(10))
    for split in SPLITS:
        whole = found[split].batch(100, 40)
        for part in ("support", "query"):
            parts = torch.cat([getattr(found[split].batch(i, 1), part).y for i in range(100, 140)])
            torch.testing.assert_close(parts, getattr(whole, part).y)


def test_more_given_views_than_there_are_is_refused():
    with pytest.raises(UserError, match="36 views"):
        streams("views36s", views(10))
    pool = ImagePool(views(10).splits["test"], CPU)
    with pytest.raises(UserError, match="36 views; got 37 given ones"):
        ViewStream(pool, TaskShape(1, 37, VIEWS), "sincos", "a", every_object=True)

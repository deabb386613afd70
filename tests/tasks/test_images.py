from queue import Queue
from threading import current_thread

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from builders import linear_stream
from mlpip_bench.datasets.base import ClassImages
from mlpip_bench.tasks.batch import Labeled, ShapeRange, TaskBatch, TaskShape
from mlpip_bench.tasks.images import HeldOutStream, ImagePool, TaskStream, VariedTaskStream
from mlpip_bench.tasks.stream import Repeated
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.seeding import seed_from

CPU = torch.device("cpu")


def coded_pool(counts: list[int], device: torch.device = CPU) -> ImagePool:
    """Two-pixel images that say which class and which instance they are."""
    images = np.array([[c, i] for c, n in enumerate(counts) for i in range(n)], dtype=np.uint8).reshape(-1, 1, 1, 2)
    names = tuple(f"class{c}" for c in range(len(counts)))
    return ImagePool(ClassImages(images, np.array(counts), names), device)


def decoded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = (x * 255).round().long().flatten(2)
    return values[..., 0], values[..., 1]


@settings(max_examples=40, deadline=None)
@given(
    way=st.integers(2, 12),
    shots=st.integers(1, 4),
    queries=st.integers(1, 4),
    extra=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    seed=st.integers(0, 5),
)
def test_tasks_have_distinct_classes_disjoint_images_and_true_labels(way, shots, queries, extra, seed):
    pool = coded_pool([shots + queries + e for e in extra])
    stream = TaskStream(pool, TaskShape(way, shots, queries), "t", seed)
    batch, indices = stream.batch(0, 20), stream.indices(0, 20)
    for task in range(20):
        assert len(set(indices.classes[task].tolist())) == way
        support, query = indices.support[task].tolist(), indices.query[task].tolist()
        assert len(set(support + query)) == way * (shots + queries)
    for part in (batch.support, batch.query):
        classes, _ = decoded(part.x)
        assert torch.equal(classes, indices.classes.gather(1, part.y))
    assert (batch.support.one_hot.sum(1) == shots).all()
    assert (batch.query.one_hot.sum(1) == queries).all()


def streams_of_classes():
    pool, shape = coded_pool([12] * 9), TaskShape(4, 1, 2)
    stream = TaskStream(pool, shape, "classes")
    return {
        "one shape": stream,
        "unequal queries": stream.unequal(1.0),
        "shapes of their own": VariedTaskStream(pool, ShapeRange((2, 6), (1, 3), 2), "classes"),
        "held out": HeldOutStream(stream, pool, 3, "classes", "held out", split="test"),
        "repeated": Repeated(stream, 3),  # put together of several batches
    }


@pytest.mark.parametrize("name", streams_of_classes())
def test_a_batch_says_which_class_of_its_split_each_label_is(name):
    tasks = 1 if name == "shapes of their own" else 7
    batch = streams_of_classes()[name].batch(5, tasks)
    assert batch.classes.shape == (tasks, batch.support.way)
    for points in (batch.support, batch.query):  # whose pixels say the class
        assert torch.equal(decoded(points.x)[0], batch.classes.gather(1, points.y))
    last = batch.task(tasks - 1)
    assert torch.equal(decoded(last.query.x)[0], last.classes.gather(1, last.query.y))


def test_tasks_that_are_cut_out_of_no_classes_have_none():
    batch = linear_stream(2, 3, 4, "t").batch(0, 2)
    assert batch.classes is None
    assert TaskBatch.cat([batch, batch]).classes is None
    assert batch.task(1).classes is None


def orders(shots: int = 2, queries: int = 3) -> dict[str, torch.Tensor]:
    """Labels ``[task, point]`` of the parts of some streams, in the order in which a method meets them."""
    pool, shape = coded_pool([12] * 9), TaskShape(4, shots, queries)
    stream = TaskStream(pool, shape, "order")
    tasks, held_out = stream.batch(0, 4000), HeldOutStream(stream, pool, queries, "order", "held out", split="test")
    return {"support": tasks.support.y, "query": tasks.query.y, "held out": held_out.batch(0, 4000).query.y}


@pytest.mark.parametrize("part", ["support", "query", "held out"])
def test_a_position_says_nothing_of_a_class(part):
    y = orders()[part]
    tasks, points = y.shape
    per_class = points // 4
    assert (y.sort(1).values == torch.arange(4).repeat_interleave(per_class)).all()
    counts = torch.stack([(y == label).sum(0) for label in range(4)])  # [way, point]
    # Each row and column of the table has a fixed sum, and a task's points are drawn without replacement: the statistic
    # is a chi-square of (way - 1)(points - 1) degrees times points / (points - 1).
    statistic = float((counts - tasks / 4).square().sum()) / (tasks / 4) * (points - 1) / points
    assert stats.chi2.sf(statistic, 3 * (points - 1)) > 1e-3
    # Neighbors are of one class as often as any two points of a random order.
    same = (y[:, 1:] == y[:, :-1]).double()
    expected = (per_class - 1) / (points - 1)
    error = float(same.mean(1).std()) / tasks**0.5
    assert abs(float(same.mean()) - expected) < 4 * error


def test_the_order_of_queries_is_not_that_of_the_support_set():
    labels = orders(shots=3, queries=3)
    for part in ("query", "held out"):
        same = (labels["support"] == labels[part]).double()
        assert abs(float(same.mean()) - 1 / 4) < 4 * float(same.mean(1).std()) / 4000**0.5


def test_a_hundred_ways_never_repeat_a_class():
    # With replacement, 95 of 100 such tasks would hold a class twice (423 x 4 test classes of Omniglot).
    stream = TaskStream(coded_pool([2] * 200), TaskShape(100, 1, 1), "t")
    classes = stream.indices(0, 500).classes
    assert all(len(row.unique()) == 100 for row in classes)


def test_every_class_and_every_image_is_equally_likely():
    stream = TaskStream(coded_pool([6] * 10), TaskShape(3, 1, 2), "uniform")
    indices = stream.indices(0, 4000)
    assert stats.chisquare(indices.classes.flatten().bincount()).pvalue > 1e-3
    assert stats.chisquare(indices.support.flatten().bincount(minlength=60)).pvalue > 1e-3
    assert stats.chisquare(indices.query.flatten().bincount(minlength=60)).pvalue > 1e-3


def test_the_instance_number_is_drawn_separately_for_each_class():
    _, instances = decoded(TaskStream(coded_pool([20] * 9), TaskShape(5, 1, 1), "t").batch(0, 50).support.x)
    assert (instances != instances[:, :1]).any(1).float().mean() > 0.9


@pytest.mark.parametrize("sizes", [[1] * 300, [300], [7, 120, 1, 172], [128, 128, 44]])
def test_the_stream_does_not_depend_on_batch_size(sizes):
    stream = TaskStream(coded_pool([20] * 30), TaskShape(5, 1, 15), "bench", "test")
    whole = stream.indices(0, 300)
    first, parts = 0, []
    for size in sizes:
        parts.append(stream.indices(first, size))
        first += size
    for name in ("classes", "support", "query", "support_y", "query_y"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))


def test_the_next_block_is_drawn_while_this_one_is_used(monkeypatch):
    pool, drawn = coded_pool([20] * 30), Queue()

    def draw(*arguments):
        drawn.put((current_thread(), ImagePool.draw(pool, *arguments)))
        return drawn.queue[-1][1]

    monkeypatch.setattr(pool, "draw", draw)
    stream = TaskStream(pool, TaskShape(5, 1, 15), "t")
    present = stream.indices(0, 16)
    (thread, block), (_, next_block) = (drawn.get(timeout=60) for _ in range(2))
    assert thread is not current_thread()
    assert torch.equal(present.query, block.query[:16])
    monkeypatch.setattr(pool, "draw", lambda *_: pytest.fail("a block was drawn twice"))
    assert torch.equal(stream.indices(112, 16).query, block.query[112:])
    monkeypatch.undo()
    assert torch.equal(stream.indices(128, 16).query, next_block.query[:16])


def test_a_draw_that_fails_says_so_to_who_asks_for_its_tasks(monkeypatch):
    stream = TaskStream(coded_pool([20] * 30), TaskShape(5, 1, 15), "t")
    stream.indices(0, 1)
    stream.indices(128, 1)  # block 2 is being drawn

    def fail(*_):
        raise MemoryError("no room for keys")

    monkeypatch.setattr(stream.pool, "draw", fail)
    stream.indices(256, 1)  # block 3 fails, and nobody has asked for it yet
    with pytest.raises(MemoryError, match="no room for keys"):
        stream.indices(384, 1)


def test_the_stream_is_pinned():
    # Published results rest on these tasks: a change of sampler must be a new version, not an accident.
    indices = TaskStream(coded_pool([20] * 30), TaskShape(3, 1, 1), "omni5w1s", "test").indices(1000, 2)
    assert indices.classes.tolist() == PINNED_CLASSES
    assert indices.support.tolist() == PINNED_SUPPORT
    assert indices.support_y.tolist() == PINNED_LABELS


PINNED_CLASSES = [[6, 2, 23], [7, 20, 13]]
PINNED_SUPPORT = [[51, 120, 467], [277, 147, 411]]
PINNED_LABELS = [[1, 0, 2], [2, 0, 1]]


def test_streams_of_other_names_differ():
    pool, shape = coded_pool([20] * 30), TaskShape(5, 1, 1)
    streams = [TaskStream(pool, shape, *seed).indices(0, 50).classes for seed in (("a", 0), ("a", 1), ("b", 0))]
    assert not torch.equal(streams[0], streams[1])
    assert not torch.equal(streams[0], streams[2])
    assert seed_from("a", "bc") != seed_from("ab", "c")


def test_classes_of_one_group_never_meet_and_are_still_equally_likely():
    groups = np.repeat(np.arange(6), 4)
    data = coded_pool([4] * 24).data
    stream = TaskStream(ImagePool(data, CPU, groups), TaskShape(4, 1, 2), "groups")
    classes = stream.indices(0, 4000).classes
    assert all(len(row.unique()) == 4 for row in torch.from_numpy(groups)[classes])
    # Of 24 classes in groups of 4, a class is in a task with probability 4 / 24; the members of a group exclude each
    # other, which makes the spread smaller, if anything.
    assert stats.chisquare(classes.flatten().bincount(minlength=24)).pvalue > 1e-3
    # All six groups: each is there once, whatever their sizes.
    uneven = np.array([0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4, 5])
    pool = ImagePool(coded_pool([4] * 12).data, CPU, uneven)
    drawn = torch.from_numpy(uneven)[TaskStream(pool, TaskShape(6, 1, 1), "t").indices(0, 50).classes]
    assert (drawn.sort(1).values == torch.arange(6)).all()
    with pytest.raises(UserError, match="way 7 needs 7 test classes that may meet in a task; this data set has 6"):
        TaskStream(pool, TaskShape(7, 1, 1), "t", split="test")


def test_shots_may_differ_between_the_classes_of_a_task():
    batch = TaskStream(coded_pool([8] * 6), TaskShape(3, (1, 4, 2), 2), "t").batch(0, 5)
    assert torch.equal(batch.support.one_hot.sum(1), torch.tensor([[1.0, 4.0, 2.0]]).expand(5, 3))
    assert torch.equal(batch.query.one_hot.sum(1), torch.full((5, 3), 2.0))


def test_class_means_match_a_loop():
    y = torch.tensor([[0, 2, 1, 2, 2], [1, 1, 0, 2, 0]])
    values = torch.randn(2, 5, 7, dtype=torch.float64)
    means = Labeled(torch.zeros(2, 5, 1, dtype=torch.float64), y, 3).class_means(values)
    for task in range(2):
        for c in range(3):
            torch.testing.assert_close(means[task, c], values[task][y[task] == c].mean(0))


@pytest.mark.parametrize(
    ("counts", "shape", "says"),
    [
        ([20] * 20, TaskShape(25, 1, 1), ["way 25 needs 25 test classes", "has 20"]),
        ([20] * 5 + [12] + [20] * 5, TaskShape(5, 1, 15), ["need 16 images", "'class5' has 12", "--queries 11"]),
        ([20] * 9, TaskShape(5, (1, 1, 1, 1, 8), 15), ["need 23 images", "has 20"]),
    ],
)
def test_tasks_that_the_data_cannot_give_are_refused_before_any_is_drawn(counts, shape, says):
    with pytest.raises(UserError) as error:
        TaskStream(coded_pool(counts), shape, "t", split="test")
    for text in says:
        assert text in str(error.value)


@pytest.mark.parametrize("shape", [(0, 1, 1), (5, 0, 1), (5, 1, 0), (5, (1, 2), 1)])
def test_shapes_that_are_no_tasks_are_refused(shape):
    with pytest.raises(UserError):
        TaskShape(*shape)


def test_images_are_scaled_to_one():
    x = TaskStream(coded_pool([3] * 250), TaskShape(5, 1, 1), "t").batch(0, 200).support.x
    assert x.dtype == torch.float32
    assert 0.9 < float(x.max()) <= 1.0


class Copies(TorchDispatchMode):
    """Counts what is copied to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and result.device != args[0].device:
            self.made += 1
        return result


def test_points_of_a_block_go_to_a_device_by_one_copy():
    pool = coded_pool([6] * 8, torch.device("meta"))
    stream = TaskStream(pool, TaskShape(3, 1, 2), "train")
    assert pool.images.is_meta  # they go once, with the first batch
    with Copies() as copies:
        batches = [stream.batch(first, 16) for first in range(0, 256, 16)]
    assert copies.made == 2  # of 16 batches in two blocks
    assert {tuple(batch.query.x.shape[:2]) for batch in batches} == {(16, 6)}
    assert all(part.y.is_meta and part.y._base is None for b in batches for part in (b.support, b.query))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="it takes a GPU")
def test_tasks_of_a_gpu_are_those_of_a_cpu():
    ours, others = (
        TaskStream(coded_pool([6] * 8, torch.device(device)), TaskShape(3, 1, 2), "train").batch(120, 16)
        for device in ("cuda", "cpu")
    )
    for part, other in ((ours.support, others.support), (ours.query, others.query)):
        assert torch.equal(part.x.cpu(), other.x)
        assert torch.equal(part.y.cpu(), other.y)

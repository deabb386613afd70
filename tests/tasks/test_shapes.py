"""Tasks whose way, shots and queries are drawn, too."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tasks.test_images import coded_pool, decoded

from mlpip_bench.tasks.batch import ShapeRange, TaskShape
from mlpip_bench.tasks.images import TaskStream, VariedTaskStream
from mlpip_bench.tasks.stream import OfShapes, WithUnequalQueries, batches
from mlpip_bench.tasks.unequal import _in_proportion, queries_per_class
from mlpip_bench.utils.errors import UserError

RANGE = ShapeRange((2, 6), (1, 4), 3)


def varied(*seed: str | int, shapes: ShapeRange = RANGE) -> VariedTaskStream:
    return VariedTaskStream(coded_pool([9] * 12), shapes, *(seed or ("varied",)), split="test")


def test_each_task_has_the_shape_that_was_drawn_for_it():
    stream = varied()
    assert isinstance(stream, OfShapes)
    assert stream.shape == TaskShape(6, 4, 3)
    for i, shape in enumerate(stream.shapes(0, 40)):
        batch, indices = stream.batch(i, 1), stream.indices(i, 1)
        assert (batch.support.way, batch.query.way) == (shape.way, shape.way)
        assert batch.support.one_hot.sum(1)[0].tolist() == list(shape.shots_per_class)
        assert batch.query.one_hot.sum(1)[0].tolist() == [3] * shape.way
        used = [*indices.support[0].tolist(), *indices.query[0].tolist()]
        assert len(set(used)) == len(used)
        for part in (batch.support, batch.query):
            assert torch.equal(decoded(part.x)[0], indices.classes.gather(1, part.y))


def test_ways_and_the_shots_of_each_class_are_equally_likely():
    shapes = varied().shapes(0, 3000)
    ways = np.bincount([shape.way for shape in shapes])[2:]
    shots = np.bincount([shot for shape in shapes for shot in shape.shots_per_class])[1:]
    assert (len(ways), len(shots)) == (5, 4)
    assert stats.chisquare(ways).pvalue > 1e-3
    assert stats.chisquare(shots).pvalue > 1e-3
    first, second = zip(*(shape.shots_per_class[:2] for shape in shapes), strict=True)
    assert stats.chi2_contingency(np.histogram2d(first, second, 4)[0]).pvalue > 1e-3


def test_a_task_is_a_function_of_its_number_and_the_named_seed():
    one, again, other = varied("a", 0), varied("a", 0), varied("a", 1)
    assert one.shapes(0, 30)[7] == again.shapes(7, 1)[0]
    assert torch.equal(one.indices(7, 1).query, again.indices(7, 1).query)
    assert one.shapes(0, 30) != other.shapes(0, 30)


def test_they_come_one_by_one_and_others_at_once():
    stream = varied()
    found = list(batches(stream, 5, 3))
    assert [batch.support.tasks for batch in found] == [1, 1, 1]
    assert all(torch.equal(b.query.x, stream.batch(i, 1).query.x) for i, b in enumerate(found, 5))
    with pytest.raises(ValueError, match="ask for one"):
        stream.batch(0, 2)
    fixed = TaskStream(coded_pool([9] * 12), TaskShape(3, 1, 2), "fixed")
    assert [batch.support.tasks for batch in batches(fixed, 5, 3)] == [3]


def test_the_largest_shape_must_be_there():
    with pytest.raises(UserError, match="way 13 needs 13 test classes"):
        varied(shapes=ShapeRange((2, 13), (1, 1), 1))
    with pytest.raises(UserError, match=r"shots \(8\) plus queries \(3\) need 11 images"):
        varied(shapes=ShapeRange((2, 3), (1, 8), 3))


# -- unequal queries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("equal", [TaskStream(coded_pool([20] * 9), TaskShape(4, 2, 10), "unequal"), varied("unequal")])
def test_unequal_queries_are_of_the_same_classes_and_support_sets(equal):
    assert isinstance(equal, WithUnequalQueries)
    unequal = equal.unequal(2.0)
    seen = set()
    for i in range(30):
        ours, theirs = unequal.indices(i, 1), equal.indices(i, 1)
        for name in ("classes", "support", "support_y"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
        assert ours.query.shape == theirs.query.shape
        assert len({*ours.query[0].tolist(), *ours.support[0].tolist()}) == ours.query.numel() + ours.support.numel()
        batch = unequal.batch(i, 1)
        assert torch.equal(decoded(batch.query.x)[0], ours.classes.gather(1, batch.query.y))
        seen.add(tuple(sorted(batch.query.one_hot.sum(1)[0].tolist())))
    assert len(seen) > 5


@pytest.mark.parametrize("concentration", [0.5, 2.0, 20.0])
def test_shares_have_the_moments_of_the_dirichlet_distribution(concentration):
    way, total, tasks = 5, 2000, 4000
    rng = np.random.default_rng(0)
    found = queries_per_class(np.full((tasks, way), total), total, concentration, rng) / total
    # Closed form: mean 1/K, variance (1/K)(1 - 1/K) / (K alpha + 1); rounding moves a share by 1/2000 at most.
    variance = (1 / way) * (1 - 1 / way) / (way * concentration + 1)
    assert np.abs(found.mean(0) - 1 / way).max() < 4 * (variance / tasks) ** 0.5 + 1 / total
    assert found.var() == pytest.approx(variance, rel=0.08)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 8), st.integers(1, 20), st.sampled_from([0.01, 0.3, 2.0, 100.0]), st.integers(0, 10**6), st.data()
)
def test_no_class_gives_more_than_it_has(way, queries, concentration, seed, data):
    available = np.array(data.draw(st.lists(st.integers(queries, queries + 9), min_size=way, max_size=way)))
    (found,) = queries_per_class(available[None], way * queries, concentration, np.random.default_rng(seed))
    assert found.sum() == way * queries
    assert (found >= 0).all()
    assert (found <= available).all()


def test_what_a_class_has_not_goes_to_the_others_in_their_proportions():
    class Shares:
        def dirichlet(self, _alphas, size):
            return np.tile([0.6, 0.3, 0.1], (size, 1))

    (found,) = queries_per_class(np.array([[10, 99, 99]]), 50, 1.0, Shares())
    assert found.tolist() == [10, 30, 10]  # the other 40 as 3 to 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(0, 200))
def test_whole_numbers_in_proportion_are_less_than_one_off(weights, total):
    weights = np.array(weights)
    found = _in_proportion(total, weights, np.ones(len(weights), bool))
    exact = total * weights / weights.sum() if weights.sum() > 0 else np.full(len(weights), total / len(weights))
    assert found.sum() == total
    assert (np.abs(found - exact) < 1 + 1e-9).all()

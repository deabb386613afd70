"""The memory module against a memory of Python lists, vectors by hand, and nearest neighbors."""

import math

import pytest
import torch
from mlpip_bench.methods.memory_mod import MemoryModSettings, default_scale
from torch import Tensor
from torch.nn.functional import normalize

from builders import backbone, make_batch, make_method
from mlpip_bench.inference.ordering import ordered
from mlpip_bench.tasks.batch import Labeled, TaskBatch

VECTORS = backbone("identity", (2, 1, 1))


def make(norm: str = "metabn", **settings: object):
    return make_method("memory_mod", norm, **settings).double()


def batch(shots: int = 4, way: int = 3) -> TaskBatch:
    torch.manual_seed(1)
    return make_batch(2, way, shots)


def vectors(*values: tuple[float, float], y: list[int], way: int = 2) -> Labeled:
    x = torch.tensor(values, dtype=torch.float64)
    return Labeled(x[None, :, :, None, None], torch.tensor([y]), way)


def in_turn(points: Labeled) -> Labeled:
    """Those that an evaluation writes in the order in which they are given."""
    places = Labeled(torch.arange(points.y.shape[1]).expand_as(points.y), points.y, points.way)
    back = ordered(places, training=False).x[0].argsort()
    return Labeled(points.x[:, back], points.y[:, back], points.way)


def memory_of(method, support: Labeled) -> list[tuple[Tensor, Tensor]]:
    """Keys and labels of each task's used slots."""
    psi = method.amortize(support).psi.mean
    found = []
    for task in psi:
        keys, one_hot = task[:, : -support.way], task[:, -support.way :]
        used = one_hot.any(-1)
        assert torch.equal(one_hot.sum(-1), used.to(one_hot))
        found.append((keys[used], one_hot[used].argmax(-1)))
    return found


def written_by_hand(features: Tensor, labels: Tensor) -> tuple[list[Tensor], list[int]]:
    """One task's memory: a list of keys and one of labels."""
    keys, values = [], []
    for feature, label in zip(features, labels.tolist(), strict=True):
        q = feature / feature.norm()
        nearest = max(range(len(keys)), key=lambda i: float(q @ keys[i]), default=None)
        if nearest is not None and values[nearest] == label:
            keys[nearest] = (q + keys[nearest]) / (q + keys[nearest]).norm()
        else:
            keys.append(q)
            values.append(label)
    return keys, values


def read_by_hand(method, tasks: TaskBatch):
    """Unit queries, keys and labels of each task."""
    with torch.no_grad():
        features, statistics = method.backbone(tasks.support.x)
        queries = normalize(method.backbone(tasks.query.x, statistics)[0], dim=-1)
    points = ordered(Labeled(features, tasks.support.y, tasks.support.way), training=False)
    return [(queries[t], *written_by_hand(points.x[t], points.y[t])) for t in range(len(queries))]


# Writing


def test_a_memory_is_that_of_lists_that_are_written_a_point_at_a_time():
    method, tasks = make().eval(), batch()
    found, by_hand = memory_of(method, tasks.support), read_by_hand(method, tasks)
    for (keys, labels), (_, expected, values) in zip(found, by_hand, strict=True):
        assert len(set(values)) < len(values) < 12  # some points joined a key, and some are a second one of their class
        place = (keys @ torch.stack(expected).T).argmax(1)
        assert sorted(place.tolist()) == list(range(len(values)))
        torch.testing.assert_close(keys, torch.stack(expected)[place])
        assert labels.tolist() == [values[i] for i in place]


def test_copies_of_an_image_leave_its_key_as_it_is():
    method, tasks = make("layer").eval(), batch(1)
    copies = Labeled(tasks.support.x.repeat_interleave(4, 1), tasks.support.y.repeat_interleave(4, 1), 3)
    for (once, label), (keys, labels) in zip(memory_of(method, tasks.support), memory_of(method, copies), strict=True):
        assert len(keys) == 3
        torch.testing.assert_close(keys[labels.argsort()], once[label.argsort()])


def test_a_point_is_added_to_the_nearest_key_of_its_label():
    method = make_method("memory_mod", spec=VECTORS).double().eval()
    support = in_turn(vectors((1, 0), (0, 5), (3, 4), (12, 5), y=[0, 1, 1, 0]))
    ((keys, labels),) = memory_of(method, support)
    # (3, 4) / 5 is nearer to (0, 1), of its label, which it makes (3, 9) of unit length; (12, 5) / 13 then to (1, 0).
    expected = [(25, 5), (3, 9)]
    assert labels.tolist().count(0) == labels.tolist().count(1) == 1
    torch.testing.assert_close(keys[labels.argsort()], normalize(torch.tensor(expected, dtype=torch.float64), dim=-1))


def test_a_point_whose_nearest_key_has_another_label_has_a_key_of_its_own():
    method = make_method("memory_mod", spec=VECTORS).double().eval()
    ((keys, labels),) = memory_of(method, in_turn(vectors((1, 0), (0, 5), (3, 4), y=[0, 1, 0])))
    assert sorted(labels.tolist()) == [0, 0, 1]
    assert any(torch.allclose(key, torch.tensor([0.6, 0.8], dtype=torch.float64)) for key in keys)


def test_training_writes_in_orders_that_are_drawn_and_evaluation_in_one():
    method, support = make(), batch().support

    def written(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return method.amortize(support).psi.mean

    method.train()
    assert torch.equal(written(1), written(1))
    assert not torch.equal(written(1), written(2))
    method.eval()
    assert torch.equal(written(1), written(2))


@pytest.mark.parametrize("stop", [False, True])
def test_the_loss_has_a_gradient_by_way_of_the_keys_unless_it_is_stopped(stop):
    method, tasks = make("layer", stop_keys=stop), batch()  # with statistics that are an image's own
    for data in (tasks.support.x, tasks.query.x):
        data.requires_grad_()
    method.loss(tasks).backward()
    assert tasks.query.x.grad.any()
    reached = tasks.support.x.grad is not None and bool(tasks.support.x.grad.any())
    assert reached != stop


# Reading


def test_one_shot_is_the_nearest_neighbor_by_cosine():
    method, tasks = make().eval(), batch(1)
    features, statistics = method.backbone(tasks.support.x)
    queries, _ = method.backbone(tasks.query.x, statistics)
    nearest = torch.cosine_similarity(queries.unsqueeze(2), features.unsqueeze(1), dim=-1).argmax(-1)
    predicted = method.predictive(method.amortize(tasks.support), tasks.query.x).probs.argmax(-1)
    assert torch.equal(predicted, tasks.support.y.gather(1, nearest))


@pytest.mark.parametrize("scale", [None, 25.0])
def test_the_predictive_is_a_softmax_over_keys_summed_over_those_of_a_label(scale):
    method, tasks = make(scale=scale, alpha=0.05).eval(), batch(way=8)
    probs = method.predictive(method.amortize(tasks.support), tasks.query.x).probs
    for t, (queries, keys, values) in enumerate(read_by_hand(method, tasks)):
        factor = scale or max(1.0, math.log(0.2 * len(keys)) / 0.05)
        assert factor > 1
        attention = (factor * queries @ torch.stack(keys).T).softmax(-1)
        votes = [attention[:, [v == c for v in values]].sum(-1) for c in range(8)]
        torch.testing.assert_close(probs[t], torch.stack(votes, -1))


def test_the_scale_is_that_of_their_code_for_as_many_keys():
    found = default_scale(torch.tensor([5.0, 256.0], dtype=torch.float64), 0.1)
    assert found.tolist() == pytest.approx([1.0, 39.357], abs=1e-3)  # ln 51.2 = 3.9357


# Loss


def test_the_loss_is_the_margin_of_the_nearest_keys():
    method, tasks = make(scale=3.0, alpha=0.03).eval(), batch()  # in evaluation's order; the scale is nothing to it
    terms = []
    for t, (queries, keys, values) in enumerate(read_by_hand(method, tasks)):
        for query, label in zip(queries, tasks.query.y[t].tolist(), strict=True):
            own = max(float(query @ k) for k, v in zip(keys, values, strict=True) if v == label)
            other = max(float(query @ k) for k, v in zip(keys, values, strict=True) if v != label)
            terms.append(max(0.0, other - own + 0.03))
    assert 0 < sum(term == 0 for term in terms) < len(terms)
    assert method.loss(tasks).item() == pytest.approx(sum(terms) / 24, rel=1e-12)


def test_a_label_without_a_key_has_the_cosine_0():
    method = make_method("memory_mod", spec=VECTORS).double()
    query = vectors((-3, -4), (3, 4), y=[0, 1])
    loss = method.loss(TaskBatch(vectors((1, 0), y=[0]), query))
    # Of (-.6, -.8), whose own key has cosine -.6 and no other is there; and of (.6, .8), of a label without a key.
    assert loss.item() == pytest.approx(((0 + 0.6 + 0.1) + (0.6 - 0 + 0.1)) / 2)


@pytest.mark.parametrize(
    "settings", [{"alpha": 0.0}, {"alpha": math.inf}, {"scale": 0.0}, {"scale": -1.0}, {"scale": math.nan}], ids=str
)
def test_margin_and_scale_must_be_positive_and_finite(settings):
    with pytest.raises(ValueError, match=r"(alpha|scale) must be positive and finite; got"):
        MemoryModSettings(**settings)

"""Siamese networks against loops over pairs, and what must hold of any learned distance."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from builders import make_batch, make_method
from mlpip_bench.evaluation.metrics import ACCURACY
from mlpip_bench.evaluation.predict import score
from mlpip_bench.tasks.batch import Labeled, TaskBatch

UNEQUAL = [0, 3, 4, 6, 7, 8]
"""Points of three classes with three shots, of which they leave 1, 2 and 3."""


def make(norm: str = "metabn"):
    return make_method("siamese_nets", norm).double()


def batch(shots: int = 3, **shape: int) -> TaskBatch:
    torch.manual_seed(1)
    return make_batch(2, shots=shots, **shape)


def unequal() -> TaskBatch:
    tasks = batch()
    return TaskBatch(Labeled(tasks.support.x[:, UNEQUAL], tasks.support.y[:, UNEQUAL], 3), tasks.query)


def logits_by_hand(method, tasks: TaskBatch) -> torch.Tensor:
    """sum_j alpha_j |h_j - h'_j| + b, a pair at a time."""
    support, statistics = method.backbone(tasks.support.x)
    query, _ = method.backbone(tasks.query.x, statistics)
    alpha, b = method.comparison.weight[0], method.comparison.bias[0]
    logits = query.new_zeros(*query.shape[:2], support.shape[1])
    for t, m, i in itertools.product(*map(range, logits.shape)):
        logits[t, m, i] = (alpha * (query[t, m] - support[t, i]).abs()).sum() + b
    return logits


@pytest.mark.parametrize("tasks", [batch(1), unequal()], ids=["one shot", "unequal shots"])
def test_a_class_scores_the_mean_logit_of_its_pairs(tasks):
    method = make().eval()
    by_hand = logits_by_hand(method, tasks)
    assert (method.comparison.weight > 0).any()
    assert (method.comparison.weight < 0).any()
    probs = method.predictive(method.amortize(tasks.support), tasks.query.x).probs
    for t in range(2):
        for m in range(12):
            scores = [by_hand[t, m, tasks.support.y[t] == c].mean() for c in range(3)]
            torch.testing.assert_close(probs[t, m], torch.stack(scores).softmax(0))


def test_with_one_shot_the_class_is_that_of_the_most_probable_pair():
    method, tasks = make().eval(), batch(1)
    most = logits_by_hand(method, tasks).sigmoid().argmax(-1)
    expected = tasks.support.y.gather(1, most)
    assert len(expected.unique()) > 1
    assert torch.equal(method.predictive(method.amortize(tasks.support), tasks.query.x).probs.argmax(-1), expected)


@pytest.mark.parametrize("tasks", [batch(1), batch(), unequal()], ids=["one shot", "three shots", "unequal shots"])
def test_the_loss_is_cross_entropy_of_pairs_with_half_the_weight_on_either_kind(tasks):
    method = make()
    by_hand, total = logits_by_hand(method, tasks), 0.0
    for t in range(2):
        for m in range(12):
            same, other = [], []
            for i, label in enumerate(tasks.support.y[t]):
                p = by_hand[t, m, i].sigmoid().item()
                if label == tasks.query.y[t, m]:
                    same.append(-math.log(p))
                else:
                    other.append(-math.log(1 - p))
            total += sum(same) / len(same) / 2 + sum(other) / len(other) / 2
    assert method.loss(tasks).item() == pytest.approx(total / 24, rel=1e-12)


def test_gradients_are_those_of_the_pairs_by_hand():
    method, tasks = make(), unequal()
    same = (tasks.query.y.unsqueeze(-1) == tasks.support.y.unsqueeze(1)).double()
    losses = F.binary_cross_entropy_with_logits(logits_by_hand(method, tasks), same, reduction="none")
    halves = [(losses * kind).sum(-1) / kind.sum(-1) for kind in (same, 1 - same)]
    expected = torch.autograd.grad(sum(halves).mean() / 2, list(method.parameters()))
    for found, wanted in zip(torch.autograd.grad(method.loss(tasks), list(method.parameters())), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_images_of_a_pair_may_be_swapped():
    method, tasks = make("layer"), batch(1, queries=1)  # whose statistics are an image's own
    there, _ = method.pairs(method.amortize(tasks.support), tasks.query.x)
    back, _ = method.pairs(method.amortize(tasks.query), tasks.support.x)
    torch.testing.assert_close(back, there.mT)


def test_an_image_and_itself_have_the_logit_b():
    method, tasks = make("layer"), batch()
    logits, _ = method.pairs(method.amortize(tasks.support), tasks.support.x)
    b = method.comparison.bias.expand(2, 9)
    torch.testing.assert_close(logits.diagonal(dim1=1, dim2=2), b, rtol=0, atol=0)
    assert not torch.isclose(logits, method.comparison.bias).all()


@pytest.mark.parametrize(("way", "shots"), [(2, 1), (3, 1), (6, 1), (6, 3)])
def test_logits_of_0_have_loss_log_2_at_any_way_and_shot(way, shots):
    method, tasks = make(), batch(shots, way=way)
    torch.nn.init.zeros_(method.comparison.weight)
    torch.nn.init.zeros_(method.comparison.bias)
    assert method.loss(tasks).item() == pytest.approx(math.log(2), rel=1e-12)


@pytest.mark.parametrize("shots", [1, 5])
def test_embeddings_that_are_all_the_same_give_the_uniform_predictive_and_chance_accuracy(shots):
    method, tasks = make().eval(), batch(shots)
    for data in (tasks.support.x, tasks.query.x):
        data.fill_(0.3)
    predictive = method.predictive(method.amortize(tasks.support), tasks.query.x)
    torch.testing.assert_close(predictive.probs, torch.full((2, 12, 3), 1 / 3, dtype=torch.float64))
    assert list(score(ACCURACY, [(predictive, tasks.query.y)])) == pytest.approx([1 / 3] * 2)


class Largest(TorchDispatchMode):
    """The most numbers that a tensor has, of those that are made within."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        sizes = [t.untyped_storage().nbytes() // t.element_size() for t in tree_leaves(made) if torch.is_tensor(t)]
        self.numbers = max(self.numbers, *sizes, 0)
        return made


def test_no_tensor_has_the_features_of_all_pairs():
    method = make()
    tasks = make_batch(1, 20, 5, 10)
    with Largest() as largest:
        method.loss(tasks).backward()
    assert method.comparison.weight.grad.any()
    pairs = tasks.query.y.numel() * tasks.support.y.numel()
    assert pairs <= largest.numbers < pairs * method.backbone.features / 2

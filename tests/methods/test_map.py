"""mAP-SSVM and mAP-DLM: rankings against all of them written out, and the losses against their definitions."""

import functools
import itertools

import pytest
import torch
from mlpip_bench.methods.map_dlm import MapDLMSettings
from torch.nn import functional as F

from builders import backbone, make_batch, make_method
from mlpip_bench.inference.rankings import Queries, RankingSettings
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.testing.comparing import select

WEIGHTS = (0.0, 0.2, 1.0, 6.0, -0.2, -1.0, -6.0)


def average_precision(relevant: list[bool]) -> float:
    """Of a ranking: the mean over relevant points of the share of relevant ones down to each."""
    found, total = 0, 0.0
    for place, hit in enumerate(relevant, 1):
        found += hit
        total += hit * found / place
    return total / found


def coefficients(ranking: tuple[int, ...], relevant: list[bool]) -> list[float]:
    """F's of each similarity: the mean over pairs of +-(similarity(relevant) - similarity(other))."""
    made, pairs = [0.0] * len(relevant), sum(relevant) * (len(relevant) - sum(relevant))
    for earlier, later in itertools.combinations(ranking, 2):
        if relevant[earlier] != relevant[later]:
            made[earlier] += 1 / pairs
            made[later] -= 1 / pairs
    return made


@functools.cache
def all_rankings(relevant: tuple[bool, ...]) -> list[tuple[list[float], float]]:
    """Of each ranking, F's coefficients and the loss."""
    return [
        (coefficients(y, relevant), 1 - average_precision([relevant[i] for i in y]))
        for y in itertools.permutations(range(len(relevant)))
    ]


def by_brute_force(similarity: torch.Tensor, relevant: list[bool], weight: float) -> tuple[float, list[float]]:
    """Value and gradient of max F + weight (1 - AP), over all rankings."""
    values = similarity.tolist()
    return max(
        (sum(s * v for s, v in zip(slope, values, strict=True)) + weight * loss, slope)
        for slope, loss in all_rankings(tuple(relevant))
    )


def ranked(similarity: torch.Tensor, relevant: list[bool]) -> list[bool]:
    return [relevant[i] for i in similarity.argsort(descending=True)]


def random_queries(shape: tuple[int, ...], points: int, seed: int = 0) -> Queries:
    """Each with one relevant and one other point at least, and with one that is neither."""
    generator = torch.Generator().manual_seed(seed)
    relevant = torch.rand(*shape, points, generator=generator) < 0.5
    relevant[..., 0], relevant[..., 1] = True, False
    other = ~relevant
    other[..., -1] = relevant[..., -1] = False
    return Queries(torch.randn(*shape, points, generator=generator, dtype=torch.float64), relevant, other)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_best_score_is_that_of_brute_force_over_all_rankings_for_many_queries_at_once(weight):
    queries = random_queries((2, 4), 7)
    similarity = queries.similarity.requires_grad_()
    value = queries.best_score(weight)
    (gradient,) = torch.autograd.grad(value.sum(), similarity)
    numbers = set()
    for at in itertools.product(range(2), range(4)):
        relevant = queries.relevant[at][:-1].tolist()
        numbers.add(sum(relevant))
        expected, slope = by_brute_force(similarity[at][:-1].detach(), relevant, weight)
        assert value[at].item() == pytest.approx(expected, abs=1e-12)
        assert gradient[at].tolist() == pytest.approx([*slope, 0.0])
    assert len(numbers) > 2


def test_without_a_loss_the_best_ranking_is_sorted_and_without_errors_it_is_the_perfect_one():
    queries = random_queries((3, 5), 9)
    gaps = queries.similarity.unsqueeze(-1) - queries.similarity.unsqueeze(-2)
    pairs = queries.relevant.unsqueeze(-1) & queries.other.unsqueeze(-2)
    absolute = torch.stack([gaps[at][pairs[at]].abs().mean() for at in itertools.product(range(3), range(5))])
    signed = torch.stack([gaps[at][pairs[at]].mean() for at in itertools.product(range(3), range(5))])
    torch.testing.assert_close(queries.best_score(0.0).flatten(), absolute)
    torch.testing.assert_close(queries.perfect_score().flatten(), signed)
    separated = Queries(queries.similarity + 1e4 * queries.relevant, queries.relevant, queries.other)
    for weight in WEIGHTS:  # which no weight makes up for
        torch.testing.assert_close(separated.best_score(weight), separated.perfect_score())


@pytest.mark.parametrize("weight", [1e-6, -1e-6])
def test_the_slope_in_the_weight_is_one_minus_the_average_precision(weight):
    queries = random_queries((40,), 12)
    slope = (queries.best_score(weight) - queries.best_score(0.0)) / weight
    for t in range(40):
        precision = average_precision(ranked(queries.similarity[t, :-1], queries.relevant[t, :-1].tolist()))
        assert float(slope[t]) == pytest.approx(1 - precision, abs=1e-8)


def test_losses_bound_one_minus_the_average_precision():
    queries = random_queries((60,), 12)
    precision = torch.tensor(
        [average_precision(ranked(queries.similarity[t, :-1], queries.relevant[t, :-1].tolist())) for t in range(60)],
        dtype=torch.float64,
    )
    for epsilon in (0.1, 1.0, 10.0):
        hinge = queries.best_score(epsilon) - queries.perfect_score()
        above, below = ((queries.best_score(w) - queries.best_score(0.0)) / w for w in (epsilon, -epsilon))
        assert (hinge >= epsilon * (1 - precision) - 1e-9).all()
        assert (above >= 1 - precision - 1e-9).all()
        assert (below <= 1 - precision + 1e-9).all()
        assert (below >= -1e-9).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_the_direct_loss_has_the_gradient_of_the_expected_average_precision(sign):
    """Of similarities with Gaussian noise, moved along a direction; by finite differences of the expectation."""
    generator = torch.Generator().manual_seed(0)
    relevant = torch.tensor([True, True, False, False, False])
    mean, direction = torch.tensor([0.3, -0.2, 0.1, 0.0, 0.2]), torch.tensor([1.0, -0.5, 0.2, -1.0, 0.4])
    epsilon, step = 0.05, 0.1
    noise = torch.randn(100_000, 5, generator=generator, dtype=torch.float64)

    def expected(along: float) -> float:
        hits = relevant[(mean + along * direction + noise).argsort(-1, descending=True)].double()
        return float(1 - ((hits.cumsum(-1) / torch.arange(1, 6)) * hits).sum(-1).mean() / 2)

    along = torch.zeros((), dtype=torch.float64, requires_grad=True)
    similarity = mean + along * direction + noise
    queries = Queries(similarity, relevant.expand_as(similarity), ~relevant.expand_as(similarity))
    loss = ((queries.best_score(sign * epsilon) - queries.best_score(0.0)) / (sign * epsilon)).mean()
    (slope,) = torch.autograd.grad(loss, along)
    assert float(slope) == pytest.approx((expected(step) - expected(-step)) / (2 * step), rel=0.05)


def test_queries_without_a_pair_count_nothing():
    similarity = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    everything, nothing = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)
    queries = Queries(similarity, torch.stack([nothing, everything]), torch.stack([everything, nothing]))
    for value in (queries.best_score(1.0), queries.best_score(-1.0), queries.perfect_score()):
        assert value.tolist() == [0, 0]
    queries.best_score(1.0).sum().backward()
    assert similarity.grad.isfinite().all()


# The methods


def make(name: str, **settings: object):
    return make_method(name, **settings).double()


def embedded(method, batch: TaskBatch) -> tuple[torch.Tensor, torch.Tensor]:
    support, statistics = method.ranker.backbone(batch.support.x)
    return F.normalize(support, dim=-1), F.normalize(method.ranker.backbone(batch.query.x, statistics)[0], dim=-1)


@pytest.mark.parametrize("name", ["map_ssvm", "map_dlm"])
def test_the_predictive_is_a_softmax_of_mean_cosines(name):
    method, batch = make(name, scale=7.0).eval(), make_batch(2)
    support, query = embedded(method, batch)
    probs = method.predictive(method.amortize(batch.support), batch.query.x).probs
    for t, m in itertools.product(range(2), range(12)):
        cosines = F.cosine_similarity(support[t], query[t, m].unsqueeze(0))
        means = torch.stack([cosines[batch.support.y[t] == c].mean() for c in range(3)])
        torch.testing.assert_close(probs[t, m], (7.0 * means).softmax(0))


UNEQUAL = ([0, 1, 3], [0, 2, 3, 5])
"""Of two classes: two support points and one, and queries that are one of each and two of the second."""


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize(
    ("name", "settings"), [("map_ssvm", {}), ("map_dlm", {"positive": True}), ("map_dlm", {"positive": False})]
)
def test_the_loss_is_a_mean_over_the_points_of_a_task_each_by_brute_force(name, settings, epsilon):
    whole = make_batch(2, way=2, shots=2, queries=3)
    unequal = TaskBatch(*(select(part, keep) for part, keep in zip((whole.support, whole.query), UNEQUAL, strict=True)))
    batches = make_batch(2, way=2, shots=1, queries=2), unequal
    method = make(name, epsilon=epsilon, **settings)
    for batch in batches:
        points = torch.cat(embedded(method, batch), 1).detach()
        y, losses = batch.merged.y, []
        for t, i in itertools.product(range(2), range(y.shape[1])):
            others = [j for j in range(y.shape[1]) if j != i]
            relevant = [bool(y[t, j] == y[t, i]) for j in others]
            cosines = points[t, others] @ points[t, i]
            at = {w: by_brute_force(cosines, relevant, w * epsilon)[0] for w in (1, 0, -1)}
            chosen = torch.tensor(relevant)
            hinge = at[1] - float(cosines[chosen].mean() - cosines[~chosen].mean())
            direct = at[1] - at[0] if settings.get("positive", True) else at[0] - at[-1]
            losses.append(hinge if name == "map_ssvm" else direct / epsilon)
        assert method.loss(batch).item() == pytest.approx(sum(losses) / len(losses), abs=1e-12)


def test_both_have_no_loss_where_classes_are_separated():
    y = torch.arange(3).repeat_interleave(2).expand(2, -1)
    images = F.one_hot(y, 3).double().view(2, 6, 3, 1, 1)
    tasks = TaskBatch(Labeled(images, y, 3), Labeled(images, y, 3))
    for name in ("map_ssvm", "map_dlm"):
        method = make_method(name, spec=backbone("identity", (3, 1, 1)), epsilon=0.3).double()
        assert method.loss(tasks).item() == pytest.approx(0, abs=1e-12)
        wrong = TaskBatch(tasks.support, Labeled(images.roll(2, 1), y, 3))
        assert method.loss(wrong).item() > 0.2


@pytest.mark.parametrize("settings", [RankingSettings, MapDLMSettings])
@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": float("inf")}, {"scale": -1.0}])
def test_settings_that_make_no_sense_are_refused(settings, wrong):
    with pytest.raises(ValueError, match="must be positive and finite; got"):
        settings(**wrong)

import pytest
import torch
from torch.nn import functional as F

from mlpip_bench.nn.normalization import Normalization
from mlpip_bench.utils.choices import NORM_MODES

SHAPE = (2, 5, 3, 4, 6)  # task point channel height width


def layer(mode: str, *, seed: int = 0) -> Normalization:
    torch.manual_seed(seed)
    norm = Normalization(3, mode).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return norm


def images(seed: int, points: int = 5) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(2, points, 3, 4, 6, dtype=torch.float64) * 3 + 1


def affine(norm: Normalization, x: torch.Tensor) -> torch.Tensor:
    return x * norm.scale + norm.shift


def batch_norm(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([F.batch_norm(task, None, None, training=True) for task in x])


@pytest.mark.parametrize("mode", ["transductive", "metabn", "running"])
def test_support_is_batch_normalized_per_task(mode):
    norm, x = layer(mode), images(1)
    torch.testing.assert_close(norm(x, None)[0], affine(norm, batch_norm(x)))


def test_transductive_queries_use_their_own_statistics():
    norm, support, query = layer("transductive"), images(1), images(2, 7)
    _, moments = norm(support, None)
    torch.testing.assert_close(norm(query, moments)[0], affine(norm, batch_norm(query)))


def test_metabn_queries_use_the_support_statistics():
    norm, support, query = layer("metabn"), images(1), images(2, 7)
    _, moments = norm(support, None)
    by_hand = torch.stack(
        [
            F.batch_norm(q, s.mean((0, 2, 3)), s.var((0, 2, 3), correction=0), training=False)
            for s, q in zip(support, query, strict=True)
        ]
    )
    torch.testing.assert_close(norm(query, moments)[0], affine(norm, by_hand))


def test_layer_and_instance_match_torch():
    x = images(1)
    norm = layer("layer")
    torch.testing.assert_close(norm(x, None)[0], affine(norm, F.layer_norm(x, x.shape[2:])))
    norm = layer("instance")
    by_hand = F.instance_norm(x.flatten(0, 1)).view(x.shape)
    torch.testing.assert_close(norm(x, None)[0], affine(norm, by_hand))


def task_norm_by_hand(norm: Normalization, support: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """TaskNorm-I for one task, image by image and channel by channel."""
    alpha = torch.sigmoid(norm.blend_slope * len(support) + norm.blend_offset)
    out = torch.empty_like(query)
    for image in range(len(query)):
        for c in range(3):
            s, x = support[:, c], query[image, c]
            mean = alpha * s.mean() + (1 - alpha) * x.mean()
            variance = alpha * (s.var(correction=0) + (s.mean() - mean) ** 2) + (1 - alpha) * (
                x.var(correction=0) + (x.mean() - mean) ** 2
            )
            out[image, c] = (x - mean) / (variance + 1e-5).sqrt() * norm.scale[c, 0, 0] + norm.shift[c, 0, 0]
    return out


def test_tasknorm_matches_its_formula_for_support_and_queries():
    norm, support, query = layer("tasknorm"), images(1), images(2, 7)
    out, moments = norm(support, None)
    queries, _ = norm(query, moments)
    for task in range(2):
        torch.testing.assert_close(out[task], task_norm_by_hand(norm, support[task], support[task]))
        torch.testing.assert_close(queries[task], task_norm_by_hand(norm, support[task], query[task]))


def test_running_averages_are_used_at_test_and_follow_their_recursion():
    norm = layer("running")
    mean, variance = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    for seed in range(4):
        x = images(seed)
        norm.move_averages(norm(x, None)[1])
        norm(x * 5, None)  # an inner step must leave no trace
        mean = 0.9 * mean + 0.1 * x.mean((1, 3, 4)).mean(0)
        variance = 0.9 * variance + 0.1 * x.var((1, 3, 4), correction=0).mean(0)
    norm.eval()
    x = images(9)
    by_hand = F.batch_norm(x.flatten(0, 1), mean, variance, training=False).view(x.shape)
    before = norm.running_mean.clone()
    torch.testing.assert_close(norm(x, None)[0], affine(norm, by_hand))
    assert torch.equal(norm.running_mean, before)


@pytest.mark.parametrize("mode", NORM_MODES)
def test_gradients_equal_finite_differences_to_second_order(mode):
    norm, support, query = layer(mode), images(1, 2)[:1, :, :, :2, :2], images(2, 2)[:1, :, :, :2, :2]

    def forward(s: torch.Tensor, q: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        out, moments = norm(s, None)
        return torch.cat([out, norm(q, moments)[0]])

    inputs = (support.requires_grad_(), query.requires_grad_(), *norm.parameters())
    assert torch.autograd.gradcheck(forward, inputs)
    assert torch.autograd.gradgradcheck(forward, inputs)


@pytest.mark.parametrize("mode", NORM_MODES)
def test_a_task_does_not_see_the_other_tasks(mode):
    norm, support, query = layer(mode).eval(), images(1), images(2)
    _, moments = norm(support, None)
    together, _ = norm(query, moments)
    _, own = norm(support[1:], None)
    torch.testing.assert_close(norm(query[1:], own)[0], together[1:])

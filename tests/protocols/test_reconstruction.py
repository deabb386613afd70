import base64
import io

import numpy as np
import pytest
import torch
from mlpip_bench.methods.amortized_vi import AmortizedVI
from mlpip_bench.methods.cvae import CVAE, CVAESettings
from mlpip_bench.methods.mean_view import MeanView
from mlpip_bench.methods.nearest_view import NearestView
from mlpip_bench.methods.versa import Versa, VersaSettings
from mlpip_bench.protocols.reconstruction import Reconstruction
from PIL import Image
from scipy import ndimage
from torch.distributions import Normal, kl_divergence

from builders import CPU, backbone, invoke
from mlpip_bench.datasets.views import SIDE, VIEWS, view_dataset
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.evaluation.metrics import MSE, SSIM, SSIM_RANGE_2
from mlpip_bench.evaluation.predict import predict
from mlpip_bench.evaluation.protocol import Evaluation
from mlpip_bench.inference.distributions import Delta, MonteCarloMixture
from mlpip_bench.inference.method import Problem
from mlpip_bench.records import store
from mlpip_bench.tasks.batch import Labeled, TaskBatch, TaskShape
from mlpip_bench.tasks.images import ImagePool
from mlpip_bench.tasks.views import ViewStream
from mlpip_bench.utils.settings import NoSettings

SMALL = Problem(backbone("view_encoder", (1, 8, 8), blocks=2, channels=4), "metabn", 1, "reconstruction", 1.0, 2)
FULL = Problem(backbone("view_encoder", (1, 32, 32)), "metabn", 1, "reconstruction", 1.0, 2)


def circle(degrees) -> torch.Tensor:
    turn = torch.as_tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([turn.sin(), turn.cos()], -1)


def batch(tasks=3, given=2, asked=4, seed=0, side=8) -> TaskBatch:
    generator = torch.Generator().manual_seed(seed)

    def part(points):
        x = circle(10 * torch.randint(36, (tasks, points), generator=generator))
        return Labeled(x, torch.rand(tasks, points, 1, side, side, generator=generator, dtype=torch.float64), 1)

    return TaskBatch(part(given), part(asked))


def objects(seed=0, count=10) -> ViewStream:
    images = np.random.default_rng(seed).integers(0, 256, (count, VIEWS, SIDE, SIDE), dtype=np.uint8)
    data = view_dataset("noise", "real", images, [f"o{i}" for i in range(count)], {"angles": "sincos"})
    pool = ImagePool(data.splits["train"], CPU)
    return ViewStream(pool, TaskShape(1, 2, VIEWS), "sincos", "test", every_object=True)


# -- metrics


def test_mse_and_ssim_of_a_pair_are_those_of_their_formulas():
    """Wang et al. 2004 with a 7x7 uniform window and sample covariance, by scipy's filters."""
    rng = np.random.default_rng(0)
    truth, image = rng.random((2, 16, 16))
    predictive = Delta(torch.tensor(image)[None, None, None], event_dim=3)
    y = torch.tensor(truth)[None, None, None]
    assert float(MSE.score(predictive, y)) == pytest.approx(((truth - image) ** 2).mean())

    def formula(data_range):
        def mean(a):
            return ndimage.uniform_filter(a, 7)[3:-3, 3:-3]

        unbiased = 49 / 48
        mx, my = mean(image), mean(truth)
        vx, vy = (unbiased * (mean(a * a) - mean(a) ** 2) for a in (image, truth))
        vxy = unbiased * (mean(image * truth) - mx * my)
        c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
        return (((2 * mx * my + c1) * (2 * vxy + c2)) / ((mx**2 + my**2 + c1) * (vx + vy + c2))).mean()

    assert float(SSIM.score(predictive, y)) == pytest.approx(formula(1.0), abs=1e-9)
    assert float(SSIM_RANGE_2.score(predictive, y)) == pytest.approx(formula(2.0), abs=1e-9)
    assert formula(2.0) > formula(1.0)  # why the paper's are larger


def test_metrics_average_over_the_views_of_a_task():
    y = torch.rand(2, 3, 1, 8, 8, dtype=torch.float64)
    image = torch.rand_like(y)
    for metric in (MSE, SSIM):
        alone = [
            [float(metric.score(Delta(image[t : t + 1, v : v + 1], 3), y[t : t + 1, v : v + 1])) for v in range(3)]
            for t in range(2)
        ]
        assert metric.score(Delta(image, 3), y).tolist() == pytest.approx([np.mean(row) for row in alone])


# -- networks


def test_the_networks_have_the_papers_sizes():
    model = Versa(FULL, VersaSettings(samples=1, eval_samples=1)).model
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if name.endswith("weight")}
    assert [shapes[f"encoder.convolutions.{i}.weight"] for i in range(4)] == [(64, 1, 3, 3)] + [(64, 64, 3, 3)] * 3
    assert shapes["encoder.dense.0.weight"] == (256, 256)
    assert shapes["before_pooling.0.0.weight"] == (256, 258)
    assert shapes["mean.0.weight"] == shapes["log_variance.0.weight"] == (256, 256)
    assert (shapes["generator.hidden.0.weight"], shapes["generator.dense.0.weight"]) == ((512, 258), (1024, 512))
    widths = [(256, 128), (128, 64), (64, 32), (32, 1)]
    assert [shapes[f"generator.deconvolutions.{i}.weight"] for i in range(4)] == [(*w, 3, 3) for w in widths]
    images = model.generator(torch.randn(2, 5, 258)).detach()
    assert images.shape == (2, 5, 1, 32, 32)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1


def test_amortisation_pools_over_the_given_views_whatever_their_order_and_number():
    method = Versa(SMALL, VersaSettings(samples=1)).double().eval()
    support = batch(given=5).support
    q = method.amortize(support).psi
    order = torch.tensor([3, 0, 4, 2, 1])
    shuffled = method.amortize(Labeled(support.x[:, order], support.y[:, order], 1)).psi
    torch.testing.assert_close(shuffled.mean, q.mean)
    torch.testing.assert_close(shuffled.stddev, q.stddev)
    doubled = method.amortize(Labeled(support.x.repeat(1, 2, 1), support.y.repeat(1, 2, 1, 1, 1), 1)).psi
    torch.testing.assert_close(doubled.mean, q.mean)  # a mean, no sum
    fewer = method.amortize(Labeled(support.x[:, :4], support.y[:, :4], 1)).psi
    assert not torch.allclose(fewer.mean, q.mean)


def test_versa_loss_is_equation_4_in_pixels_by_hand():
    method, tasks = Versa(SMALL, VersaSettings(samples=3)).double(), batch()
    torch.manual_seed(5)
    loss = method.loss(tasks).item()
    torch.manual_seed(5)
    noise = torch.randn(3, 3, 16, dtype=torch.float64)
    q, total = method.amortize(tasks.support).psi, 0.0
    for t in range(3):
        for m in range(4):
            densities = []
            for sample in range(3):
                psi = q.mean[t] + q.stddev[t] * noise[sample, t]
                image = method.model.generator(torch.cat([psi, tasks.query.x[t, m]])[None])[0]
                squares = (tasks.query.y[t, m] - image).square().sum()
                densities.append(-squares / 2 - 64 * np.log(2 * np.pi) / 2)
            total -= torch.stack(densities).logsumexp(0).item() - np.log(3)
    assert loss == pytest.approx(total / 12, rel=1e-9)


def test_one_sample_at_evaluation_is_the_mean_of_q():
    method = Versa(SMALL, VersaSettings(samples=1, eval_samples=1)).double().eval()
    tasks = batch()
    q = method.amortize(tasks.support)
    got = method.predictive(q, tasks.query.x)
    assert isinstance(got, MonteCarloMixture)
    expected = method.model.generator(torch.cat([q.psi.mean.unsqueeze(1).expand(-1, 4, -1), tasks.query.x], -1))
    torch.testing.assert_close(got.mean, expected)


# -- the baselines


def test_cvae_loss_is_the_negative_bound_of_each_view_by_itself():
    method, tasks = CVAE(SMALL, CVAESettings(samples=2, beta=0.5)).double(), batch()
    torch.manual_seed(5)
    loss = method.loss(tasks).item()
    torch.manual_seed(5)
    noise = torch.randn(2, 18, 16, dtype=torch.float64)
    views, total = tasks.merged, 0.0
    for n in range(18):
        x, y = views.x.flatten(0, 1)[n], views.y.flatten(0, 1)[n]
        q = method.amortize(Labeled(x[None, None], y[None, None], 1)).psi
        logs = []
        for sample in range(2):
            psi = q.mean[0] + q.stddev[0] * noise[sample, n]
            image = method.model.generator(torch.cat([psi, x])[None])[0]
            logs.append(Normal(image, 1.0).log_prob(y).sum())
        kl = kl_divergence(Normal(q.mean[0], q.stddev[0]), Normal(0.0, 1.0)).sum()
        total -= (torch.stack(logs).mean() - 0.5 * kl).item()
    assert loss == pytest.approx(total / 18, rel=1e-9)


def test_cvae_has_versas_architecture():
    shapes = [
        {name: p.shape for name, p in method.named_parameters()}
        for method in (
            Versa(FULL, VersaSettings()),
            CVAE(FULL, CVAESettings()),
            AmortizedVI(FULL, AmortizedVI.Settings()),
        )
    ]
    assert shapes[0] == shapes[1] == shapes[2]


def test_the_mean_view_is_the_mean_of_all_views_at_an_angle():
    method = MeanView(SMALL, NoSettings()).double().train()
    batches = [batch(seed=s) for s in range(4)]
    for each in batches:
        method.loss(each)
    x = torch.cat([b.merged.x.flatten(0, 1) for b in batches])
    y = torch.cat([b.merged.y.flatten(0, 1) for b in batches])
    angles = torch.arange(36) * 10
    got = method.eval().predictive(method.amortize(batches[0].support), circle(angles)[None].expand(3, -1, -1)).mean[0]
    for i, angle in enumerate(circle(angles)):
        at = (x - angle).abs().amax(-1) < 1e-6
        expected = y[at].mean(0) if at.any() else torch.full((1, 8, 8), 0.5, dtype=torch.float64)
        torch.testing.assert_close(got[i], expected)
    before = method.total.clone()
    method.loss(batches[0])
    assert torch.equal(method.total, before)  # nothing is added in evaluation


def test_the_nearest_view_is_a_copy_and_a_tie_is_the_mean():
    method = NearestView(SMALL, NoSettings()).double()
    images = torch.rand(1, 3, 1, 8, 8, dtype=torch.float64)
    support = Labeled(circle([[0, 90, 350]]), images, 1)
    got = method.predictive(method.amortize(support), circle([[0, 40, 100, 180, 300, 355, 45]])).mean[0]
    ties = {5: (0, 2), 6: (0, 1)}  # 355 between 0 and 350, 45 between 0 and 90
    for i, chosen in enumerate((0, 0, 1, 1, 2, None, None)):
        expected = images[0, chosen] if chosen is not None else images[0, list(ties[i])].mean(0)
        torch.testing.assert_close(got[i], expected)


# -- protocol


def test_scores_with_and_without_the_given_views_and_the_images_of_the_figure():
    stream = objects()
    scores = Reconstruction().measure(Evaluation(NearestView(FULL, NoSettings()), "best", stream, 7))
    found = {(s.metric, s.condition.get("views", "all")): s for s in scores}
    tasks = stream.batch(0, 7)
    turn = torch.atan2(tasks.support.x[..., 0], tasks.support.x[..., 1]).rad2deg().div(10).round().long() % 36
    for t in range(7):
        errors = []
        for view in range(36):
            distances = [min((view - g) % 36, (g - view) % 36) for g in turn[t].tolist()]
            nearest = [i for i in range(2) if distances[i] == min(distances)]
            copy = tasks.support.y[t, nearest].mean(0)
            errors.append(float((copy - tasks.query.y[t, view]).square().mean()))
        unseen = [e for view, e in enumerate(errors) if view not in turn[t].tolist()]
        assert found["mse", "all"].per_task[t] == pytest.approx(np.mean(errors), rel=1e-5)
        assert found["mse", "unseen"].per_task[t] == pytest.approx(np.mean(unseen), rel=1e-5)
        assert np.mean(errors) < np.mean(unseen)  # a copy of a given view is right
    assert {m for m, _ in found} == {"mse", "ssim", "ssim_range_2"}
    detail = found["mse", "all"].detail
    truth = np.asarray(Image.open(io.BytesIO(base64.b64decode(detail["truth"]))))
    assert truth.shape == (3 * 32, 12 * 32)
    expected = (tasks.query.y[:3, ::3, 0] * 255).round().byte().numpy()
    np.testing.assert_array_equal(truth[32:64, 64:96], expected[1, 2])
    given = np.asarray(Image.open(io.BytesIO(base64.b64decode(detail["given"]))))
    np.testing.assert_array_equal(given[64:, 32:], (tasks.support.y[2, 1, 0] * 255).round().byte().numpy())


def test_predictions_are_kept_as_images_and_are_inductive():
    method, stream = Versa(FULL, VersaSettings(samples=1, eval_samples=1)), objects()
    ((images, y),) = predict(method, stream, 5)
    assert isinstance(images, Delta)
    assert images.mean.dtype == torch.float32
    assert images.mean.shape == y.shape == (5, 36, 1, 32, 32)
    assert is_inductive(method, stream.batch(0, 2))

    class Transductive(NearestView):
        def predictive(self, q, query_x):
            near = super().predictive(q, query_x)
            return type(near)(Normal(near.mean + query_x.mean(), 1.0), 3)

    assert not is_inductive(Transductive(FULL, NoSettings()), stream.batch(0, 2))


def test_view_reconstruction_from_the_command_line_on_coil_100(data_root, tmp_path):
    command = [
        "run",
        "--bench",
        "views5s",
        "--data",
        "views.source=coil100",
        "--results",
        tmp_path,
        "--data-root",
        data_root,
    ]
    done = invoke(*command, "--iterations", 2)
    assert done.exit_code == 0, done.output
    records = {r.method: r for r in store.load_all(tmp_path)}
    assert set(records) == {"cvae", "mean_view", "nearest_view", "versa"}
    record = records["nearest_view"]
    assert (record.data["name"], record.data["options"]["angles"], record.protocol) == (
        "coil100",
        "sincos",
        "reconstruction",
    )
    mse = next(s for s in record.scores if s.metric == "mse" and not s.condition)
    assert (len(mse.per_task), mse.shot, mse.queries) == (17, 5, 36)

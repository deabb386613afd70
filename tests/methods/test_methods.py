import dataclasses
import math

import pytest
import torch
from mlpip_bench.methods.maml import MAML, MAMLSettings
from mlpip_bench.methods.protonets import ProtoNets, ProtoNetsSettings
from mlpip_bench.methods.versa import Versa, VersaSettings
from torch.nn import functional as F

from builders import backbone, make_batch, make_method
from mlpip_bench import registry
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.inference.method import Problem
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.choices import NORM_MODES
from mlpip_bench.utils.errors import UserError

SPEC = backbone("conv4", (1, 8, 8), blocks=2, channels=4, dropout=0.2)
NAMES = [n for n in registry.method_names() if "classification" in registry.method(n).handles]


def batch(tasks: int = 3, way: int = 3, shots: int = 2, queries: int = 4, seed: int = 0) -> TaskBatch:
    torch.manual_seed(seed)
    return make_batch(tasks, way, shots, queries)


def make(name: str, norm: str = "metabn", way: int = 3, **settings: object):
    method = make_method(name, norm, way, spec=SPEC, **settings).double()
    if norm == "running":  # statistics of some training, so that they differ from their initial values
        method.loss(batch(seed=5))
    return method


def probs(method, tasks: TaskBatch) -> torch.Tensor:
    with torch.no_grad():
        return method.predictive(method.amortize(tasks.support), tasks.query.x).probs


@pytest.mark.parametrize("norm", NORM_MODES)
@pytest.mark.parametrize("name", NAMES)
def test_queries_one_at_a_time_change_nothing_but_in_transductive_mode(name, norm):
    method, tasks = make(name, norm).eval(), batch()
    with torch.no_grad():
        q = method.amortize(tasks.support)
        together = method.predictive(q, tasks.query.x).probs
        alone = torch.cat([method.predictive(q, tasks.query.x[:, i : i + 1]).probs for i in range(12)], 1)
    difference = float((together - alone).abs().max())
    assert difference > 1e-3 if norm == "transductive" else difference < 1e-9
    assert is_inductive(method, tasks) == (norm != "transductive")


# Versa


def test_versa_loss_is_equation_4_with_the_samples_drawn_by_hand():
    method, tasks = make("versa", samples=7, dropout=False), batch()
    torch.manual_seed(3)
    loss = method.loss(tasks).item()
    torch.manual_seed(3)
    noise = torch.randn(7, 3, 12, 3, dtype=torch.float64)
    q = method.amortize(tasks.support)
    h, _ = method.model.backbone(tasks.query.x, q.norm_statistics)
    total = 0.0
    for t in range(3):
        w, b = q.psi.mean[t, :, :-1], q.psi.mean[t, :, -1]
        vw, vb = q.psi.variance[t, :, :-1], q.psi.variance[t, :, -1]
        for m in range(12):
            x = h[t, m]
            likelihoods = []
            for sample in range(7):
                logits = w @ x + b + noise[sample, t, m] * (vw @ x**2 + vb).sqrt()
                likelihoods.append(logits.softmax(0)[tasks.query.y[t, m]].item())
            total -= math.log(sum(likelihoods) / 7)
    assert loss == pytest.approx(total / 36, rel=1e-9)


def test_versa_infers_each_class_from_its_own_examples_alone():
    # The context-independent approximation, Eq. 5; with layer norm no statistics link the classes.
    method, tasks = make("versa", "layer").eval(), batch()
    changed = tasks.support.x.clone()
    changed[:, tasks.support.y[0] == 2] += 0.5
    before, after = (method.amortize(Labeled(x, tasks.support.y, 3)).psi for x in (tasks.support.x, changed))
    torch.testing.assert_close(after.mean[:, :2], before.mean[:, :2])
    assert (after.mean[:, 2] != before.mean[:, 2]).all()


def test_versa_refuses_the_closed_form_where_there_is_none():
    for settings in ({"samples": 0}, {"eval_samples": 0}):
        with pytest.raises(UserError, match="at least 1 in classification; got"):
            make("versa", **settings)


def test_versa_log_variance_stays_in_its_range():
    method = make("versa")
    for wild in (1e9, -1e9):
        data = batch(tasks=1, shots=1).support
        mean, std = method.model.amortizer(torch.full((1, 3, 16), wild, dtype=torch.float64), data)
        assert mean.isfinite().all()
        assert (std >= math.exp(-10) * 0.999).all()
        assert (std <= math.exp(5) * 1.001).all()


def test_versa_drops_activations_in_training_only():
    method, tasks = make("versa", dropout=True), batch()
    first, second = (method.model.backbone(tasks.support.x)[0] for _ in range(2))
    assert not torch.equal(first, second)
    method.eval()
    first, second = (method.model.backbone(tasks.support.x)[0] for _ in range(2))
    assert torch.equal(first, second)


# Prototypical networks


def test_protonets_as_a_linear_classifier_equal_the_distance_form():
    method, tasks = make("protonets").eval(), batch()
    h_support, statistics = method.backbone(tasks.support.x)
    h_query, _ = method.backbone(tasks.query.x, statistics)
    prototypes = h_support.view(3, 3, 2, -1).mean(2)
    by_distance = (-torch.cdist(h_query, prototypes).square() / 2).softmax(-1)
    torch.testing.assert_close(probs(method, tasks), by_distance)


def test_protonets_scale_two_gives_snell_et_al():
    method, tasks = make("protonets", scale=2.0).eval(), batch()
    h_support, statistics = method.backbone(tasks.support.x)
    h_query, _ = method.backbone(tasks.query.x, statistics)
    prototypes = h_support.view(3, 3, 2, -1).mean(2)
    torch.testing.assert_close(probs(method, tasks), (-torch.cdist(h_query, prototypes).square()).softmax(-1))


# MAML


@pytest.mark.parametrize("norm", ["metabn", "tasknorm", "transductive"])
@pytest.mark.parametrize("steps", [1, 5])
def test_maml_gives_the_same_loss_and_gradients_with_higher(norm, steps):
    results = []
    for engine in ("native", "higher"):
        method = make("maml", norm, train_steps=steps, inner_rate=0.1, inner_engine=engine)
        loss = method.loss(batch())
        loss.backward()
        results.append((loss.item(), [p.grad for p in method.parameters()]))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-10)
    for ours, theirs in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-5)


def test_maml_step_is_gradient_descent_on_the_mean_support_loss():
    # Two steps by hand, with autograd on a copy of the network.
    method, tasks = make("maml", "layer", test_steps=2, inner_rate=(0.5, 0.25)).eval(), batch(tasks=1)
    reference = make("maml", "layer")
    for rate in (0.5, 0.25):
        logits, _ = reference.network(tasks.support.x)
        F.cross_entropy(logits[0], tasks.support.y[0]).backward()
        with torch.no_grad():
            for parameter in reference.network.parameters():
                parameter -= rate * parameter.grad
                parameter.grad = None
    by_hand = torch.cat([p.flatten() for p in reference.network.parameters()])
    torch.testing.assert_close(method.amortize(tasks.support).psi.mean[0], by_hand)


def test_maml_first_order_keeps_the_value_and_changes_the_gradient():
    values, gradients = [], []
    for first_order in (False, True):
        method = make("maml", inner_rate=0.1, first_order=first_order)
        loss = method.loss(batch())
        loss.backward()
        values.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in method.parameters()]))
    assert values[0] == pytest.approx(values[1])
    assert gradients[1].isfinite().all()
    assert gradients[1].any()
    assert not torch.allclose(gradients[0], gradients[1])


def test_maml_gradient_equals_finite_differences():
    method, tasks, step = make("maml", inner_rate=0.2, train_steps=2), batch(), 1e-6
    method.loss(tasks).backward()
    for parameter in (method.network.head.bias, method.network.backbone.blocks[0].norm.shift):
        index = (0,) * parameter.dim()
        with torch.no_grad():
            parameter[index] += step
        up = method.loss(tasks).item()
        with torch.no_grad():
            parameter[index] -= 2 * step
        down = method.loss(tasks).item()
        with torch.no_grad():
            parameter[index] += step
        assert float(parameter.grad[index]) == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-8)


def test_maml_inner_steps_leave_running_averages_alone():
    method, tasks = make("maml", "running"), batch(tasks=1)
    norm = method.network.backbone.blocks[0].norm
    means = []
    for steps in (1, 5):
        method.settings = MAMLSettings(train_steps=steps, inner_rate=1e-30)
        norm.running_mean.zero_()
        method.amortize(tasks.support)
        means.append(norm.running_mean.clone())
    torch.testing.assert_close(means[0], means[1])


def test_maml_head_rows_are_cut_or_filled_with_their_mean():
    method = make("maml", test_steps=0).eval()
    weight = method.network.head.weight
    wide = method.network.unflatten(method.amortize(batch(way=5).support).psi.mean[0])["head.weight"]
    assert torch.equal(wide[:3], weight)
    torch.testing.assert_close(wide[3:], weight.mean(0).expand(2, -1))
    narrow = method.network.unflatten(method.amortize(batch(way=2).support).psi.mean[0])["head.weight"]
    assert torch.equal(narrow, weight[:2])


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (VersaSettings, {"samples": -1}),
        (MAMLSettings, {"train_steps": -1}),
        (MAMLSettings, {"inner_rate": -0.1}),
        (MAMLSettings, {"inner_rate": (0.1, 0.1)}),
        (ProtoNetsSettings, {"scale": 0.0}),
        (MAMLSettings, {"inner_engine": "lower"}),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, wrong):
    with pytest.raises(ValueError):  # noqa: PT011  # the messages differ
        settings(**wrong)


def test_methods_share_one_extractor():
    shapes = [
        {n: p.shape for n, p in e.named_parameters()}
        for e in (make("versa").model.backbone, make("protonets").backbone, make("maml").network.backbone)
    ]
    assert shapes[0] == shapes[1] == shapes[2]


def test_the_papers_extractors_give_256_features_and_the_parameter_counts_of_the_reference():
    omniglot = backbone("conv4", (1, 28, 28), blocks=4, ceil_mode=True)
    mini = backbone("conv4", (3, 84, 84), blocks=5)
    for spec, conv in ((omniglot, 111_168), (mini, 149_184)):
        extractor = spec.build("metabn")
        assert extractor.features == 256
        assert extractor(torch.rand(1, 2, *spec.input_shape))[0].shape == (1, 2, 256)
        counted = sum(b.conv.weight.numel() for b in extractor.blocks)
        assert counted == conv
    # Reference counts are 111,424 and 149,504: convolutions plus one shift a channel and block.
    assert 111_168 + 4 * 64 == 111_424
    assert 149_184 + 5 * 64 == 149_504
    method = Versa(Problem(omniglot, "metabn", 5), VersaSettings())
    assert sum(p.numel() for p in method.model.amortizer.parameters()) == 658_434


def test_settings_dataclasses_are_frozen():
    for settings in (VersaSettings, MAMLSettings, ProtoNetsSettings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings().anything = 1
    assert MAML.Settings is MAMLSettings
    assert ProtoNets.Settings is ProtoNetsSettings

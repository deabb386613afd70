import numpy as np
import pytest
import torch
from mlpip_bench.protocols.context import ContextIndependence, within_class_share

from builders import backbone, budget, invoke
from mlpip_bench import registry
from mlpip_bench.records import store


def weights_of(within: float, between: float, tasks=4000, way=5, classes=10, features=3, seed=0):
    """Weights with known variances: a class mean and noise around it."""
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=np.sqrt(between), size=(classes, features))
    labels = np.stack([rng.permutation(classes)[:way] for _ in range(tasks)])
    weights = means[labels] + rng.normal(scale=np.sqrt(within), size=(tasks, way, features))
    return torch.tensor(weights), torch.tensor(labels), means


def test_the_share_is_that_of_the_variances_that_made_the_weights():
    weights, labels, means = weights_of(0.5, 2.0)
    share = within_class_share(weights, labels)
    expected = 0.5 / (0.5 + means.var(0).mean())
    assert share.shape == (4000,)
    assert float(share.mean()) == pytest.approx(expected, rel=0.03)


def test_the_share_is_an_analysis_of_variance_by_hand():
    weights, labels, _ = weights_of(1.0, 1.0, tasks=6)
    flat, classes = weights.reshape(-1, 3).numpy(), labels.flatten().numpy()
    within = sum(((flat[classes == c] - flat[classes == c].mean(0)) ** 2).sum() for c in set(classes))
    total = ((flat - flat.mean(0)) ** 2).sum()
    n, groups = len(flat), len(set(classes))
    expected = (within / (n - groups)) / (total / (n - 1))
    assert float(within_class_share(weights, labels).mean()) == pytest.approx(expected)


def test_limits_equal_weights_of_a_class_and_weights_that_do_not_know_the_class():
    weights, labels, _ = weights_of(0.0, 1.0, tasks=50)
    assert float(within_class_share(weights, labels).abs().max()) < 1e-12
    weights, labels, _ = weights_of(1.0, 0.0, tasks=50, seed=1)
    found = [float(within_class_share(*weights_of(1.0, 0.0, tasks=50, seed=s)[:2]).mean()) for s in range(200)]
    assert np.mean(found) == pytest.approx(1.0, abs=4 * np.std(found) / np.sqrt(200))  # no bias from estimated means


def test_the_interval_over_tasks_is_that_of_many_repetitions():
    """With many tasks, so that class means are nearly known; classes and their means stay the same."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(10, 3))
    estimates, errors = [], []
    for _ in range(200):
        labels = np.stack([rng.permutation(10)[:5] for _ in range(200)])
        noise = rng.normal(size=(200, 5, 3)) * rng.gamma(2.0, 0.5, size=(200, 1, 1))
        share = within_class_share(torch.tensor(means[labels] + noise), torch.tensor(labels))
        estimates.append(float(share.mean()))
        errors.append(float(share.std()) / np.sqrt(200))
    assert np.mean(errors) == pytest.approx(np.std(estimates), rel=0.2)


def test_it_applies_to_linear_classifiers_alone():
    protocol = ContextIndependence()
    applies = {name for name in registry.method_names() if protocol.applies(registry.method(name), None)}
    frozen = {"nearest_mean", "linear_probe", "baseline"}
    assert applies == {"versa", "amortized_vi", "nonamortized_vi", "amortized_map", "protonets", "anil"} | frozen


def test_a_last_linear_layer_sets_the_feature_dimension():
    spec = backbone("conv4", (1, 28, 28), blocks=4, ceil_mode=True, last=16)
    extractor = spec.build("layer")
    assert (extractor.features, extractor.last[0].in_features) == (16, 256)
    x = torch.rand(2, 3, 1, 28, 28)
    features, _ = extractor(x)
    plain = backbone("conv4", (1, 28, 28), blocks=4, ceil_mode=True).build("layer")
    plain.load_state_dict(extractor.state_dict(), strict=False)
    torch.testing.assert_close(features, extractor.last(plain(x)[0]))
    assert features.shape == (2, 3, 16)


def test_context_independence_from_the_command_line_on_mnist(data_root, tmp_path):
    command = ["run", "--bench", "context2", "--methods", "protonets,maml", "--results", tmp_path]
    protocols = ["--protocols", "accuracy,context", "--data-root", data_root]
    done = invoke(*command, *budget(iterations=1), *protocols)
    assert done.exit_code == 0, done.output
    assert "does not apply to context2 maml" in " ".join(done.output.split())
    records = {(r.method, r.protocol): r for r in store.load_all(tmp_path)}
    assert set(records) == {("protonets", "accuracy"), ("protonets", "context"), ("maml", "accuracy")}
    score = records["protonets", "context"].scores[0]
    assert (score.metric, score.better, score.way, score.shot, len(score.per_task)) == (
        "within_class_share",
        "neither",
        5,
        20,
        4,
    )
    assert len(score.detail["weights"]) == 4 * 5 * 2
    assert all(len(set(task)) == 5 for task in np.reshape(score.detail["classes"], (4, 5)).tolist())
    assert records["protonets", "context"].data["name"] == "mnist"


def test_without_mnist_scikit_learns_digits_stand_in_and_say_so(tmp_path):
    command = ["run", "--bench", "context2", "--methods", "protonets", "--results", tmp_path, "--source", "procedural"]
    done = invoke(*command, *budget(iterations=1, test_tasks=2), "--protocols", "context")
    assert done.exit_code == 0, done.output
    assert "stand-in data" in done.output
    (record,) = store.load_all(tmp_path)
    assert (record.data["name"], record.data["source"]) == ("digits", "bundled")
    table = invoke("table", "--results", tmp_path).output
    assert "(stand-in)" in " ".join(table.split())

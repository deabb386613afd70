"""Methods that are not trained, on a backbone that is: each against its formula, or another library."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from torch.nn import functional as F

from builders import backbone, make_method, make_pool
from mlpip_bench import registry
from mlpip_bench.evaluation.metrics import ACCURACY
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.tasks.batch import Labeled, TaskBatch, TaskShape
from mlpip_bench.tasks.images import TaskStream
from mlpip_bench.testing.cases import Case
from mlpip_bench.training import loop

NAMES = [n for n in registry.method_names() if not registry.method(n).trainable]
SPEC = backbone("conv4", (1, 8, 8), blocks=2, channels=4)
PLAN = TrainingPlan(iterations=0, tasks_per_batch=1, train_queries=2, learning_rate=0.1, validation_tasks=4)


def make(name: str, norm: str = "running", **settings: object):
    method = make_method(name, norm, spec=SPEC, **settings).double()
    network = getattr(method, "network", method).backbone.train()
    with torch.no_grad():
        for _ in range(30):  # running averages, as if it were pre-trained
            network(batch((4, 4, 4)).support.x)
    return method.eval()


def batch(shots: tuple[int, ...] = (1, 3, 2), tasks: int = 2) -> TaskBatch:
    """Tasks whose classes have so many shots."""
    way = len(shots)
    whole = Case(registry.method("protonets"), "classification", (1, 8, 8)).batch(
        tasks=tasks, way=way, shots=max(shots), queries=3
    )
    kept = [max(shots) * c + i for c, many in enumerate(shots) for i in range(many)]
    return TaskBatch(Labeled(whole.support.x[:, kept], whole.support.y[:, kept], way), whole.query)


def features(method, tasks: TaskBatch) -> tuple[torch.Tensor, torch.Tensor]:
    support, statistics = method.backbone(tasks.support.x)
    return support, method.backbone(tasks.query.x, statistics)[0]


@torch.no_grad()
def probs(method, tasks: TaskBatch) -> torch.Tensor:
    return method.predictive(method.amortize(tasks.support), tasks.query.x).probs


def streams() -> tuple[TaskStream, TaskStream]:
    rng = np.random.default_rng(0)
    prototypes = rng.integers(0, 200, (9, 1, 1, 8, 8))
    pool = make_pool((prototypes + rng.integers(0, 55, (9, 6, 1, 8, 8))).astype(np.uint8))
    return TaskStream(pool, TaskShape(3, 1, 2), "train", 0), TaskStream(pool, TaskShape(3, 1, 3), "validation")


def test_there_are_the_rows_of_transfer():
    assert {"nearest_mean", "linear_probe", "baseline", "baseline_pp", "finetune"} <= set(NAMES)
    assert all(registry.method(name).pretraining is not None for name in NAMES)
    assert {n for n in NAMES if registry.method(n).pretraining.head == "cosine"} == {"baseline_pp"}


@pytest.mark.parametrize("name", NAMES)
def test_training_is_one_validation_that_moves_nothing_but_what_prepare_sets(name, tmp_path):
    method = make_method(name, "running", spec=SPEC)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    plan = TrainingPlan(iterations=3, tasks_per_batch=1, train_queries=2, learning_rate=0.1, validation_tasks=4)
    state = loop.train(method, plan, *streams(), metrics=(ACCURACY,), seed=0, checkpoint=tmp_path / "state.pt")
    assert [entry.keys() for entry in state.history] == [{"iteration", "accuracy"}]
    for key, value in method.state_dict().items():
        assert torch.equal(value, before[key]) == (key != "center"), key
        assert torch.equal(value, state.best_model[key])


@pytest.mark.parametrize("norm", ["running", "metabn"])
@pytest.mark.parametrize("shots", [(1, 1), (1, 3, 2), (2, 5, 1, 1, 2, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_a_task_alone_and_in_another_order_has_the_same_predictions(name, shots, norm):
    method, tasks = make(name, norm), batch(shots, tasks=3)
    together = probs(method, tasks)
    assert together.shape == (3, 3 * len(shots), len(shots))
    order = torch.randperm(sum(shots))
    for t in range(3):
        alone = TaskBatch(tasks.support.task(t), tasks.query.task(t))
        torch.testing.assert_close(probs(method, alone)[0], together[t])
    shuffled = Labeled(tasks.support.x[:, order], tasks.support.y[:, order], len(shots))
    torch.testing.assert_close(probs(method, TaskBatch(shuffled, tasks.query)), together)


# -- nearest class mean ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:self.within_class_std_dev_")  # of features that a ReLU leaves at 0
@pytest.mark.parametrize("transform", ["none", "l2n", "cl2n"])
def test_the_nearest_class_mean_is_that_of_scikit_learn(transform):
    method, tasks = make("nearest_mean", transform=transform, scale=3.0), batch()
    method.center.uniform_(0.0, 0.5)
    found = probs(method, tasks)
    for t in range(2):
        z, x = (f[t].detach().numpy() for f in features(method, tasks))
        if transform == "cl2n":
            z, x = z - method.center.numpy(), x - method.center.numpy()
        if transform != "none":
            z, x = (f / np.linalg.norm(f, axis=-1, keepdims=True) for f in (z, x))
        theirs = NearestCentroid().fit(z, tasks.support.y[t].numpy())
        assert found[t].argmax(-1).tolist() == theirs.predict(x).tolist()
        distances = ((x[:, None] - theirs.centroids_) ** 2).sum(-1)
        expected = torch.tensor(-1.5 * distances).softmax(-1)
        torch.testing.assert_close(found[t], expected)


def test_without_a_transformation_it_is_prototypical_networks():
    ours, theirs, tasks = make("nearest_mean", transform="none", scale=1.0), make("protonets"), batch()
    theirs.load_state_dict(ours.state_dict(), strict=False)
    torch.testing.assert_close(probs(ours, tasks), probs(theirs, tasks))


@pytest.mark.parametrize("transform", ["l2n", "cl2n"])
def test_the_center_is_the_mean_feature_of_the_images_of_the_first_training_tasks(transform, tmp_path):
    training, validation = streams()
    method = make_method("nearest_mean", "running", spec=SPEC, center_tasks=5, transform=transform)
    loop.train(method, PLAN, training, validation, metrics=(ACCURACY,), seed=0, checkpoint=tmp_path / "state.pt")
    images = training.batch(0, 5).merged.x.flatten(0, 1).unsqueeze(0)
    expected = method.backbone(images)[0].mean((0, 1)) if transform == "cl2n" else torch.zeros(16)
    torch.testing.assert_close(method.center, expected)
    again = make_method("nearest_mean", "running", spec=SPEC, center_tasks=5, transform=transform)
    loop.train(again, PLAN, training, validation, metrics=(ACCURACY,), seed=0, checkpoint=tmp_path / "state.pt")
    assert torch.equal(again.center, method.center)  # out of the checkpoint


# -- linear probe ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("penalty", [0.1, 1.0])
def test_the_linear_probe_is_scikit_learns_on_the_same_features(unit, penalty):
    method, tasks = make("linear_probe", normalize=unit, penalty=penalty), batch()
    found = probs(method, tasks)
    for t in range(2):
        z, x = (f[t].detach() for f in features(method, tasks))
        z, x = (f / f.norm(dim=-1, keepdim=True) if unit else f for f in (z, x))
        theirs = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=10_000)
        theirs.fit(z.numpy(), tasks.support.y[t].numpy())
        assert abs(found[t].numpy() - theirs.predict_proba(x.numpy())).max() < 1e-4


# -- baseline, baseline++ --------------------------------------------------------------------------------------------


def descended(layer: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> torch.nn.Module:
    """A layer after what Chen et al.'s code does to it, with all points in each step."""
    sgd = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9, dampening=0.9, weight_decay=0.001)
    for _ in range(steps):
        sgd.zero_grad()
        F.cross_entropy(layer(x), y).backward()
        sgd.step()
    return layer


def test_the_baseline_is_a_linear_layer_after_sgd():
    method, tasks = make("baseline"), batch()
    found = probs(method, tasks)
    for t in range(2):
        z, x = (f[t].detach() for f in features(method, tasks))
        layer = torch.nn.Linear(16, 3).double()
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        descended(layer, z, tasks.support.y[t], 200)  # 100 passes over 6 points, 4 at a time
        torch.testing.assert_close(found[t], layer(x).softmax(-1).detach())


class Cosines(torch.nn.Module):
    def __init__(self, rows: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.rows, self.scale = torch.nn.Parameter(rows.clone()), scale

    def forward(self, x):
        return self.scale * F.cosine_similarity(x.unsqueeze(1), self.rows.unsqueeze(0), dim=-1)


def test_baseline_pp_is_a_layer_of_cosines_after_sgd():
    method, tasks = make("baseline_pp", scale=4.0), batch()
    q, found = method.amortize(tasks.support), probs(method, tasks)
    torch.testing.assert_close(q.psi.mean.norm(dim=-1), torch.full((2, 3), 4.0, dtype=torch.float64))
    for t in range(2):
        z, x = (f[t].detach() for f in features(method, tasks))
        unit, y = z / z.norm(dim=-1, keepdim=True), tasks.support.y[t]
        layer = Cosines(torch.stack([unit[y == c].mean(0) for c in range(3)]), 4.0)
        descended(layer, z, y, 200)
        torch.testing.assert_close(found[t], layer(x).softmax(-1).detach())


def test_baseline_pp_without_steps_is_the_nearest_mean_by_cosine():
    method, tasks = make("baseline_pp", epochs=0), batch((2, 2, 2, 2))
    z, x = features(method, tasks)
    cosines = F.cosine_similarity(
        x.unsqueeze(2), tasks.support.class_means(F.normalize(z, dim=-1)).unsqueeze(1), dim=-1
    )
    assert torch.equal(probs(method, tasks).argmax(-1), cosines.argmax(-1))


# -- fine-tuning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["means", "zero"])
@pytest.mark.parametrize("norm", ["running", "metabn"])
@pytest.mark.parametrize("shots", [(2, 2, 2), (1, 3, 2, 2)])
def test_fine_tuning_is_descent_on_a_copy_of_the_network(head, norm, shots):
    method, tasks = make("finetune", norm, test_steps=3, inner_rate=0.05, head=head), batch(shots)
    found = probs(method, tasks)
    for t in range(2):
        copy = SPEC.build(norm).double().eval()
        copy.load_state_dict(method.network.backbone.state_dict())
        support, query = tasks.support.task(t), tasks.query.task(t)
        layer = torch.nn.Linear(16, len(shots)).double()
        with torch.no_grad():
            z, y = copy(support.x)[0][0], support.y[0]
            means = torch.stack([z[y == c].mean(0) for c in range(len(shots))])
            layer.weight.copy_(means / means.norm(dim=-1, keepdim=True) if head == "means" else 0 * means)
            layer.bias.zero_()
        sgd = torch.optim.SGD([*copy.parameters(), *layer.parameters()], lr=0.05)
        for _ in range(3):
            sgd.zero_grad()
            F.cross_entropy(layer(copy(support.x)[0][0]), y).backward()
            sgd.step()
        _, statistics = copy(support.x)
        expected = layer(copy(query.x, statistics)[0][0]).softmax(-1)
        torch.testing.assert_close(found[t], expected.detach())


def test_fine_tuning_without_steps_is_the_nearest_mean_by_direction():
    method, tasks = make("finetune", test_steps=0), batch()
    bb = method.network.backbone
    z, x = bb(tasks.support.x)[0], bb(tasks.query.x)[0]
    logits = x @ F.normalize(tasks.support.class_means(z), dim=-1).mT
    torch.testing.assert_close(probs(method, tasks), logits.softmax(-1).detach())


def test_fine_tuning_lowers_the_support_loss_and_leaves_the_network():
    tasks = batch((3, 3, 3), tasks=4)
    losses = []
    for steps in (0, 2, 10):
        method = make("finetune", test_steps=steps)
        state = {key: value.clone() for key, value in method.state_dict().items()}
        answer = probs(method, TaskBatch(tasks.support, tasks.support))
        losses.append(F.nll_loss(answer.log().flatten(0, 1), tasks.support.y.flatten()).item())
        assert all(torch.equal(value, state[key]) for key, value in method.state_dict().items())
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("nearest_mean", "transform", "l3n"),
        ("nearest_mean", "center_tasks", 0),
        ("nearest_mean", "scale", 0.0),
        ("linear_probe", "penalty", math.inf),
        ("baseline_pp", "scale", -1.0),
        ("baseline_pp", "rate", 0.0),
        ("finetune", "test_steps", -1),
        ("finetune", "inner_rate", math.nan),
        ("finetune", "head", "random"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, field, value):
    with pytest.raises(ValueError, match=field):
        registry.method(name).Settings(**{field: value})

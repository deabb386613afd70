import numpy as np
import pytest
import torch
from mlpip_bench.methods.protonets import ProtoNets
from mlpip_bench.protocols.versatility import Settings, Versatility
from torch.distributions import Categorical

from builders import backbone, budget, invoke, make_pool
from mlpip_bench import registry
from mlpip_bench.evaluation.predict import chunk_size
from mlpip_bench.evaluation.protocol import Evaluation
from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.records import store
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import TaskStream
from mlpip_bench.utils.settings import NoSettings

WAYS, SHOTS = Settings.ways, Settings.shots


class Sees(Method[Delta]):
    """Right on every query, and keeps what it was asked."""

    reference, psi = "none 2026", "nothing"

    def __init__(self) -> None:
        super().__init__(Problem(backbone("conv4", (1, 4, 4), blocks=1), "metabn", 5), NoSettings())
        self.asked = []

    def amortize(self, support):
        (shots,) = set(torch.bincount(support.y[0], minlength=support.way).tolist())
        self.asked.append((support.way, shots))
        labels = torch.zeros(support.tasks, 256, dtype=torch.long)
        first = (support.x[..., 0, 0, 0] * 255).round().long()
        labels.scatter_(1, first, support.y)
        return Posterior(Delta(labels.double(), event_dim=1))

    def predictive(self, q, query_x):
        way = self.asked[-1][0]
        first = (query_x[..., 0, 0, 0] * 255).round().long()
        labels = q.psi.value.long().gather(1, first)
        return Categorical(probs=torch.nn.functional.one_hot(labels, way).double() * 0.9 + 0.1 / way)

    def loss(self, batch):
        raise NotImplementedError


def stream(classes=110, images=20, way=5, shot=2):
    """Every image of a class is the class's number."""
    numbers = np.arange(classes, dtype=np.uint8)[:, None, None, None, None]
    pool = make_pool(np.broadcast_to(numbers, (classes, images, 1, 4, 4)))
    return TaskStream(pool, TaskShape(way, shot, 15), "d5w2s", "test", split="test")


def test_every_way_and_shot_is_asked_of_one_model_with_as_many_queries():
    method = Sees()
    scores = Versatility().measure(Evaluation(method, "best", stream(), 3))
    accuracy = [s for s in scores if s.metric == "accuracy"]
    by_way = {s.way: s for s in accuracy if set(s.condition) == {"way"}}
    by_shot = {s.shot: s for s in accuracy if set(s.condition) == {"way", "shot"}}
    assert tuple(by_way) == WAYS
    assert tuple(by_shot) == SHOTS
    assert {s.shot for s in by_way.values()} == {2}  # that of training
    assert {s.way for s in by_shot.values()} == {5}
    assert {s.queries for s in scores} == {5}  # what 15 shots leave of 20 images
    assert all(s.per_task == (1.0, 1.0, 1.0) for s in accuracy)
    assert set(method.asked) == {(w, 2) for w in WAYS} | {(5, s) for s in SHOTS}
    nll = {s.way: s.per_task[0] for s in scores if s.metric == "nll" and set(s.condition) == {"way"}}
    assert nll == pytest.approx({w: -np.log(0.9 + 0.1 / w) for w in WAYS})


def test_ways_beyond_the_test_classes_are_left_out():
    scores = Versatility().measure(Evaluation(Sees(), "best", stream(classes=25), 2))
    assert {s.way for s in scores if set(s.condition) == {"way"}} == {5, 10, 20}


def test_models_of_other_benches_see_the_same_tasks():
    one, other = stream(), TaskStream(stream().pool, TaskShape(20, 5, 15), "d20w5s", "test", split="test")
    shape = TaskShape(5, 1, 5)
    a, b = (s.reshaped(shape, "versatility", "5w1s").indices(0, 10) for s in (one, other))
    assert torch.equal(a.classes, b.classes)
    assert torch.equal(a.query, b.query)
    different = one.reshaped(shape, "versatility", "5w2s").indices(0, 10)
    assert not torch.equal(a.classes, different.classes)


def test_large_tasks_are_predicted_fewer_at_once():
    assert chunk_size(stream()) == 20
    assert chunk_size(stream().reshaped(TaskShape(100, 1, 5), "a")) == 2
    assert chunk_size(stream().reshaped(TaskShape(20, 1, 15), "a")) == 20


def test_it_applies_where_way_and_shot_may_change():
    class Fixed(ProtoNets):
        xfail_checks = {"way_and_shot": "its head has a fixed number of classes"}  # noqa: RUF012

    assert not Versatility().applies(Fixed, None)
    assert all(Versatility().applies(registry.method(name), None) for name in ("versa", "maml", "protonets", "cnp"))


def test_versatility_from_the_command_line_on_real_omniglot(data_root, tmp_path):
    command = ["run", "--bench", "omni5w1s", "--methods", "protonets", "--protocols", "versatility"]
    small = budget(iterations=1, test_tasks=1)
    done = invoke(*command, *small, "--data-root", data_root, "--results", tmp_path)
    assert done.exit_code == 0, done.output
    (record,) = store.load_all(tmp_path)
    ways = {s.way for s in record.scores if s.metric == "accuracy" and set(s.condition) == {"way"}}
    assert ways == set(WAYS)
    output = " ".join(done.output.split())
    assert "accuracy_by_way on omni5w1s" in output
    assert "accuracy_by_shot_by_way on omni5w1s" in output

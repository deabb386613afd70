import numpy as np
import pytest
import torch
from mlpip_bench.methods.protonets import ProtoNets
from mlpip_bench.protocols.versatility import Settings, Versatility
from torch.distributions import Categorical

import mlpip_bench
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


def stream(classes=110, images=20, way=5, shot=2, queries=15):
    """Every image of a class is the class's number."""
    numbers = np.arange(classes, dtype=np.uint8)[:, None, None, None, None]
    pool = make_pool(np.broadcast_to(numbers, (classes, images, 1, 4, 4)))
    return TaskStream(pool, TaskShape(way, shot, queries), "d5w2s", "test", split="test")


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


@pytest.mark.parametrize("jobs", [1, 2])
def test_ways_and_shots_are_settings_and_part_of_the_record(tmp_path, jobs):
    command = ["run", "--bench", "omni5w1s", "--methods", "protonets,cnp", "--protocols", "versatility"]
    command += ["--source", "procedural", "--backbone", "conv4,channels=4", "--results", tmp_path, "--jobs", jobs]
    asked = ["--set", "versatility.ways=7,20", "--set", "versatility.shots=()"]
    done = invoke(*command, *budget(iterations=1, test_tasks=2), *asked)
    assert done.exit_code == 0, done.output
    records = store.load_all(tmp_path)
    assert {r.method for r in records} == {"protonets", "cnp"}
    for record in records:
        assert record.config["protocol_settings"] == {"ways": [7, 20], "shots": []}
        assert {tuple(s.condition.items()) for s in record.scores} == {(("way", 7),), (("way", 20),)}
    for path in (tmp_path / "records").rglob("versatility*.json"):
        mlpip_bench.load(path)  # its key is that of its settings
    assert "nothing to do for" in invoke(*command, *budget(iterations=1, test_tasks=2), *asked).output
    assert "protocol.ways" in " ".join(invoke("table", "--results", tmp_path).output.split())


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("versatility.ways=5,9999", "ways of versatility are at most"),
        ("versatility.shots=1,20", "shots of versatility are at most 19"),
        ("versatility.ways=1,5", "ways are from 2 up"),
        ("versatility.ways=1", "ways are from 2 up"),
        ("versatility.ways=5,10,5", "each of the ways is measured once"),
        ("versatility.way=5", "Did you mean 'ways'"),
        ("steps.ways=5", "names a protocol of the run; 'steps' is not among --protocols versatility"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused_before_training(tmp_path, setting, says):
    command = ["run", "--bench", "omni5w1s", "--methods", "protonets", "--protocols", "versatility"]
    command += ["--source", "procedural", "--results", tmp_path, "--set", setting]
    done = invoke(*command, *budget(iterations=1, test_tasks=2))
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
    assert not list(tmp_path.rglob("*.pt"))


def test_shots_that_classes_have_not_the_images_for_are_left_out():
    scores = Versatility().measure(Evaluation(Sees(), "best", stream(classes=4, images=9, way=3, queries=3), 2))
    found = {tuple(s.condition.values()) for s in scores if set(s.condition) == {"way", "shot"}}
    assert found == {(4, shot) for shot in (1, 2, 3, 4, 5, 6, 8)}
    assert {s.queries for s in scores} == {1}


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


def test_what_is_measured_otherwise_than_asked_is_said_once(tmp_path):
    command = ["run", "--bench", "omni5w1s", "--methods", "protonets,cnp", "--protocols", "versatility"]
    command += ["--source", "procedural", "--results", tmp_path, "--dry-run"]
    shown = invoke(*command).output
    (line,) = [line for line in shown.splitlines() if "queries a class" in line]
    assert line == "omni5w1s, versatility: 5 queries a class, which the largest shot leaves, not 15"
    line = invoke(*command, "--queries", "4").output
    assert "queries a class" not in line

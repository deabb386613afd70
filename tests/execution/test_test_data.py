"""Models that are tested on other data than they are trained on, on unequal queries, and on tasks of several shapes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from training.test_steps import SPEC

import mlpip_bench
from builders import budget, in_float64, invoke, make_method, make_pool
from mlpip_bench import registry
from mlpip_bench.execution import restoring
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.tasks.batch import Labeled, ShapeRange, TaskBatch, TaskShape
from mlpip_bench.tasks.images import TaskStream, VariedTaskStream
from mlpip_bench.training.steps import loss_of
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.naming import bench_of, family_of, with_test_data
from pictures import write_classes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with ``birds`` and ``fish20`` of one size, and ``large`` of another."""
    folder = tmp_path_factory.mktemp("domains")
    for name, size, prefix in (("birds", 12, "b"), ("fish20", 12, "f"), ("large", 16, "l")):
        write_classes(folder / name, [f"{prefix}{i:02d}" for i in range(15)], lambda number: 9 + number % 3)
        given = ("--from", folder / name, "--image-size", size, "--data-root", folder / "data")
        assert invoke("data", "add", name, *given).exit_code == 0
    return folder / "data"


def run(
    root: Path, results: Path, *arguments: object, bench: str = "birds3w1s", methods: str = "protonets", tasks: int = 4
):
    given = ("--methods", methods, "--bench", bench, "--data-root", root, "--results", results, "--queries", 3)
    return invoke("run", *given, *budget(train_queries=3, test_tasks=tasks), *arguments)


def accuracies(results: Path) -> dict[str, Record]:
    return {r.bench: r for r in store.load_all(results) if r.protocol == "accuracy"}


# -- other data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bench", ["omni5w1s", "fc100-5w1s", "omni2..20w1..10s", "views1s"])
@pytest.mark.parametrize("other", ["kanji", "fc100", "my-birds"])
def test_a_name_with_test_data_still_says_what_was_trained_on(bench, other):
    name = with_test_data(bench, other)
    assert (bench_of(name), family_of(name)) == (bench, family_of(bench))
    assert bench_of(bench) == bench


def test_a_model_is_tested_on_the_tasks_of_the_other_data(root, tmp_path):
    assert run(root, tmp_path).exit_code == 0
    checkpoints = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")}
    result = run(root, tmp_path, "--test-on", "fish20")
    assert result.exit_code == 0, result.output
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")} == checkpoints  # one training
    found = accuracies(tmp_path)
    assert set(found) == {"birds3w1s", "birds3w1s-on-fish20"}
    own, other = found["birds3w1s"], found["birds3w1s-on-fish20"]
    fish = mlpip_bench.load_bench("fish20-3w1s", data_root=root)
    assert other.data["test_on"]["fingerprint"] == fish.data.fingerprint
    assert other.data["fingerprint"] == own.data["fingerprint"] != fish.data.fingerprint
    assert other.key != own.key
    # The scores, by the model from its record and the other bench's own test tasks.
    model = mlpip_bench.load(next((tmp_path / "records" / other.bench / "protonets").glob("accuracy*.json")))
    tasks = fish.sample(len(other.scores[0].per_task), split="test", queries=3)
    with torch.no_grad():
        predictive = model.method.eval().predictive(model.method.amortize(tasks.support), tasks.query.x)
    expected = (predictive.probs.argmax(-1) == tasks.query.y).double().mean(-1)
    (best,) = (scores for scores in other.scores if scores.model == "best")
    assert best.per_task == pytest.approx(expected.tolist())
    assert "nothing to do for" in run(root, tmp_path, "--test-on", "fish20").output
    shown = invoke("table", "--results", tmp_path).output
    assert "birds3w1s-on-fish20" in shown.replace("\n", "")
    assert invoke("verify", tmp_path).exit_code == 0


def test_what_python_trains_is_tested_on_the_other_data_too(root):
    more = {"data_root": root, "queries": 3, "iterations": 1, "test_tasks": 4}
    settings = {"train_queries": 3, "validation_tasks": 2}
    model = mlpip_bench.fit("protonets", "birds3w1s", settings=settings, test_on="fish20", **more)
    assert set(mlpip_bench.evaluate(model)["bench"]) == {"birds3w1s-on-fish20"}
    for bench, metrics in {
        "sinusoid5s": {"nll", "mse"},
        "birds2..3w1s": {"accuracy", "accuracy_above_chance", "nll"},
    }.items():
        model = mlpip_bench.fit("cnp", bench, settings=settings | {"train_queries": 3}, **more)
        assert set(mlpip_bench.evaluate(model)["metric"]) == metrics


def test_a_dry_run_says_both_data_sets(root, tmp_path):
    shown = " ".join(run(root, tmp_path, "--test-on", "fish20", "--dry-run").output.replace("│", " ").split())
    assert "data birds (real), tested on fish20 (real)" in shown
    assert "tested on" not in run(root, tmp_path, "--dry-run").output


def test_the_data_set_itself_is_no_other(root, tmp_path):
    assert run(root, tmp_path, "--test-on", "birds").exit_code == 0
    assert set(accuracies(tmp_path)) == {"birds3w1s"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--test-on", "large"], "birds has 3x12x12 and large 3x16x16"),
        (["--test-on", "sinusoid"], "those of sinusoid are regression"),
        (["--test-on", "nothing"], "unknown data set of --test-on 'nothing'"),
        (["--test-on", "fish2"], "Did you mean 'fish20'"),
        (["--test-on", "context"], "those of context are classification (context<features>"),
        (["--test-on", "fish20", "--queries", "9"], "test class 'f"),
        (["--query-concentration", "0"], "from 0.01 to 100"),
        (["--query-concentration", "nan"], "from 0.01 to 100"),
    ],
)
def test_what_cannot_be_tested_is_refused_before_training(root, tmp_path, arguments, says):
    result = run(root, tmp_path, *arguments)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())
    assert not list(tmp_path.rglob("*.pt"))


# -- unequal queries -------------------------------------------------------------------------------------------------


def test_unequal_queries_are_part_of_the_record_and_not_of_the_training(root, tmp_path):
    assert run(root, tmp_path).exit_code == 0
    result = run(root, tmp_path, "--query-concentration", 2)
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.rglob("*.pt"))) == 1
    records = [r for r in store.load_all(tmp_path) if r.protocol == "accuracy"]
    assert {r.config.get("query_concentration") for r in records} == {None, 2.0}
    assert len({r.key for r in records}) == 2
    assert invoke("verify", tmp_path).exit_code == 0
    assert "query concentration" in " ".join(invoke("table", "--results", tmp_path).output.split())
    (path,) = (p for p in (tmp_path / "records").rglob("accuracy*.json") if "query_concentration" in p.read_text())
    assert restoring.trial_of(store.load(path)).query_concentration == 2.0
    mlpip_bench.load(path)


def test_tasks_without_classes_have_no_unequal_queries(tmp_path):
    result = invoke(
        "run", "--bench", "linear5s", "--methods", "versa", "--query-concentration", 2, "--results", tmp_path
    )
    assert result.exit_code == 2
    assert "drawn from classes of images" in result.output


# -- tasks of several shapes -----------------------------------------------------------------------------------------


def stream_of_shapes() -> VariedTaskStream:
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 1, 8, 8)).astype(np.uint8)
    return VariedTaskStream(make_pool(images), ShapeRange((2, 5), (1, 3), 2), "shapes")


@pytest.mark.parametrize("name", ["protonets", "maml", "versa", "amortized_vi", "cnp"])
def test_the_loss_is_the_mean_over_tasks_whatever_their_shapes(name, monkeypatch):
    method, stream = make_method(name, way=5, spec=SPEC).double().train(), stream_of_shapes()
    tasks = [in_float64(stream.batch(i, 1)) for i in range(3)]
    own_loss = method.loss

    def seeded(batch):  # the same noise, however the tasks are asked
        torch.manual_seed(batch.support.x.shape[1])
        return own_loss(batch)

    monkeypatch.setattr(method, "loss", seeded)
    parameters = [p for p in method.parameters() if p.requires_grad]
    alone = [torch.autograd.grad(seeded(task), parameters, allow_unused=True, materialize_grads=True) for task in tasks]
    loss = loss_of(method, tasks)
    together = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    assert loss.item() == pytest.approx(sum(seeded(task).item() for task in tasks) / 3)
    for ours, *parts in zip(together, *alone, strict=True):
        torch.testing.assert_close(ours, torch.stack(parts).mean(0))


def test_batches_weigh_by_their_tasks():
    method = make_method("protonets", spec=SPEC).double().train()
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 1, 8, 8)).astype(np.uint8)
    batch = in_float64(TaskStream(make_pool(images), TaskShape(3, 1, 2), "weights").batch(0, 4))
    cut = [
        TaskBatch(*(Labeled(p.x[i:j], p.y[i:j], 3) for p in (batch.support, batch.query))) for i, j in ((0, 1), (1, 4))
    ]
    torch.testing.assert_close(loss_of(method, cut), loss_of(method, [batch]))


def test_a_run_on_tasks_of_several_shapes(root, tmp_path):
    measured = ("--protocols", "accuracy,nll,calibration")
    result = run(root, tmp_path, *measured, bench="birds2..3w1..2s", methods="versa,maml", tasks=12)
    assert result.exit_code == 0, result.output
    records = store.load_all(tmp_path)
    assert {r.protocol for r in records} == {"accuracy", "nll"}  # calibration has no bins over tasks of several sizes
    ways = [shape.way for shape in streams_of(records[0], root).shapes(0, len(records[0].scores[0].per_task))]
    assert len(set(ways)) == 2
    for record in records:
        by_metric = {s.metric: s for s in record.scores if s.model == "best"}
        assert {(s.way, s.shot) for s in by_metric.values()} == {(3, 2)}
        if record.protocol == "accuracy":
            assert by_metric["accuracy"].detail["ways"] == tuple(map(float, ways))
            above = [(a - 1 / w) / (1 - 1 / w) for a, w in zip(by_metric["accuracy"].per_task, ways, strict=True)]
            assert by_metric["accuracy_above_chance"].per_task == pytest.approx(above)
    assert "kept predictions are arrays" in " ".join(result.output.split())
    shown = " ".join(invoke("table", "--results", tmp_path).output.split())
    assert "birds2..3w1..2s" in shown
    assert "accuracy_above_chance (0 at chance, 1 if all are right" in shown
    assert invoke("figures", "--results", tmp_path).exit_code == 0


def streams_of(record: Record, root: Path) -> VariedTaskStream:
    """The test tasks of a record's bench."""
    bench = mlpip_bench.load_bench(record.bench, data_root=root)
    plan = TrainingPlan(**bench.family.budgets["quick"])
    return bench.family.streams(bench.spec, bench.data, plan, queries=3, seed=0, device=bench.device)["test"]


@pytest.mark.parametrize("protocol", ["one_at_a_time", "steps", "versatility", "timing"])
def test_other_protocols_on_tasks_of_several_shapes(root, tmp_path, protocol):
    result = run(root, tmp_path, "--protocols", protocol, bench="birds2..3w1..2s", methods="maml")
    assert result.exit_code == 0, result.output
    (record,) = store.load_all(tmp_path)
    assert record.scores


def test_tasks_of_several_shapes_are_sampled_one_at_a_time(root):
    bench = mlpip_bench.load_bench("birds2..3w1..2s", data_root=root)
    assert bench.sample(1, split="test", first=3, queries=3).support.tasks == 1
    with pytest.raises(UserError, match=r"make no batch; got tasks=2\. Ask for one at a time"):
        bench.sample(2, split="test", queries=3)


def test_a_method_of_one_way_is_refused_on_several(monkeypatch, root, tmp_path):
    monkeypatch.setattr(registry.method("cnp"), "xfail_checks", {"way_and_shot": "its head has a row a class"})
    result = run(root, tmp_path, bench="birds2..3w1s", methods="cnp")
    assert result.exit_code == 2
    assert "its head has a row a class" in " ".join(result.output.split())

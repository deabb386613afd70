"""The Python API gives what the command line gives."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from mlpip_bench.methods.protonets import ProtoNets

import mlpip_bench
from builders import invoke, make_record
from mlpip_bench import Method, evaluate, fit, load, load_bench, read_records, run
from mlpip_bench.api.models import Model
from mlpip_bench.records import store
from mlpip_bench.utils.errors import TrialError, UserError

SMALL: dict[str, Any] = {"source": "procedural", "iterations": 3, "test_tasks": 5, "device": "cpu"}
SETTINGS = {"validation_tasks": 2}
TYPED = ["--source=procedural", "--iterations=3", "--test-tasks=5", "--device=cpu", "--set=validation_tasks=2"]


class Plain(ProtoNets):
    """A method that nobody registered."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the command line."""
    folder = tmp_path_factory.mktemp("finished")
    result = invoke("run", "--methods=protonets,versa", "--bench=omni5w1s", "--seed=3", *TYPED, "--results", folder)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def model() -> Model:
    """Prototypical networks, trained for a moment."""
    return fit("protonets", "omni5w1s", seed=3, settings=SETTINGS, **SMALL)


def record_of(folder: Path, method: str, protocol: str) -> Path:
    (path,) = folder.glob(f"records/omni5w1s/{method}/{protocol}-*.json")
    return path


def scores(frame: pd.DataFrame) -> dict[tuple[str, str], tuple[float, ...]]:
    """Of the best models, by method and metric."""
    best = frame[frame["model"] == "best"]
    return {(row.method, row.metric): row.per_task for row in best.itertuples()}


# -- the same as the command line ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["protonets", "versa"])
def test_fit_and_evaluate_give_the_scores_of_the_command_line(method, finished):
    frame = evaluate(fit(method, "omni5w1s", seed=3, settings=SETTINGS, **SMALL))
    recorded = read_records(finished).query("method == @method and metric in ('accuracy', 'nll')")
    assert scores(frame) == scores(recorded)
    assert len(scores(frame)) == 2
    best = recorded[recorded["model"] == "best"].set_index("metric")
    assert dict(zip(frame["metric"], frame["key"], strict=True)) == dict(best["key"])


def test_run_gives_the_records_of_the_command_line_and_only_those_that_were_asked_for(finished, tmp_path):
    frame = run(methods="protonets", bench="omni5w1s", seeds=3, set=SETTINGS, results=tmp_path, **SMALL)
    wanted = read_records(finished).query("method == 'protonets'")
    assert scores(frame) == scores(wanted)
    other = run(methods=["protonets"], bench=["omni5w1s"], seeds=[4], set=SETTINGS, results=tmp_path, **SMALL)
    assert set(other["seed"]) == {4}
    assert set(read_records(tmp_path)["seed"]) == {3, 4}


def test_the_columns_are_those_of_the_record(finished):
    record = store.load(record_of(finished, "versa", "nll"))
    frame = read_records(finished).query("key == @record.key and model == 'best'")
    (row,) = frame.to_dict("records")
    named = {
        **{f"settings.{name}": value for name, value in record.config["settings"].items()},
        **{name: value for name, value in record.config.items() if name != "settings"},
        **{f"data.{name}": value for name, value in record.data["options"].items()},
        **{f"backbone.{name}": value for name, value in record.backbone["spec"].items() if value is not None},
    }
    assert {"settings.eval_samples", "iterations", "data.split", "backbone.channels"} <= named.keys()
    assert {name: row[name] for name in named} == named
    assert row["per_task"] == record.scores[0].per_task
    assert row["backbone"] == "conv4"


def test_importing_the_package_or_reading_its_names_loads_no_torch():
    code = "import sys, mlpip_bench; dir(mlpip_bench); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert {"fit", "evaluate", "run", "load", "load_bench", "read_records"} <= set(dir(mlpip_bench))
    assert all(getattr(mlpip_bench, name) is not None for name in mlpip_bench.__all__)


# -- a trained model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["protonets", "versa"])
def test_a_loaded_model_predicts_what_its_record_says(method, finished):
    path = record_of(finished, method, "accuracy")
    loaded = load(path)
    batch = load_bench("omni5w1s", source="procedural").sample(5, split="test")
    accuracies, nlls = [], []
    for task in range(5):
        adapted = loaded.adapt(batch.support.x[task].numpy(), batch.support.y[task].tolist())
        probabilities, y = adapted.predict(batch.query.x[task].numpy()), batch.query.y[task].numpy()
        assert adapted.classes == (0, 1, 2, 3, 4)
        assert probabilities.sum(-1) == pytest.approx(1)
        accuracies.append(float((probabilities.argmax(-1) == y).mean()))
        nlls.append(float(-np.log(probabilities[range(len(y)), y]).mean()))
    best = {s.metric: s.per_task for s in store.load(path).scores if s.model == "best"}
    assert accuracies == pytest.approx(best["accuracy"])
    nll = next(s for s in store.load(record_of(finished, method, "nll")).scores if s.model == "best")
    assert nlls == pytest.approx(nll.per_task, rel=1e-3)


def test_a_loaded_model_is_measured_on_its_own_data_only(finished):
    path = record_of(finished, "protonets", "accuracy")
    loaded = load(path)
    frame = evaluate(loaded, "accuracy", bench=load_bench("omni5w1s", source="procedural"))
    assert scores(frame)["protonets", "accuracy"] == store.load(path).scores[0].per_task
    with pytest.raises(UserError, match=r"comes without data; pass its bench, .*load_bench\('omni5w1s'"):
        evaluate(loaded)
    with pytest.raises(UserError, match=r"from load_bench; got a str, 'omni5w1s'. Pass load_bench\('omni5w1s'"):
        evaluate(loaded, bench="omni5w1s")
    with pytest.raises(UserError, match=r"its own bench and data, omni5w1s of glyphs .* got omni5w5s of glyphs"):
        evaluate(loaded, bench=load_bench("omni5w5s", source="procedural"))


def test_labels_may_be_of_any_kind_and_images_of_any_number_type(model):
    batch = load_bench("omni5w1s", source="procedural").sample(1, split="test", queries=2)
    support, queries = batch.support.x[0], batch.query.x[0]
    adapted = model.adapt(support, batch.support.y[0])
    assert adapted.classes == (0, 1, 2, 3, 4)
    expected = adapted.predict(queries)
    assert expected.shape == (10, 5)
    bytes_ = (support.numpy() * 255).round().astype(np.uint8)
    named = model.adapt(bytes_[:, 0], ["edcba"[label] for label in batch.support.y[0]])  # in the reverse order
    assert named.classes == ("a", "b", "c", "d", "e")
    again = named.predict((queries * 255).round().to(torch.uint8))
    assert again == pytest.approx(expected[:, ::-1], abs=1e-4)  # float32 sums, in another order
    two = model.adapt(np.concatenate([support, support[:1]])[:, 0], np.array([7, 7, 7, 7, 9, 9]))
    assert two.classes == (7, 9)
    assert two.predict(queries).shape == (10, 2)


def test_predictions_are_the_same_each_time_and_leave_the_generator_alone():
    versa = fit("versa", "omni5w1s", settings=SETTINGS, **SMALL)
    images = np.random.default_rng(0).random((4, 28, 28))
    before = torch.get_rng_state()
    first, second = (versa.adapt(images, [0, 1, 0, 1]).predict(images) for _ in range(2))
    assert (first == second).all()
    assert (torch.get_rng_state() == before).all()


IMAGES = np.zeros((4, 1, 28, 28))


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (IMAGES, [1, 1, 1, 1], "at least two classes; got 4 labels of 1 classes for 4 images"),
        (IMAGES, [0, 1, 2], "a label for each image, .* got 3 labels of 3 classes for 4 images"),
        (IMAGES, ["a", 1, 2, 3], "labels must be numbers, or texts"),
        (IMAGES, [[0], [1], [0], [1]], "labels must be numbers, or texts"),
        (np.zeros((4, 1, 32, 32)), [0, 1, 0, 1], r"images must be \[point, 1, 28, 28\], .* got \(4, 1, 32, 32\)"),
        (np.zeros((28, 28)), [0], r"got \(28, 28\)"),
        (IMAGES[:0], [], r"at least one; got \(0, 1, 28, 28\)"),
        (IMAGES + 200, [0, 1, 0, 1], r"floating-point numbers in \[0, 1\]; these are float64 from 200.0 to 200.0"),
        (IMAGES.astype(int) - 1, [0, 1, 0, 1], "integers from 0 to 255, .* from -1 to -1"),
        (IMAGES * np.nan, [0, 1, 0, 1], "from nan to nan"),
        (IMAGES.astype(str), [0, 1, 0, 1], "images must be numbers"),
        ([[0.0], [0.0, 1.0]], [0, 1], "images must be an array"),
    ],
)
def test_support_sets_that_make_no_sense(images, labels, says, model):
    with pytest.raises(UserError, match=says):
        model.adapt(images, labels)


def test_queries_that_make_no_sense(model):
    adapted = model.adapt(IMAGES, [0, 1, 0, 1])
    with pytest.raises(UserError, match=r"images must be \[point, 1, 28, 28\]"):
        adapted.predict(np.zeros((2, 3, 28, 28)))


def test_a_model_of_regression_does_not_adapt_to_images():
    with pytest.raises(UserError, match="this model is for regression"):
        fit("exact_linear", "linear5s", iterations=1, device="cpu").adapt(IMAGES, [0, 1, 0, 1])


# -- loading ---------------------------------------------------------------------------------------------------------


def test_a_record_without_its_checkpoint(finished, tmp_path):
    shutil.copytree(finished / "records", tmp_path / "records")
    with pytest.raises(UserError, match=r"needs its checkpoint .* --overwrite always"):
        load(record_of(tmp_path, "protonets", "accuracy"))


def test_a_record_outside_a_results_folder(finished, tmp_path):
    path = shutil.copy(record_of(finished, "protonets", "accuracy"), tmp_path)
    with pytest.raises(UserError, match="a record lies in its results folder"):
        load(path)
    with pytest.raises(UserError, match="a record must be there"):
        load(tmp_path / "none.json")


def test_a_record_of_other_code(finished, tmp_path):
    record = store.load(record_of(finished, "protonets", "accuracy"))
    for changed in (
        dataclasses.replace(record, key="0" * 64),
        dataclasses.replace(record, config={n: v for n, v in record.config.items() if n != "queries"}),
        make_record(method="protonets"),
    ):
        with pytest.raises(UserError, match="made by another version of the suite, or of protonets"):
            load(store.save(changed, tmp_path))
    unknown = dataclasses.replace(record, method="protonet")
    with pytest.raises(UserError, match="unknown method 'protonet'"):
        load(store.save(unknown, tmp_path))


def test_a_record_of_a_plugin_that_has_changed_since(finished, tmp_path, monkeypatch):
    from mlpip_bench.execution import planning, restoring, scheduler

    for module in (planning, restoring):  # as if the method were of another package
        monkeypatch.setattr(module, "plugin_code", lambda kind, name: "one" if kind == "method" else None)
    monkeypatch.setattr(scheduler, "in_own_processes", lambda *_: False)  # of which none would know of that
    run(methods="protonets", bench="omni5w1s", protocols="accuracy", set=SETTINGS, results=tmp_path, **SMALL)
    path = record_of(tmp_path, "protonets", "accuracy")
    assert json.loads(path.read_bytes())["environment"]["code"]["plugins"] == {"method protonets": "one"}
    assert load(path).trial.method == "protonets"
    monkeypatch.setattr(restoring, "plugin_code", lambda kind, name: "two" if kind == "method" else None)
    with pytest.raises(UserError, match="made by another version"):
        load(path)


# -- classes, and what cannot be done --------------------------------------------------------------------------------


def test_a_class_that_is_not_registered_is_trained_like_one_that_is(model, tmp_path):
    plain = fit(Plain, "omni5w1s", seed=3, settings=SETTINGS, **SMALL)
    assert type(plain.method) is Plain
    assert scores(evaluate(plain))["Plain", "nll"] == scores(evaluate(model))["protonets", "nll"]
    assert fit(ProtoNets, "omni5w1s", seed=3, settings=SETTINGS, **SMALL).trial.key == model.trial.key
    with pytest.raises(UserError, match="checkpoints are kept for registered methods; Plain is not"):
        fit(Plain, "omni5w1s", results=tmp_path, **SMALL)
    with pytest.raises(UserError, match="lacks amortize, loss, predictive"):
        fit(type("Empty", (Method,), {}), "omni5w1s", **SMALL)


def test_training_goes_on_from_a_folder(tmp_path):
    first = fit("protonets", "omni5w1s", settings=SETTINGS, results=tmp_path, **SMALL)
    assert len(list(tmp_path.glob("checkpoints/omni5w1s/protonets/*.pt"))) == 1
    again = fit("protonets", "omni5w1s", settings=SETTINGS, results=str(tmp_path), **SMALL)
    assert again.training.seconds == first.training.seconds  # it was not trained again


def test_a_failing_trial_is_raised_and_the_others_are_kept(tmp_path, monkeypatch):
    def loss(self: ProtoNets, batch: Any) -> torch.Tensor:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(ProtoNets, "loss", loss)
    with pytest.raises(TrialError, match=r"1 of 2 trials failed; omni5w1s protonets .*out of luck"):
        run(methods="protonets,versa", bench="omni5w1s", set=SETTINGS, results=tmp_path, **SMALL)
    assert set(read_records(tmp_path)["method"]) == {"versa"}


def test_records_are_read_from_several_folders(tmp_path, monkeypatch):
    store.save(make_record(seed=1), tmp_path / "one")
    store.save(make_record(seed=2), tmp_path / "runs")
    assert list(read_records(tmp_path / "one", str(tmp_path / "runs"))["seed"]) == [1, 2]
    monkeypatch.chdir(tmp_path)
    assert list(read_records()["seed"]) == [2]
    with pytest.raises(UserError, match=r"there are none below .*nowhere"):
        read_records(tmp_path / "nowhere")


def test_real_data_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MLPIP_BENCH_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"data folder must exist; .*nowhere is not a folder"):
        load_bench("omni5w1s")
    with pytest.raises(UserError, match=r"data folder must exist; .*nowhere is not a folder"):
        fit("protonets", "omni5w1s", **(SMALL | {"source": "auto"}))
    assert load_bench("omni5w1s", data_root=tmp_path).data.source == "procedural"


def test_a_bench_gives_the_same_tasks_each_time():
    bench = load_bench("omni5w1s", source="procedural")
    assert (bench.name, bench.data.source) == ("omni5w1s", "procedural")
    batch = bench.sample(3, queries=2)
    assert batch.support.x.shape == (3, 5, 1, 28, 28)
    assert batch.query.x.shape == (3, 10, 1, 28, 28)
    assert torch.equal(bench.sample(1, first=2, queries=2).query.x[0], batch.query.x[2])
    assert not torch.equal(bench.sample(3, queries=2, seed=1).query.x, batch.query.x)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fit("protonet", "omni5w1s"), "unknown method 'protonet'"),
        (lambda: fit("protonets,versa", "omni5w1s", **SMALL), "these options ask for 2. Use run for several"),
        (lambda: fit("protonets", "omni5w1s", norm="metabn,tasknorm", **SMALL), "these options ask for 2"),
        (lambda: fit("protonets", "omni5w1s", jobs=2), "unknown option of fit 'jobs'"),
        (lambda: fit("protonets", "omni5w1s", seed=1.5), "seeds must be whole numbers"),
        (lambda: fit("protonets", "omni5w1s", settings={"scal": 1}, **SMALL), "unknown setting of protonets 'scal'"),
        (lambda: run(methods="protonets"), "a run needs a bench"),
        (lambda: run(bench="omni5w1s", jobs=2), "jobs is for the command line"),
        (lambda: run(bench="omni5w1s", dry_run=True), "dry_run is for the command line"),
        (lambda: run(bench="omni5w1s", method="maml"), "unknown option of a run 'method'"),
        (lambda: load_bench("omni5w"), "unknown bench 'omni5w'"),
        (lambda: load_bench("omni5w1s", source="reel"), "unknown source 'reel'"),  # type: ignore[arg-type]
        (lambda: load_bench("omni5w1s", data={"spilt": "vinyals"}), "unknown setting of omni 'spilt'"),
        (lambda: load_bench("omni5w1s", source="procedural").sample(split="tset"), "a split is one of train"),
        (
            lambda: load_bench("omni5w1s", source="procedural").sample(0),
            "at least one, with at least one query; got tasks=0",
        ),
        (lambda: load_bench("omni5w1s", source="procedural").sample(queries=0), "at least one query; got tasks=1"),
    ],
)
def test_what_cannot_be_done_is_one_message(call, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        call()


@pytest.mark.parametrize(
    ("protocols", "says"),
    [
        ("acuracy", "unknown protocol 'acuracy'"),
        (["accuracy", "timing"], "timing measures several side by side"),
        ("posterior", "a protocol must apply to bench and method; posterior does not"),
        ("", "evaluate needs a protocol"),
    ],
)
def test_protocols_that_cannot_measure_a_model(protocols, says, model):
    with pytest.raises(UserError, match=says):
        evaluate(model, protocols)

"""What models are before meta-training: parameters of a file, of a pre-training, or as they stay."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import mlpip_bench
from builders import assert_one_error, budget, invoke, make_config
from mlpip_bench.execution.cleaning import leftovers
from mlpip_bench.execution.estimates import estimate_all
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.execution.starting import begin
from mlpip_bench.execution.status import survey
from mlpip_bench.nn.backbone import Backbone
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.training.checkpoints import load_checkpoint
from mlpip_bench.utils.progress import Quiet


def run(results: Path, *more: object, methods: str = "protonets", **settings: object):
    arguments = ("--bench", "omni5w1s", "--source", "procedural", "--results", results, *budget(**settings), *more)
    return invoke("run", "--methods", methods, *arguments)


def record(results: Path, method: str = "protonets", protocol: str = "accuracy") -> Record:
    (found,) = (r for r in store.load_all(results) if (r.method, r.protocol) == (method, protocol))
    return found


def scores(found: Record, metric: str = "accuracy", model: str = "best") -> list[float]:
    (per_task,) = (s.per_task for s in found.scores if (s.metric, s.model) == (metric, model))
    return list(per_task)


def checkpoint(results: Path, method: str = "protonets") -> Path:
    (path,) = (results / "checkpoints" / "omni5w1s" / method).glob("*.pt")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model with running averages, which one step would move."""
    folder = tmp_path_factory.mktemp("trained")
    assert run(folder, "--norm", "running", "--protocols", "accuracy").exit_code == 0
    return folder


@pytest.mark.parametrize("form", ["checkpoint", "state dict", "safetensors"])
def test_a_model_that_is_only_evaluated_has_the_scores_that_it_had(form, trained, tmp_path):
    file = checkpoint(trained)
    state = load_checkpoint(file).best_model
    if form == "state dict":
        torch.save(state, file := tmp_path / "weights.pt")
    elif form == "safetensors":
        save_file(state, file := tmp_path / "weights.safetensors")
    result = run(
        tmp_path / "r",
        "--norm",
        "running",
        "--protocols",
        "accuracy",
        "--evaluate-only",
        "--init",
        f"{file},trained_on=x",
    )
    assert result.exit_code == 0, result.output
    found = record(tmp_path / "r")
    assert scores(found) == scores(record(trained))
    after = load_checkpoint(checkpoint(tmp_path / "r"))
    assert all(torch.equal(after.model[name], value) for name, value in state.items())
    assert found.training["iterations"] == found.training["tasks_seen"] == 0
    assert found.training["outside"] is True
    assert found.training["pretraining"]["file"] == file.name
    assert len(found.training["pretraining"]["sha256"]) == 64
    table = (tmp_path / "r" / "tables" / "accuracy.md").read_text()
    assert "quick, no meta-training | outside" in table
    assert found.training["pretraining"]["sha256"][:12] in table


def test_iterations_0_test_a_model_as_it_is_initialized(tmp_path):
    result = run(tmp_path, iterations=0)
    assert result.exit_code == 0, result.output
    (trial,) = plan_trials(make_config(settings={"iterations": 0}))
    initial = trial.build_method().state_dict()
    assert all(torch.equal(initial[name], value) for name, value in load_checkpoint(checkpoint(tmp_path)).model.items())
    assert "outside" not in record(tmp_path).training


def test_training_goes_on_from_a_file(trained, tmp_path):
    file = checkpoint(trained)
    assert run(tmp_path, "--norm", "running", "--init", f"{file},trained_on=omniglot", iterations=1).exit_code == 0
    found = record(tmp_path)
    assert found.training["iterations"] == 1
    assert found.training["pretraining"]["saw"] == "omniglot"
    assert "outside" not in found.training
    before, after = load_checkpoint(file).best_model, load_checkpoint(checkpoint(tmp_path)).model
    moved = [float((after[name] - value).abs().max()) for name, value in before.items() if "conv.weight" in name]
    assert 0 < max(moved) <= 1.01e-3  # the learning rate, which bounds the first step of Adam


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--evaluate-only"], "tests models that were trained before"),
        (
            ["--evaluate-only", "--methods", "linear_probe", "--pretrain", "none"],
            "tests models that were trained before",
        ),
        (["--init", "{file}"], "needs what the parameters were trained on"),
        (
            ["--init", "{file},trained_on=x", "--norm", "metabn"],
            "8 not the model's: .*running_mean.* has --norm metabn and --backbone conv4",
        ),
        (["--init", "{file},trained_on=x", "--backbone", "conv4,channels=8"], "of another shape: .*8x1x3x3"),
        (["--init", "{file},seen=x"], "unknown setting of --init 'seen'"),
        (["--init", "none.pt,trained_on=x"], "none.pt is not: No such file"),
        (["--init", "{folder}/pickle.pt,trained_on=x"], "holds tensors alone"),
        (["--init", "{file},trained_on=x", "--pretrain", "classify"], "trained here before, or somewhere else"),
        (["--pretrain", "contrast"], "unknown way of --pretrain 'contrast'"),
        (["--pretrain", "none,iterations=3"], "has no settings"),
        (["--pretrain", "classify,batch_size=1"], "at least 2 images"),
        (["--pretrain", "classify,batches=1"], "unknown setting"),
        (["--pretrain", "classify", "--bench", "sinusoid5s", "--methods", "maml"], "are not made of any"),
    ],
)
def test_what_cannot_be_a_start_is_one_error_before_any_training(arguments, message, trained, tmp_path):
    torch.save({"function": print}, tmp_path / "pickle.pt")
    texts = [a.format(file=checkpoint(trained), folder=tmp_path) for a in arguments]
    norm = [] if "--norm" in texts else ["--norm", "running"]
    result = run(tmp_path / "r", *norm, *texts)
    assert_one_error(result, message)
    assert not (tmp_path / "r" / "checkpoints").exists()


def test_one_pre_training_is_shared_by_methods_and_seeds_and_counted_for_each(tmp_path):
    options = ("--pretrain", "classify,iterations=3,batch_size=8", "--seeds", "0,1", "--protocols", "accuracy")
    result = run(tmp_path, *options, methods="protonets,versa")
    assert result.exit_code == 0, result.output
    (shared,) = (tmp_path / "checkpoints" / "pretraining").rglob("*.pt")
    written = shared.stat().st_mtime_ns
    records = store.load_all(tmp_path)
    assert len(records) == 4
    seconds = {r.training["pretraining"]["seconds"] for r in records}
    assert len(seconds) == 1
    assert {r.training["pretraining"]["images"] for r in records} == {24}
    assert {r.config["norm"] for r in records} == {"own"}
    assert re.search("; 24 images of pre-training, [0-9]+ s", (tmp_path / "tables" / "accuracy.md").read_text())
    assert run(tmp_path, *options, "--overwrite", "always", methods="versa").exit_code == 0
    assert shared.stat().st_mtime_ns == written


def test_an_exported_model_says_itself_what_it_saw(trained, tmp_path):
    path = next((trained / "records" / "omni5w1s" / "protonets").glob("accuracy-*.json"))
    file = mlpip_bench.export(path, tmp_path / "model.safetensors")
    result = run(tmp_path / "r", "--norm", "running", "--init", file, "--evaluate-only", "--protocols", "accuracy")
    assert result.exit_code == 0, result.output
    assert scores(record(tmp_path / "r")) == scores(record(trained))
    assert record(tmp_path / "r").training["pretraining"]["saw"] == "omni5w1s of glyphs (procedural)"


def test_a_record_is_loaded_without_the_file_that_it_started_from(trained, tmp_path):
    file = tmp_path / "start.pt"
    file.write_bytes(checkpoint(trained).read_bytes())
    assert run(tmp_path / "r", "--norm", "running", "--init", f"{file},trained_on=x").exit_code == 0
    file.unlink()
    assert mlpip_bench.load(tmp_path / "r" / "records" / record(tmp_path / "r").filename).training.iteration == 4


def test_a_file_that_has_changed_since_is_one_error(trained, tmp_path):
    file, options = tmp_path / "start.pt", ("--norm", "running", "--evaluate-only", "--protocols", "accuracy")
    state = load_checkpoint(checkpoint(trained)).best_model
    for number in range(2):
        torch.save({name: value + number for name, value in state.items()}, file)
        result = run(tmp_path / "r", *options, "--init", f"{file},trained_on=x")
        assert result.exit_code == (2 if number else 0), result.output
    assert "start.pt has SHA-256" in result.output
    first = record(tmp_path / "r").training["pretraining"]["sha256"]
    assert f"had {first[:12]}" in result.output
    for more in (("--overwrite", "always"), ()):  # now there are records of both
        assert run(tmp_path / "r", *options, "--init", f"{file},trained_on=x", *more).exit_code == 0
    assert run(tmp_path / "other", *options, "--init", f"{file},trained_on=x").exit_code == 0


def test_the_time_of_a_pre_training_is_estimated_once(tmp_path, monkeypatch):
    seconds = []
    monkeypatch.setattr("mlpip_bench.execution.estimates._seconds", lambda work, device: 1.0)
    for more in ({}, {"pretrain": "classify", "pretrain_settings": {"iterations": 500, "batch_size": 4}}):
        asked = make_config(tmp_path, methods=("protonets", "versa"), norms=("running",), **more)
        found = estimate_all(survey(plan_trials(asked), asked), asked, Quiet())
        seconds.append(sum(estimate.seconds for estimate in found.values()))
    assert seconds[1] - seconds[0] == pytest.approx(500)


def test_a_network_that_records_share_can_be_cleaned_up(tmp_path):
    assert run(tmp_path, "--pretrain", "classify,iterations=2,batch_size=8", "--protocols", "accuracy").exit_code == 0
    (shared,) = (tmp_path / "checkpoints" / "pretraining").rglob("*.pt")
    assert shared in {leftover.path for leftover in leftovers(tmp_path, ["checkpoints"])}
    assert not leftovers(tmp_path, ["unfinished"])


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """The place of a wrapped model."""
    file = tmp_path_factory.mktemp("models") / "models.py"
    file.write_text(WRAPPED)
    return f"{file}:wrapped"


WRAPPED = (
    "import torch\nimport mlpip_bench\n\n\ndef flat(support_x, support_y, query_x, way):\n"
    "    return torch.zeros(len(query_x), way)\n\n\n"
    "wrapped = mlpip_bench.wrap(flat, outputs='logits', trained_on='x')\n"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backbone", "mlp"), "--backbone: for methods that the suite builds; wrapped would be .* without it, "),
        (("--pretrain", "classify", "--norm", "layer"), "--pretrain, --norm: .* as without them, .* further --methods"),
        (("--init", "x.pt,trained_on=x"), "--init: for methods that the suite builds"),
        (("--tune", 3), "--tune: for methods"),
    ],
)
def test_options_of_a_network_are_refused_where_no_method_has_a_use_for_one(options, message, wrapped, tmp_path):
    assert_one_error(run(tmp_path / "r", *options, methods=wrapped), message)
    assert not (tmp_path / "r").exists()


def test_settings_of_training_that_change_nothing_are_named(wrapped, tmp_path):
    says = "no method of this run is meta-trained"
    few = ("--dry-run", "--source", "procedural", "--bench", "omni5w1s", "--results", tmp_path / "r")
    asked = ("--iterations", 7, "--set", "learning_rate=0.1", "--set", "validation_tasks=3")
    for methods in (wrapped, f"nearest_mean,{wrapped}"):
        output = invoke("run", "--methods", methods, *few, *asked).output
        assert f"{says}: iterations, learning_rate change nothing" in output
    for methods, more in ((wrapped, ("--iterations", 0)), (f"{wrapped},protonets", asked), (wrapped, ())):
        assert says not in invoke("run", "--methods", methods, *few, *more).output


def test_a_wrapped_model_is_not_started_from_the_file_of_the_others(wrapped, trained, tmp_path):
    options = ("--norm", "running", "--evaluate-only", "--init", f"{checkpoint(trained)},trained_on=x", "--jobs", 2)
    result = run(tmp_path / "r", *options, "--protocols", "accuracy", methods=f"protonets,{wrapped}")
    assert result.exit_code == 0, result.output
    assert record(tmp_path / "r", "wrapped").training["pretraining"]["what"] == "wrapped model"
    assert scores(record(tmp_path / "r")) == scores(record(trained))


def test_a_wrapped_model_stands_next_to_rows_of_transfer(wrapped, tmp_path):
    result = run(
        tmp_path,
        "--pretrain",
        "classify,iterations=2,batch_size=8",
        "--evaluate-only",
        methods=f"nearest_mean,{wrapped}",
    )
    assert result.exit_code == 0, result.output
    assert record(tmp_path, "nearest_mean").training["pretraining"]["what"] == "classification"
    assert record(tmp_path, "wrapped").training["pretraining"]["what"] == "wrapped model"


def test_a_model_that_no_seed_trains_is_one_model(tmp_path):
    options = ("--pretrain", "classify,iterations=2,batch_size=8", "--seeds", "3,4", "--protocols", "accuracy")
    assert run(tmp_path, *options, methods="linear_probe,protonets").exit_code == 0
    assert sorted((r.method, r.seed) for r in store.load_all(tmp_path)) == [
        ("linear_probe", 3), ("protonets", 3), ("protonets", 4),
    ]  # fmt: skip


def test_a_pre_training_that_diverges_names_its_own_setting(tmp_path):
    rate = "classify,iterations=50,batch_size=8,learning_rate=1e30"
    result = run(tmp_path, "--pretrain", rate, "--protocols", "accuracy", methods="nearest_mean")
    assert result.exit_code == 1
    assert "--pretrain classify,learning_rate=1e+29" in result.output
    assert "--set" not in result.output


def test_a_crop_that_may_leave_nothing_of_an_image_is_one_error(tmp_path):
    for crop, message in ((28, "28x28 of them, and must be below 28, .* got 28"), (2.5, "crop")):
        result = run(tmp_path, "--pretrain", f"classify,crop={crop}", methods="nearest_mean")
        assert_one_error(result, message)
    assert plan_trials(make_config(tmp_path, pretrain="classify", pretrain_settings={"crop": 27}))


def test_a_network_without_parameters_is_not_trained_before(tmp_path):
    (trial,) = plan_trials(make_config(tmp_path, methods=("nearest_mean",), backbone="identity"))
    assert trial.pretraining is None
    result = run(tmp_path, "--backbone", "identity", "--pretrain", "classify", methods="nearest_mean")
    assert result.exit_code == 2
    assert "identity has none" in result.output


def test_a_card_says_what_was_trained_before(tmp_path):
    assert run(tmp_path, "--pretrain", "classify,iterations=2,batch_size=8", methods="nearest_mean").exit_code == 0
    path = tmp_path / "records" / record(tmp_path, "nearest_mean").filename
    file = mlpip_bench.export(path, tmp_path / "my model.safetensors")
    card = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "| trained before | classification: training classes of glyphs (procedural) |" in card
    assert "--model 'my model.safetensors'" in card
    assert "nearest_mean" in repr(mlpip_bench.load(file))
    assert len(repr(mlpip_bench.load(file))) < 200


def test_methods_begin_with_the_network_of_the_pre_training(tmp_path):
    asked = make_config(
        tmp_path, methods=("protonets", "versa"), pretrain="classify",
        pretrain_settings={"iterations": 2, "batch_size": 8},
    )  # fmt: skip
    states = []
    for trial in plan_trials(asked):
        method, facts = begin(trial, trial.streams(), tmp_path, Quiet())
        (network,) = (part for part in method.modules() if isinstance(part, Backbone))
        states.append(network.state_dict())
        assert facts["what"] == "classification"
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    (first, _) = plan_trials(asked)
    assert not torch.equal(states[0]["blocks.0.conv.weight"], first.build_method().backbone.blocks[0].conv.weight)


def test_what_is_trained_before_is_part_of_keys_and_of_what_loads(trained, tmp_path):
    plain, started, pretrained = (
        plan_trials(make_config(tmp_path, norms=("running",), **more))[0]
        for more in (
            {},
            {"init": checkpoint(trained), "init_trained_on": "x"},
            {"pretrain": "classify", "pretrain_settings": {"iterations": 2}},
        )
    )
    assert len({trial.training_key for trial in (plain, started, pretrained)}) == 3
    other = plan_trials(make_config(tmp_path, pretrain="classify", pretrain_settings={"iterations": 3}))[0]
    assert other.pretraining_key != pretrained.pretraining_key
    for option in (("--pretrain", "classify,iterations=2"), ("--init", f"{checkpoint(trained)},trained_on=x")):
        folder = tmp_path / option[0].strip("-")
        assert run(folder, "--norm", "running", *option).exit_code == 0
        path = folder / "records" / record(folder).filename
        found = mlpip_bench.load(path).method.state_dict()
        saved = load_checkpoint(checkpoint(folder)).best_model
        assert all(torch.equal(found[name], value) for name, value in saved.items())

"""Exported models are built again as they were, or not at all."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import mlpip_bench as mb
from builders import CPU, assert_one_error, budget, invoke, write_record
from mlpip_bench.api.models import Model
from mlpip_bench.execution import exporting, restoring
from mlpip_bench.nn.own import own_backbone
from mlpip_bench.records import exports
from mlpip_bench.utils.errors import UserError
from pictures import write_classes

SMALL: dict[str, Any] = {"source": "procedural", "iterations": 2, "test_tasks": 2, "device": "cpu"}
SETTINGS = {"validation_tasks": 2, "tasks_per_batch": 1}


@pytest.fixture(scope="module")
def model() -> Model:
    return mb.fit("protonets", "omni5w1s", seed=3, settings=SETTINGS, **SMALL)


@pytest.fixture
def exported(model, tmp_path) -> Path:
    return mb.export(model, tmp_path / "model.safetensors")


def changed(exported: Path, tensors: Mapping[str, torch.Tensor] | None = None, **changes: Any) -> Path:
    """The export with other tensors, or another record, under a header that fits."""
    record, state = exports.read(exported)[0], exporting.read(exported, CPU).state.best_model
    exporting.write(exported, dataclasses.replace(record, **changes), dict(state if tensors is None else tensors))
    return exported


def test_an_export_has_the_state_and_all_that_made_it(model, exported):
    record, trial, state = exporting.read(exported, CPU)
    assert state.best_model.keys() == model.training.best_model.keys()
    assert all(torch.equal(state.best_model[name], tensor) for name, tensor in model.training.best_model.items())
    assert (state.best_iteration, state.seconds) == (model.training.best_iteration, model.training.seconds)
    assert state.history == model.training.history
    assert trial.training_key == model.trial.training_key == record.key
    assert record.scores == ()
    assert (trial.method, trial.seed, trial.bench.name) == ("protonets", 3, "omni5w1s")
    assert trial.data.fingerprint == model.trial.data.fingerprint


def test_an_export_of_what_was_loaded_is_the_same_file(exported, tmp_path):
    again = mb.export(mb.load(exported), tmp_path / "again.safetensors")
    assert again.read_bytes() == exported.read_bytes()


def test_what_only_a_test_knows_is_left_out(exported):
    record = exports.read(exported)[0]
    tested = dataclasses.replace(
        record,
        bench="omni5w1s-on-icons",
        data={**record.data, "test_classes": 7, "test_on": {**record.data, "family": "icons"}},
        config={**record.config, "protocol_settings": {"ways": 3}},
        protocol="accuracy",
    )
    of_training = exporting.of_training(dataclasses.replace(tested, config=record.config))
    assert (of_training.key, of_training.bench) == (record.key, "omni5w1s")
    assert not {"test_on", "test_classes"} & of_training.data.keys()


def state_of(exported: Path) -> dict[str, torch.Tensor]:
    return dict(exporting.read(exported, CPU).state.best_model)


def test_tensors_that_do_not_fit_are_named(exported):
    own = state_of(exported)
    first = next(iter(own))
    others = {
        "1 missing: ": {name: tensor for name, tensor in own.items() if name != first},
        "1 not the model's: more": own | {"more": torch.ones(2)},
        f"1 of another shape: {first} \\(3 in place of ": own | {first: torch.ones(3)},
    }
    for says, tensors in others.items():
        with pytest.raises(UserError, match=rf"weights must fit the model; .*model\.safetensors are {says}"):
            mb.load(changed(exported, tensors))
        changed(exported, own)


def test_values_that_are_not_finite_are_refused(exported):
    own = state_of(exported)
    first = next(iter(own))
    for value in (float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"{first} has values that are not finite numbers"):
            mb.load(changed(exported, own | {first: torch.full_like(own[first], value)}))
        exporting.write(exported, exports.read(exported)[0], own)


def test_a_model_that_cannot_be_built_is_refused(exported):
    record, own = exports.read(exported)[0], state_of(exported)
    backbone = {**record.backbone, "spec": {**record.backbone["spec"], "channels": 10**12}}
    exporting.write(exported, exporting.of_training(dataclasses.replace(record, backbone=backbone)), own)
    with pytest.raises(UserError, match=r"model\.safetensors must be of a model that can be built; it is not: "):
        mb.load(exported)


def test_another_method_or_version_is_refused(exported, monkeypatch):
    record = exports.read(exported)[0]
    own = state_of(exported)

    def refused(says: str, **changes: Any) -> None:
        exporting.write(exported, dataclasses.replace(record, **changes), own)
        with pytest.raises(UserError, match=says):
            mb.load(exported)

    other = r"built by the code that trained it; .*model\.safetensors was made by another version .*its model card"
    refused(other, key="0" * 64)
    refused(other, seed=4)
    refused(other, device="nothing")
    refused(other, config={**record.config, "norm": "layer"})
    refused(other, config={name: value for name, value in record.config.items() if name != "queries"})
    refused(other, backbone={**record.backbone, "spec": {**record.backbone["spec"], "channels": 10**9}})
    refused("unknown method 'protonet'", method="protonet")
    refused("unknown backbone 'conv5'", backbone={**record.backbone, "name": "conv5"})
    refused("unknown bench", bench="nothing5w1s-1")
    exporting.write(exported, record, own)
    assert mb.load(exported).trial.method == "protonets"
    monkeypatch.setattr("mlpip_bench.execution.trial.NUMBERS_VERSION", 1000)
    refused(other)


def test_an_export_of_a_plugin_that_has_changed_since(exported, monkeypatch):
    record, own = exports.read(exported)[0], state_of(exported)
    monkeypatch.setattr(restoring, "plugin_code", lambda kind, name: "one")
    environment = {**record.environment, "code": {**record.environment["code"], "plugins": {"method protonets": "one"}}}
    exporting.write(exported, exporting.of_training(dataclasses.replace(record, environment=environment)), own)
    assert mb.load(exported).record is not None
    monkeypatch.setattr(restoring, "plugin_code", lambda kind, name: "two")
    with pytest.raises(UserError, match="made by another version of the suite, or of protonets"):
        mb.load(exported)


NETWORK = """
from torch import nn
open({ran!r}, "w").close()
def build(input_shape, width: int = 4):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], width))
"""


def test_a_network_of_ones_own_is_run_only_where_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(NETWORK.format(ran=str(ran)))
    trained = mb.fit("protonets", "omni5w1s", backbone="mine.py:build", settings=SETTINGS, **SMALL)
    exported = mb.export(trained, "m.safetensors")
    ran.unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "mine.py").write_text(NETWORK.format(ran=str(ran)))  # another place is another module
    with pytest.raises(UserError, match=r"runs no code .*names mine\.py:build.* --trust-code"):
        mb.load(tmp_path / exported)
    assert not ran.exists()
    assert mb.load(tmp_path / exported, trust_code=True).trial.backbone.name == "mine.py:build"
    assert ran.exists()
    (tmp_path / "changed").mkdir()
    monkeypatch.chdir(tmp_path / "changed")
    (tmp_path / "changed" / "mine.py").write_text(f"# {NETWORK.format(ran=str(ran))}")
    own_backbone.cache_clear()
    with pytest.raises(UserError, match="made by another version"):
        mb.load(tmp_path / exported, trust_code=True)


def test_a_record_runs_its_network_only_where_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran, results = tmp_path / "ran", tmp_path / "runs"
    (tmp_path / "mine.py").write_text(NETWORK.format(ran=str(ran)))
    done = invoke(
        "run", "--methods=protonets", "--bench=omni5w1s", "--backbone=mine.py:build", "--source=procedural",
        "--device=cpu", "--results", results, *budget(),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    record = next(results.glob("records/*/*/accuracy-*.json"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text(NETWORK.format(ran=str(ran)))  # another place is another module
    monkeypatch.chdir(elsewhere)
    ran.unlink()
    write_classes(tmp_path / "signs", ["stop", "go"], 2)
    use = ("predict", "--model", record, "--support", tmp_path / "signs", "--query", tmp_path / "signs")
    export = ("export", record, "--to", tmp_path / "m.safetensors")
    clean = ("clean", "--results", results, "--only", "checkpoints,unfinished")
    for command in (use, export):
        assert_one_error(invoke(*command), r"runs no code .*names mine\.py:build.* --trust-code")
    with pytest.raises(UserError, match="trust_code=True in Python"):
        mb.load(record)
    assert "0 files to remove" in invoke(*clean).output  # whose model a checkpoint is, only that code could tell
    assert not ran.exists()
    assert invoke(*use, "--trust-code").exit_code == 0
    assert ran.exists()
    assert invoke(*export, "--trust-code").exit_code == 0
    card = (tmp_path / "m.md").read_text(encoding="utf-8")
    assert "| needs code of its author | mine.py:build, " in card
    assert "trust_code=True" in card
    assert "--trust-code" in card
    assert "the model of its records" in invoke(*clean, "--trust-code").output


def test_a_record_next_to_an_exported_one_runs_no_code_of_its_own(tmp_path):
    """The card has the scores of all records of the trial, for which those that lie there are looked at."""
    results = tmp_path / "runs"
    done = invoke(
        "run", "--methods=protonets", "--bench=omni5w1s", "--source=procedural", "--results", results, *budget()
    )
    assert done.exit_code == 0, done.output
    record = next(results.glob("records/*/*/accuracy-*.json"))
    (tmp_path / "mine.py").write_text(NETWORK.format(ran=str(tmp_path / "ran")))
    raw = json.loads(record.read_text())
    for number, changes in enumerate(
        ({"backbone": {**raw["backbone"], "name": f"{tmp_path}/mine.py:build"}},
         {"environment": {**raw["environment"], "code": {"place": f"{tmp_path}/mine.py:build"}}})
    ):  # fmt: skip
        write_record(record.with_name(f"other-seed0-{number:012}.json"), raw | changes)
    assert invoke("export", record, "--to", tmp_path / "m.safetensors").exit_code == 0
    assert not (tmp_path / "ran").exists()


def test_code_that_only_fingerprints_would_import_is_not_run_either(exported, tmp_path):
    (tmp_path / "mine.py").write_text(NETWORK.format(ran=str(tmp_path / "ran")))
    code = {**exports.read(exported)[0].environment["code"], "plugins": {f"backbone {tmp_path}/mine.py:build": "0"}}
    with pytest.raises(UserError, match=r"runs no code .*names backbone .*mine\.py:build"):
        mb.load(changed(exported, environment={"code": code}))
    assert not (tmp_path / "ran").exists()


def test_a_method_that_is_not_registered_has_no_export(tmp_path):
    plain = type("Plain", (type(mb.fit("protonets", "omni5w1s", settings=SETTINGS, **SMALL).method),), {})
    with pytest.raises(UserError, match="the method that is registered under its name; Plain is not registered"):
        mb.export(mb.fit(plain, "omni5w1s", settings=SETTINGS, **SMALL), tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_card_takes_the_place_of_a_card_only(model, exported):
    mb.export(model, exported)
    exported.with_suffix(".md").write_text("# My notes")
    with pytest.raises(UserError, match=r"a model card is written over nothing else; .*model\.md is there"):
        mb.export(model, exported)
    assert exported.with_suffix(".md").read_text() == "# My notes"


def test_the_file_must_have_its_ending_and_a_folder(model, tmp_path):
    with pytest.raises(UserError, match=r"an exported model is a file that ends in \.safetensors; got .*m\.pt"):
        mb.export(model, tmp_path / "m.pt")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        mb.export(model, tmp_path / "file" / "m.safetensors")

"""``run --recalibrate``: rows of their own, with the temperature that ``rescore`` fits, and the same accuracy."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from builders import SMALL, assert_one_error, budget, invoke, make_batch, make_record
from mlpip_bench import registry
from mlpip_bench.evaluation.recalibration import recalibrated
from mlpip_bench.inference.method import Problem
from mlpip_bench.records import rescoring, store
from mlpip_bench.reporting.answer import answers
from mlpip_bench.reporting.entries import of_best_models
from mlpip_bench.reporting.tables.paired import method_differences

PROTOCOLS = "accuracy,nll,calibration"


def run(results: Path, *more: object, methods: str = "protonets,versa", protocols: str = PROTOCOLS):
    arguments = ("--bench", "omni5w1s", "--source", "procedural", "--protocols", protocols, "--results", results)
    return invoke("run", "--methods", methods, *arguments, *budget(test_tasks=8, validation_tasks=6), *more)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without it, then the same with it."""
    folder = tmp_path_factory.mktemp("recalibrated")
    assert run(folder).exit_code == 0
    result = run(folder, "--recalibrate", "--sweep", "protonets.scale=1,0.01")
    assert result.exit_code == 0, result.output
    assert "recalibrated by temperature, norm" not in result.output  # what is resolved is shown once
    assert "each is measured with a fitted temperature as well" in result.output
    return folder


def scores(results: Path, method: str, metric: str, model: str = "best", scale: float | None = None):
    """Those of a plain record and of its recalibrated companion."""
    found = {
        "recalibrated" in record.config: score
        for record in store.load_all(results)
        for score in record.scores
        if (record.method, score.metric, score.model) == (method, metric, model)
        and record.config["settings"].get("scale") in (None, scale or 1.0)
    }
    return found[False], found[True]


@pytest.mark.parametrize("model", ["best", "last"])
@pytest.mark.parametrize("method", ["protonets", "versa"])
def test_scores_and_temperature_are_those_of_rescore(method, model, results):
    """But for the precision in which predictions are kept."""
    sources = [s for s in rescoring.sources([results])[0] if s.record.config["settings"].get("scale") in (None, 1.0)]
    frame = rescoring.rescore(sources, temperatures=True, model=model).set_index("method").loc[method]
    for metric in ("nll", "brier", "ece", "accuracy"):
        plain, found = scores(results, method, metric, model)
        assert np.mean(found.per_task) == pytest.approx(frame[metric], rel=1e-2, abs=1e-3)
        if metric == "accuracy":
            assert list(found.per_task) == list(plain.per_task)
        if metric == "nll":
            assert found.detail["temperature"] == (pytest.approx(frame["temperature"], rel=1e-3),)


def test_a_scale_that_is_wrong_is_made_good(results):
    """Distances times 0.01 are nearly uniform; the temperature sharpens them to what another scale would give."""
    plain, found = scores(results, "protonets", "nll", scale=0.01)
    assert found.detail["temperature"][0] < 0.5
    assert np.mean(found.per_task) < np.mean(plain.per_task)


def test_rows_say_it_and_plain_ones_are_what_they_were(results, tmp_path):
    assert run(tmp_path).exit_code == 0
    before = {r.key: r.scores for r in store.load_all(tmp_path)}
    now = {r.key: r.scores for r in store.load_all(results)}
    assert {key: now[key] for key in before} == before
    recalibrated_records = [r for r in store.load_all(results) if "recalibrated" in r.config]
    assert len(recalibrated_records) == 9
    assert all(r.predictions is None for r in recalibrated_records)
    shown = invoke("table", "--results", results, "--format", "markdown").output
    for word in ("by temperature", "no"):
        assert f"recalibrated {word}" in shown
    assert len(list((results / "checkpoints").rglob("*.pt"))) == 3  # one training is of both


def test_it_is_done_once(results):
    result = run(results, "--recalibrate")
    assert "0 trials run, 4 had nothing to do" in " ".join(result.output.split())


def test_every_protocol_of_one_model_is_recalibrated(tmp_path):
    result = run(tmp_path, "--recalibrate", methods="protonets", protocols="one_at_a_time,timing")
    assert result.exit_code == 0, result.output
    found = [(r.protocol, "recalibrated" in r.config) for r in store.load_all(tmp_path)]
    assert sorted(found) == [("one_at_a_time", False), ("one_at_a_time", True), ("timing", False)]


def test_a_model_is_loaded_without_a_temperature(results):
    (path,) = (p for p in results.rglob("versa/nll-seed0-*.json") if "recalibrated" in store.load(p).config)
    assert_one_error(invoke("predict", "--model", path, "--support", results, "--query", results), "has no temperature")


def test_numbers_have_no_temperature(tmp_path):
    arguments = ("--methods", "versa", "--bench", "linear5s", "--results", tmp_path, "--recalibrate", *budget())
    assert_one_error(invoke("run", *arguments), "for probabilities of classes; linear5s is regression")


def test_tasks_of_several_ways_have_no_temperature(tmp_path):
    arguments = ("--methods", "protonets", "--bench", "omni2..5w1s", "--source", "procedural", "--results", tmp_path)
    assert_one_error(invoke("run", *arguments, "--recalibrate", *budget()), "one way and shot; those of omni2..5w1s")


def test_a_model_is_not_compared_with_itself(results):
    """A temperature leaves accuracies as they are; NLL is another one's."""
    compared = {
        metric: [(c.method, c.against) for c in method_differences(store.load_all(results)) if c.metric == metric]
        for metric in ("accuracy", "nll")
    }
    assert not any("by temperature" in name for pair in compared["accuracy"] for name in pair)
    assert any("versa (recalibrated" in a and "versa (recalibrated" in b for a, b in compared["nll"])
    assert not any("recalibrated" in a.sentence for a in answers(store.load_all(results), []) if a.metric == "accuracy")


def test_equal_scores_of_two_plain_records_both_stay():
    """Copies are those of a temperature alone."""
    first, second = (make_record(key=key * 20, protocol="accuracy") for key in "ab")
    warm = dataclasses.replace(first, key="c" * 20, config={**first.config, "recalibrated": "by temperature"})
    found = of_best_models([first, second, warm])
    assert [e.record.key[0] for e in found] == ["a", "b"]


def test_a_temperature_at_an_end_is_said(tmp_path):
    """A scale that makes all predictions certain, of a model that has learned nothing."""
    result = run(tmp_path, "--recalibrate", "--set", "protonets.scale=1000000", methods="protonets", protocols="nll")
    assert "at an end of what is searched" in " ".join(result.output.split())


def test_predictives_are_a_power_of_what_they_were():
    method = registry.method("versa")
    model = method(Problem(SMALL, "metabn", 3), method.Settings()).eval()
    batch = make_batch(dtype=torch.float32)
    other = recalibrated(model, 2.0)
    torch.manual_seed(0)
    plain = Categorical(logits=model.predictive(model.amortize(batch.support), batch.query.x).log_probs).probs
    torch.manual_seed(0)
    found = other.predictive(other.amortize(batch.support), batch.query.x).probs
    expected = plain.sqrt() / plain.sqrt().sum(-1, keepdim=True)
    torch.testing.assert_close(found, expected.double(), rtol=1e-5, atol=1e-6)

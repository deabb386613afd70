"""Scores made again from predictions, against their definitions, closed forms and the metrics of a run."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from torch.distributions import Categorical

import mlpip_bench as mb
from builders import budget, invoke, make_predictions, random_queries, write_trial
from mlpip_bench.evaluation import metrics
from mlpip_bench.records import rescoring
from mlpip_bench.records.predictions import Predictions, of_classes
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.utils.errors import UserError


def two_classes(confidence: list[float], right: list[bool]) -> Predictions:
    """One task of queries of class 0; the model's more probable class has some confidence, and is right or not."""
    p = np.array([c if r else 1 - c for c, r in zip(confidence, right, strict=True)])
    return of_classes(np.zeros((1, len(p)), int), np.log(np.stack([p, 1 - p], -1))[None])


# ---------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize("bins", [1, 7, 15, 40])
def test_scores_are_their_definitions(bins):
    targets, log_probs = random_queries(8, 4, 5)
    p = of_classes(targets, log_probs)
    probs = np.exp(log_probs)
    errors, squares, logs, pooled = [], [], [], {}
    for task, point in np.ndindex(targets.shape):
        row, target = probs[task, point], targets[task, point]
        hit = float(row.argmax() == target)
        errors.append(1 - hit)
        logs.append(-math.log(row[target]))
        squares.append(sum((q - (c == target)) ** 2 for c, q in enumerate(row)))
        pooled.setdefault(math.ceil(row.max() * bins), []).append((row.max(), hit))
    gaps = [abs(sum(c - h for c, h in members)) / targets.size for members in pooled.values()]
    assert rescoring.accuracy(p).mean() == pytest.approx(1 - np.mean(errors))
    assert rescoring.nll(p).mean() == pytest.approx(np.mean(logs), abs=1e-7)
    assert rescoring.brier(p).mean() == pytest.approx(np.mean(squares), abs=2e-4)
    assert rescoring.ece(p, bins).mean() == pytest.approx(sum(gaps), abs=2e-4)


def test_scores_are_those_of_a_run_task_by_task():
    targets, log_probs = random_queries(20, 5, 15)
    p, predictive = of_classes(targets, log_probs), Categorical(logits=torch.tensor(log_probs))
    for name, metric in (
        ("accuracy", metrics.ACCURACY), ("nll", metrics.NLL), ("brier", metrics.BRIER), ("ece", metrics.ECE)
    ):  # fmt: skip
        theirs = metric.score(predictive, torch.tensor(targets)).numpy()
        assert rescoring.SCORES[name](p) == pytest.approx(theirs, abs=3e-4), name


def area(confidence: list[float], right: list[bool]) -> float:
    """The definition: the mean over k of the share of errors among the k most confident."""
    order = sorted(range(len(right)), key=lambda i: -confidence[i])
    wrong = [not right[i] for i in order]
    return float(np.mean([sum(wrong[:k]) / k for k in range(1, len(wrong) + 1)]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(51, 99), st.booleans()), min_size=1, max_size=12, unique_by=lambda pair: pair[0]))
def test_area_under_risk_and_coverage_is_its_definition(pairs):
    confidence, right = [c / 100 for c, _ in pairs], [r for _, r in pairs]
    assert rescoring.aurc(two_classes(confidence, right)).mean() == pytest.approx(area(confidence, right))


def test_queries_of_equal_confidence_have_the_mean_of_all_their_orders():
    pairs = [(0.9, True), (0.5, True), (0.5, True), (0.8, False), (0.6, False)]
    expected = np.mean([area(*zip(*order, strict=True)) for order in itertools.permutations(pairs)])
    # Python's sort is stable, so each order of the list is an order of the ties. Half of 1 is exact in any precision.
    p = two_classes(*map(list, zip(*pairs, strict=True)))
    assert rescoring.aurc(p).mean() == pytest.approx(expected)


def test_area_in_closed_form():
    # Of n queries the m errors come last: sum_{j=1..m} j / (n - m + j) / n. Of one confidence: the share of errors.
    n, m = 40, 8
    confidence = list(np.linspace(0.95, 0.55, n))
    found = rescoring.aurc(two_classes(confidence, [i < n - m for i in range(n)])).mean()
    assert found == pytest.approx(sum(j / (n - m + j) for j in range(1, m + 1)) / n)
    halves = Predictions(
        np.full((1, n), np.log(0.25), "<f4"), np.zeros((1, n), "u1"), (np.arange(n)[None] < m).astype("u1"),
        np.log(np.full((1, n, 4), 0.25)).astype("<f2"),
    )  # fmt: skip
    assert rescoring.aurc(dataclasses.replace(halves, of_target=halves.log_probs[..., 0].astype("<f4"))).mean() == (
        pytest.approx(m / n)
    )


def test_a_reduced_file_gives_all_scores_but_brier():
    whole = make_predictions(20, 5, 15)
    assert set(rescoring.possible(whole)) - set(rescoring.possible(whole.reduced())) == {"brier"}
    for name in rescoring.possible(whole.reduced()):
        assert np.array_equal(rescoring.SCORES[name](whole), rescoring.SCORES[name](whole.reduced()))
    with pytest.raises(ValueError, match="two classes alone"):
        rescoring.brier(whole.reduced())


# ------------------------------------------------------------------------------------- temperature and ensembles


@pytest.mark.parametrize(("logit", "right", "queries"), [(3.0, 8, 10), (0.5, 9, 10), (6.0, 60, 100)])
def test_temperature_in_closed_form(logit, right, queries):
    """With one distance of logits throughout, the best sigmoid(logit / T) is the accuracy."""
    confidence = 1 / (1 + math.exp(-logit))
    p = two_classes([confidence] * queries, [i < right for i in range(queries)])
    accuracy = right / queries
    expected = logit / math.log(accuracy / (1 - accuracy))
    assert rescoring.temperature(p) == pytest.approx(expected, rel=2e-3)
    tempered = rescoring.tempered(p, rescoring.temperature(p))
    assert np.exp(tempered.log_probs.astype(float)).max(-1) == pytest.approx(accuracy, abs=1e-3)
    assert np.array_equal(tempered.choices, p.choices)


def test_a_model_that_is_too_sure_by_a_factor_has_that_temperature():
    chance = np.random.default_rng(0)
    logits = chance.normal(size=(300, 75, 5))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    targets = (probs.cumsum(-1) < chance.random((300, 75, 1))).sum(-1).clip(max=4)
    sharp = 2.5 * logits
    p = of_classes(targets, sharp - np.log(np.exp(sharp).sum(-1, keepdims=True)))
    assert rescoring.temperature(p) == pytest.approx(2.5, rel=0.03)


def test_a_probability_of_zero_has_no_temperature():
    with np.errstate(divide="ignore"):
        p = of_classes(np.array([[1]]), np.log(np.array([[[1.0, 0.0]]])))
    with pytest.raises(ValueError, match="probability 0"):
        rescoring.temperature(p)


def test_probabilities_that_are_nearly_equal_keep_their_order_when_sharpened():
    """Those of targets are kept more exactly than the others, which may come to be above them by rounding."""
    rng = np.random.default_rng(0)
    logits = 1e-3 * rng.standard_normal((20, 50, 5))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    y = rng.integers(0, 5, (20, 50))
    found = rescoring.tempered(of_classes(y, log_probs), 1e-3)
    exact = log_softmax(log_probs / 1e-3, axis=-1)
    assert (found.choices == log_probs.argmax(-1)).all()
    # A thousandth of a nat before, a nat after: half precision has left about one of them.
    assert np.abs(found.of_target - np.take_along_axis(exact, y[..., None], -1)[..., 0]).max() < 1.5


def test_an_ensemble_is_the_mean_of_probabilities():
    members = [random_queries(6, 5, 15, seed=seed) for seed in range(3)]
    together = rescoring.ensemble([of_classes(*member) for member in members])
    mean = np.mean([np.exp(log_probs) for _, log_probs in members], 0)
    targets = members[0][0]
    expected = -np.log(np.take_along_axis(mean, targets[..., None], -1)[..., 0]).mean(1)
    assert rescoring.nll(together) == pytest.approx(expected, abs=1e-3)
    assert np.exp(together.log_probs.astype(float)) == pytest.approx(mean, abs=5e-4)
    single = [rescoring.nll(of_classes(*member)).mean() for member in members]
    assert rescoring.nll(together).mean() < np.mean(single)  # Jensen's inequality


def test_an_ensemble_of_regressions_is_the_mean_of_densities():
    a, b = (np.log(np.array([[x, 1.0]])).astype("<f4") for x in (0.5, 1.5))
    assert np.exp(rescoring.ensemble([Predictions(a), Predictions(b)]).of_target) == pytest.approx(1.0)


def test_members_that_predict_other_queries():
    with pytest.raises(ValueError, match="same queries"):
        rescoring.ensemble([make_predictions(), make_predictions(classes=1)])


# --------------------------------------------------------------------------------------------------- of a folder


@pytest.fixture
def folder(tmp_path):
    """Two methods, one of them with two seeds; both too sure."""
    for seed in (0, 1):
        write_trial(tmp_path, seed=seed, sharpness=5.0)
    write_trial(tmp_path, method="beta", sharpness=5.0)
    return tmp_path


def test_a_row_for_each_model_and_each_ensemble(folder):
    frame = mb.rescore(folder, ensemble=True)
    rows = [(row["method"], row["seeds"], row["members"]) for row in frame.to_dict("records")]
    assert rows == [("alpha", "0", 1), ("alpha", "1", 1), ("alpha", "0,1", 2), ("beta", "0", 1)]
    recorded = mb.read_records(folder)
    best = recorded[recorded.model == "best"].set_index(["method", "seed", "metric"])["mean"]
    for row in frame[frame.members == 1].to_dict("records"):
        for metric in ("accuracy", "nll", "ece", "brier"):
            assert row[metric] == pytest.approx(best[row["method"], int(row["seeds"]), metric], abs=3e-4)


def test_seeds_of_other_settings_are_no_ensemble(tmp_path):
    write_trial(tmp_path, seed=0, settings={"rate": 0.1})
    write_trial(tmp_path, seed=1, settings={"rate": 0.2})
    frame = mb.rescore(tmp_path, ensemble=True)
    assert list(frame.members) == [1, 1]
    assert list(frame.settings) == ["rate 0.1", "rate 0.2"]


def test_the_temperature_comes_from_validation_alone(folder, monkeypatch):
    first = mb.rescore(folder, temperature=True)
    assert (first.temperature > 1.5).all()
    assert (first.nll < mb.rescore(folder).nll).all()
    assert (first.accuracy == mb.rescore(folder).accuracy).all()
    read = rescoring.Source.predictions

    def other_tests(self, split, model, chosen_by):
        found = read(self, split, model, chosen_by)
        return make_predictions(6, 5, 15, sharpness=0.1, seed=9) if split == "test" else found

    monkeypatch.setattr(rescoring.Source, "predictions", other_tests)
    second = mb.rescore(folder, temperature=True)
    assert (second.temperature == first.temperature).all()
    assert (second.nll != first.nll).all()


def test_the_command_prints_and_writes(folder, tmp_path):
    for suffix in ("csv", "json"):
        file = tmp_path / f"out.{suffix}"
        done = invoke(
            "rescore", "--results", folder, "--methods", "alpha", "--ensemble", "--temperature", "--output", file
        )
        assert done.exit_code == 0, done.output
        assert "0,1 (ensemble)" in done.output
        read = pd.read_csv(file) if suffix == "csv" else pd.DataFrame(json.loads(file.read_text()))
        assert list(read.members) == [1, 1, 2]
        assert read.nll.to_list() == pytest.approx(
            mb.rescore(folder, ensemble=True, temperature=True).nll[:3].to_list()
        )


# ------------------------------------------------------------------------------------------------- over classes


def of_some_classes(p: Predictions, classes: np.ndarray) -> Predictions:
    return dataclasses.replace(p, classes=classes.astype("<u4"))


def test_means_of_classes_are_those_of_their_queries():
    chance = np.random.default_rng(0)
    targets, log_probs = random_queries(30, 3, 4)
    classes = np.stack([chance.permutation(7)[:3] for _ in range(30)])
    p = of_some_classes(of_classes(targets, log_probs), classes)
    frame = pd.DataFrame(
        {
            "class": [classes[t, targets[t, i]] for t, i in np.ndindex(targets.shape)],
            "nll": [-log_probs[t, i, targets[t, i]] for t, i in np.ndindex(targets.shape)],
        }
    )
    expected = frame.groupby("class").nll.mean().sort_index().to_numpy()
    assert rescoring.by_class(p, lambda q: -q.of_target.astype(float)) == pytest.approx(expected, abs=1e-6)


def test_an_interval_over_few_classes_covers_the_mean_of_all_and_one_over_tasks_does_not():
    chance, covered = np.random.default_rng(1), {"classes": 0, "tasks": 0}
    draws, mean = 300, 0.7
    for _ in range(draws):
        rates = np.clip(chance.normal(mean, 0.1, 6), 0, 1)  # of 6 classes, drawn from all that there are
        classes = np.stack([chance.permutation(6)[:3] for _ in range(200)])
        targets = np.tile(np.repeat(np.arange(3), 5), (200, 1))
        right = chance.random(targets.shape) < np.take_along_axis(rates[classes], targets, 1)
        predicted = np.where(right, targets, (targets + 1) % 3)
        probs = np.where(np.arange(3) == predicted[..., None], 0.8, 0.1)
        p = of_some_classes(of_classes(targets, np.log(probs)), classes)
        for unit, values in (("classes", rescoring.by_class(p, rescoring._hits)), ("tasks", rescoring.accuracy(p))):
            found, half_width = mean_ci95(values.tolist())
            covered[unit] += abs(found - mean) <= half_width
    assert 0.92 < covered["classes"] / draws < 0.98
    assert covered["tasks"] / draws < 0.6


def test_the_command_with_intervals_over_classes(tmp_path):
    options = ["--bench", "omni5w1s", "--methods", "protonets", "--source", "procedural", "--results", tmp_path]
    assert invoke("run", *options, *budget()).exit_code == 0
    done = invoke("rescore", "--results", tmp_path, "--over", "classes", "--output", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    (row,) = pd.read_csv(tmp_path / "out.csv").to_dict("records")
    assert 5 <= row["classes"] <= 20  # of 4 tasks of 5 ways
    assert row["nll_ci95"] != pytest.approx(mb.rescore(tmp_path).nll_ci95[0])
    assert "ece_ci95" not in row


def test_predictions_that_know_no_classes_are_one_message(folder):
    done = invoke("rescore", "--results", folder, "--over", "classes")
    assert done.exit_code == 2
    assert "do not say which of the data set's classes" in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--over", "queries"], "unknown unit of intervals 'queries'"),
        (["--bins", 0], "bins must be from 1"),
        (["--model", "first"], "unknown model 'first'"),
        (["--output", "x.txt"], "ends with .csv or .json"),
        (["--methods", "nobody"], "no record there names any"),
    ],
)
def test_bad_options_are_one_message(folder, words, says):
    done = invoke("rescore", "--results", folder, *words)
    assert done.exit_code == 2
    assert says in done.output


def test_a_reduced_file_with_a_temperature_is_one_message(tmp_path, monkeypatch):
    monkeypatch.setattr("mlpip_bench.records.predictions.LARGE_BYTES", 0)
    write_trial(tmp_path)
    assert mb.rescore(tmp_path).accuracy.notna().all()
    with pytest.raises(UserError, match=r"predictions-seed0.*two classes alone"):
        mb.rescore(tmp_path, temperature=True)

"""How many seeds and tasks a margin needs: published tables of power, closed forms, and a simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from builders import invoke, make_record, make_scores
from mlpip_bench.records import power, store
from mlpip_bench.records.power import Variances

# Pairs for a paired t test, two-sided at 5 %, with a power of 0.8, by effect size: Cohen 1988 and G*Power 3.1.
PAIRS = {0.2: 199, 0.5: 34, 0.8: 15, 1.0: 10}


@pytest.mark.parametrize(("effect", "pairs"), PAIRS.items())
def test_tasks_for_two_models_are_those_of_published_tables(effect, pairs):
    assert power.tasks_needed(Variances(None, 1.0), effect) == pairs
    assert power.tasks_needed(Variances(None, 9.0), 3 * effect) == pairs  # in any unit


@pytest.mark.parametrize(("effect", "pairs"), PAIRS.items())
def test_seeds_are_too_where_tasks_add_nothing(effect, pairs):
    assert power.seeds_needed(Variances(1.0, 0.0), effect, tasks=600) == pairs


@pytest.mark.parametrize("effect", [0.01, 0.02, 0.05])
def test_many_tasks_in_closed_form(effect):
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert power.tasks_needed(Variances(None, 1.0), effect) == pytest.approx((z / effect) ** 2, rel=0.002, abs=2)


def test_more_tasks_do_not_make_up_for_few_seeds():
    of = Variances(1.0, 1.0, 1.0)
    assert power.tasks_needed(of, 0.5, seeds=5) is None
    assert power.seeds_needed(of, 0.5, tasks=10**6) == 34
    assert power.seeds_needed(Variances(None, 1.0), 0.5, tasks=600) is None  # one seed says nothing of seeds


def test_no_spread_needs_no_more_than_two():
    assert power.tasks_needed(Variances(None, 0.0), 0.1) == 2


def test_variances_are_those_that_were_simulated():
    chance, true = np.random.default_rng(0), Variances(4.0, 1.0, 0.25)
    found = []
    for _ in range(400):
        d = 2.0 * chance.normal(size=(4, 1)) + chance.normal(size=(1, 30)) + 0.5 * chance.normal(size=(4, 30))
        of = power.variances(d.tolist())
        found.append((of.seed, of.task, of.rest))
    assert np.mean(found, 0) == pytest.approx([true.seed, true.task, true.rest], rel=0.1)


def test_one_seed_has_the_variance_of_its_tasks():
    assert power.variances([[1.0, 2.0, 3.0]]) == Variances(None, 1.0)


def test_power_is_the_share_of_differences_that_are_found():
    chance, of, margin, seeds, tasks = np.random.default_rng(1), Variances(0.3, 2.0, 1.0), 1.2, 6, 40
    found = 0
    for _ in range(2000):
        d = margin + (
            math.sqrt(of.seed) * chance.normal(size=(seeds, 1))
            + math.sqrt(of.task) * chance.normal(size=(1, tasks))
            + math.sqrt(of.rest) * chance.normal(size=(seeds, tasks))
        )
        ms_seed, ms_task = tasks * d.mean(1).var(ddof=1), seeds * d.mean(0).var(ddof=1)
        rest = d - d.mean(0) - d.mean(1)[:, None] + d.mean()
        ms_rest = (rest**2).sum() / ((seeds - 1) * (tasks - 1))
        total = max(ms_seed + ms_task - ms_rest, ms_task)
        freedom = total**2 / (ms_seed**2 / (seeds - 1) + ms_task**2 / (tasks - 1))
        found += abs(d.mean()) > stats.t.ppf(0.975, freedom) * math.sqrt(total / d.size)
    assert found / 2000 == pytest.approx(power.power(of, margin, seeds, tasks), abs=0.04)


# ---------------------------------------------------------------------------------------------------- of records


def saved(folder, seeds=(0,), difference=0.1):
    """Two methods whose differences are +-, so that their standard deviation is known."""
    for seed in seeds:
        for method, sign in (("alpha", 1), ("beta", -1)):
            scores = [0.5 + sign * difference / 2 * (-1) ** task + 0.001 * seed * sign for task in range(600)]
            store.save(make_record(make_scores(scores), method=method, seed=seed), folder)
    return store.load_all(folder)


def test_needs_of_records_in_closed_form(tmp_path):
    (need,) = power.needs(saved(tmp_path), ["omni5w1s"], {"accuracy": 1.0, "nll": 0.1})
    assert (need.pair, need.pairs, need.test_tasks, need.seeds) == ("alpha and beta", 1, 600, None)
    assert need.variances.task == pytest.approx(100.0 * 600 / 599)  # a standard deviation of 10 percentage points
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert need.tasks == pytest.approx((10 * z) ** 2, rel=0.01)


def test_seeds_are_known_from_two_on(tmp_path):
    (need,) = power.needs(saved(tmp_path, (0, 1, 2), difference=0.05), ["omni5w1s"], {"accuracy": 1.0})
    assert need.variances.seed == pytest.approx(0.2**2)  # 0, 0.2 and 0.4 percentage points
    # SE^2 = 0.2^2 / S + 5^2 / 600 with a margin of 1: two seeds do.
    assert need.seeds == 2
    (need,) = power.needs(store.load_all(tmp_path), ["omni5w1s"], {"accuracy": 0.1})
    assert need.seeds is None  # the tasks' share alone is too much


def test_other_conditions_are_no_pair(tmp_path):
    saved(tmp_path)
    for method, norm in (("gamma", "transductive"), ("delta", "tasknorm")):
        store.save(make_record(method=method, norm=norm), tmp_path)
    (need,) = power.needs(store.load_all(tmp_path), ["omni5w1s"], {"accuracy": 1.0})
    assert need.pairs == 1


def test_a_dry_run_says_what_a_margin_needs_from_records_and_measures_nothing(tmp_path, monkeypatch):
    store.save(make_record(make_scores([0.1, 0.3, 0.2], "nll", bench="toy5"), bench="toy5", protocol="nll"), tmp_path)
    other = make_record(make_scores([0.3, 0.3, 0.3], "nll", bench="toy5"), bench="toy5", protocol="nll", method="beta")
    store.save(other, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    run = ["run", "--bench", "toy5,linear3s", "--methods", "versa", "--results", tmp_path, "--dry-run"]
    monkeypatch.setattr("mlpip_bench.execution.trial.Trial.build_method", None)
    done = invoke(*run, "--margin", "nll=0.1")
    assert done.exit_code == 0, done.output
    assert "alpha and beta" in done.output
    assert f"{power.tasks_needed(Variances(None, 0.01), 0.1)}" in done.output
    assert "nothing is known of linear3s nll" in done.output
    assert sorted(tmp_path.rglob("*")) == before
    assert invoke(*run[:-1], "--margin", "nll=0.1").exit_code == 2

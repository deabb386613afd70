"""Tuned trials: equal draws for all methods, chosen on validation tasks alone, and counted."""

import math
from pathlib import Path

import pytest
from scipy import stats

import mlpip_bench as mb
from builders import invoke, make_config, make_record
from mlpip_bench import registry
from mlpip_bench.benches.settings import resolve
from mlpip_bench.execution import measuring, planning, tuning
from mlpip_bench.inference.search import BUDGET, LogUniform, OneOf, drawn
from mlpip_bench.records import store
from mlpip_bench.tasks.regression import RegressionStream
from mlpip_bench.utils.errors import TrialError, UserError
from mlpip_bench.utils.progress import Quiet

SMALL = {"iterations": 20, "validate_every": 10, "validation_tasks": 4, "test_tasks": 4, "tasks_per_batch": 2}


def run(folder: Path, *words: object, methods: str = "versa"):
    what = ["run", "--methods", methods, "--bench", "toy5", "--protocols", "nll", "--results", folder]
    return invoke(*what, *(f"--set={name}={value}" for name, value in SMALL.items()), *words)


def asked(folder: Path, **fields):
    what = {"methods": ("versa",), "benches": ("toy5",), "protocols": ("nll",), "overrides": {"*": SMALL}}
    return make_config(folder, **(what | fields))


def planned(folder: Path, **fields):
    """The tuned trials."""
    return [trial for trial in planning.plan_trials(asked(folder, **({"tune": 3} | fields))) if trial.tuning]


# ----------------------------------------------------------------------------------------------------------- draws


def test_quantiles_of_a_log_uniform_number():
    choice = LogUniform(0.01, 1.0)
    assert [choice.at(u) for u in (0.0, 0.5, 1.0)] == [0.01, 0.1, 1.0]
    with pytest.raises(ValueError, match="positive"):
        LogUniform(0.0, 1.0)


def test_draws_are_uniform_and_the_first_has_the_defaults():
    space = {"rate": LogUniform(1.0, 10.0), "on": OneOf((True, False))}
    assert drawn(space, 0, 0) == {}
    found = [drawn(space, 0, draw) for draw in range(1, 1001)]
    assert stats.kstest([math.log10(values["rate"]) for values in found], "uniform").pvalue > 1e-3
    assert 430 < sum(values["on"] for values in found) < 570
    assert found[0] == drawn(space, 0, 1)
    assert found[0]["rate"] != drawn(space, 1, 1)["rate"]  # another training seed draws others


def test_methods_whose_spaces_agree_try_the_same_values(tmp_path):
    both = planned(tmp_path, methods=("maml", "fomaml", "protonets"), benches=("omni5w1s",), protocols=())
    rates = [[trial.draw(number).plan.learning_rate for number in range(3)] for trial in both]
    assert rates[0] == rates[1] == rates[2]
    assert len(set(rates[0])) == 3
    inner = [[trial.draw(number).settings.inner_rate for number in range(3)] for trial in both[:2]]
    assert inner[0] == inner[1]


def test_all_draws_have_the_budget_of_the_default(tmp_path):
    (trial,) = planned(tmp_path, tune=20)
    for number in range(20):
        plan = trial.draw(number).plan
        assert [getattr(plan, name) for name in BUDGET] == [getattr(trial.plan, name) for name in BUDGET]


@pytest.mark.parametrize("name", registry.method_names())
def test_each_search_space_has_valid_values_throughout(name):
    plugin = registry.method(name)
    family = registry.family("omni")
    for quantile in (0.0, 0.5, 0.999):
        values = {setting: choice.at(quantile) for setting, choice in plugin.search_space.items()}
        resolve(plugin, name, family.budgets["quick"], "quick", ("omni", "omni5w1s"), values)


@pytest.mark.parametrize(
    "space", [{"iterations": OneOf((1, 2))}, {"nothing": OneOf((1, 2))}, {"learning_rate": (0.1, 0.2)}, "learning_rate"]
)
def test_a_plugin_with_another_search_space_is_refused(space):
    faults = registry.method_faults(type("Mine", (registry.method("versa"),), {"search_space": space}))
    assert any("search_space" in fault for fault in faults)


def test_what_is_set_is_not_drawn(tmp_path):
    fixed = {"*": {**SMALL, "learning_rate": 0.5}}
    (trial,) = planned(tmp_path, overrides=fixed)
    assert {trial.draw(number).plan.learning_rate for number in range(3)} == {0.5}
    everything = {"*": fixed["*"], "versa": {"dropout": False}}
    with pytest.raises(UserError, match="all that versa declares are set: learning_rate, dropout"):
        planned(tmp_path, overrides=everything)


def test_keys_of_other_trials_stay_as_they_are(tmp_path):
    (plain,) = planning.plan_trials(asked(tmp_path))
    default, tuned = planning.plan_trials(asked(tmp_path, tune=3))
    assert default.key == plain.key
    assert tuned.draw(0).training_key == plain.training_key
    assert len({tuned.key, plain.key, planned(tmp_path, tune=4)[0].key}) == 3
    assert planned(tmp_path)[0].key == tuned.key


# ------------------------------------------------------------------------------------------------------------ runs


def test_a_tuned_record_is_that_of_the_settings_that_validation_chose(tmp_path):
    done = run(tmp_path / "a", "--tune", 4, methods="versa,amortized_vi")
    assert done.exit_code == 0, done.output
    records = store.load_all(tmp_path / "a")
    assert len(records) == 4  # a default and a tuned one of each method, and none of a draw
    for record in (r for r in records if "tuning" in r.training):
        note = record.training["tuning"]
        scores = [draw["score"] for draw in note["tried"]]
        assert len(scores) == note["draws"] == 4
        assert note["chosen"] == scores.index(min(scores))
        assert record.training["seconds"] == pytest.approx(sum(draw["seconds"] for draw in note["tried"]))
        assert record.training["tasks_seen"] == 4 * 20 * 2
        chosen = note["tried"][note["chosen"]]["values"]
        words = [f"--set={name}={value}" for name, value in chosen.items()]
        assert run(tmp_path / record.method, *words, methods=record.method).exit_code == 0
        (same,) = store.load_all(tmp_path / record.method)
        assert same.scores == record.scores
        assert same.predictions.sha256 == record.predictions.sha256
    assert "4 had nothing to do" in run(tmp_path / "a", "--tune", 4, methods="versa,amortized_vi").output


def test_no_test_task_is_drawn_before_the_choice(tmp_path, monkeypatch):
    events = []
    train, batch = tuning.train_trial, RegressionStream.batch

    def noted_train(*args, **more):
        found = train(*args, **more)
        events.append("trained")
        return found

    def noted_batch(self, first, tasks):
        if "test" in self.seed:
            events.append("test")
        return batch(self, first, tasks)

    monkeypatch.setattr(tuning, "train_trial", noted_train)
    monkeypatch.setattr(RegressionStream, "batch", noted_batch)
    (trial,) = planned(tmp_path)
    records = list(tuning.tune_and_measure(trial, ("nll",), tmp_path, Quiet(), afresh=False, predictions=False))
    assert events[:3] == ["trained"] * 3
    assert set(events[3:]) == {"test"}
    assert [record.key for record in records] == [trial.record_key("nll")]


@pytest.mark.parametrize(("select", "best"), [("accuracy", 1), ("nll", 2), (None, 1)])
def test_the_rule_chooses_by_the_tested_model_and_its_metric(tmp_path, monkeypatch, select, best):
    """Draws 0 to 2 with made validations; the tested model is the one of iteration 10."""
    made = {0: (0.5, 1.0), 1: (0.9, 0.8), 2: (0.7, 0.1)}
    (trial,) = planned(tmp_path, benches=("omni5w1s",), methods=("protonets",), protocols=("accuracy",), select=select)
    measured = []

    def train(draw, *args, **more):
        number = int(draw.title.split("draw ")[1].split()[0])
        accuracy, nll = made[number]
        history = [
            {"iteration": 10, "accuracy": accuracy, "nll": nll},
            {"iteration": 20, "accuracy": 1.0 - accuracy, "nll": 9.0 - nll},
        ]
        return None, measuring.TrainingState(20, {}, {}, best_iteration=10, history=history, seconds=1.0), {}

    monkeypatch.setattr(tuning, "train_trial", train)
    monkeypatch.setattr(tuning, "train_and_measure", lambda chosen, *args, **more: measured.append(chosen) or iter(()))
    list(tuning.tune_and_measure(trial, (), tmp_path, Quiet(), afresh=False, predictions=False))
    assert measured[0].plan == trial.draw(best).plan
    assert measured[0].settings == trial.draw(best).settings


def test_a_draw_that_diverges_is_counted_and_not_chosen(tmp_path, monkeypatch):
    train = tuning.train_trial

    def diverging(draw, *args, **more):
        if "draw 1" in draw.title:
            raise TrialError("the loss is not finite")
        return train(draw, *args, **more)

    monkeypatch.setattr(tuning, "train_trial", diverging)
    done = run(tmp_path, "--tune", 3)
    assert done.exit_code == 0, done.output
    (record,) = (r for r in store.load_all(tmp_path) if "tuning" in r.training)
    notes = record.training["tuning"]["tried"]
    assert notes[1]["score"] is None
    assert "not finite" in notes[1]["error"]
    assert record.training["tuning"]["chosen"] != 1


def test_an_interrupted_search_goes_on_and_gives_the_same(tmp_path, monkeypatch):
    assert run(tmp_path / "whole", "--tune", 3).exit_code == 0
    calls, losses = [], []
    train, loss = tuning.train_trial, registry.method("versa").loss

    def stopping(draw, *args, **more):
        calls.append(draw.title)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(draw, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "train_trial", stopping)
        assert run(tmp_path / "stopped", "--tune", 3).exit_code == 130
    monkeypatch.setattr(registry.method("versa"), "loss", lambda self, b: losses.append(1) or loss(self, b))
    assert run(tmp_path / "stopped", "--tune", 3).exit_code == 0
    assert len(losses) == SMALL["iterations"]  # of the third draw alone

    def numbers(folder):
        return {r.key: (r.scores, r.config) for r in store.load_all(folder)}

    assert numbers(tmp_path / "stopped") == numbers(tmp_path / "whole")


@pytest.fixture
def good_draws(monkeypatch):
    """A search space with better values than this short budget's default."""
    space = {"learning_rate": LogUniform(0.05, 0.2), "dropout": OneOf((True, False))}
    monkeypatch.setattr(registry.method("versa"), "search_space", space)


def test_rows_say_default_and_tuned_and_put_seeds_together(tmp_path, good_draws):
    assert run(tmp_path, "--tune", 3, "--seeds", "0,1,2").exit_code == 0
    chosen = {str(r.config) for r in store.load_all(tmp_path) if "tuning" in r.training}
    assert len(chosen) > 1  # seeds have chosen other settings
    rows = (tmp_path / "tables" / "nll.md").read_text()
    assert sum("tuned 3 draws by validation nll" in line for line in rows.splitlines() if line.startswith("|")) == 1
    assert sum("tuned no (default)" in line for line in rows.splitlines() if line.startswith("|")) == 1
    assert rows.count("0,1,2") >= 2 or "seeds 0,1,2" in rows


def test_a_tuned_model_is_loaded_with_the_settings_that_were_chosen(tmp_path, good_draws):
    assert run(tmp_path, "--tune", 3, "--seeds", "0,1").exit_code == 0
    for record in (r for r in store.load_all(tmp_path) if "tuning" in r.training):
        model = mb.load(tmp_path / "records" / record.filename)
        note = record.training["tuning"]
        values = note["tried"][note["chosen"]]["values"]
        assert model.trial.plan.learning_rate == values["learning_rate"]
        assert model.method.settings.dropout == values["dropout"]


def test_a_sweep_says_so_in_its_rows(tmp_path):
    assert run(tmp_path, "--sweep", "versa.samples=1,2").exit_code == 0
    assert "a sweep on test tasks over samples" in (tmp_path / "tables" / "nll.md").read_text()
    assert run(tmp_path / "plain").exit_code == 0
    assert "a sweep" not in (tmp_path / "plain" / "tables" / "nll.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tune", 1], "from 2"),
        (["--tune", 10**9], "from 2"),
        (["--select", "nll"], "Add --tune"),
        (["--tune", 3, "--sweep", "samples=1,2"], "Leave one out"),
        (["--tune", 3, "--select", "accuracy"], "unknown metric of --select"),
    ],
)
def test_what_makes_no_sense_is_one_message(tmp_path, words, says):
    done = run(tmp_path, *words)
    assert done.exit_code == 2
    assert says in done.output


def test_a_note_of_a_tuning_is_checked(tmp_path):
    for wrong in ("a text", {"default": 3}):
        with pytest.raises(ValueError, match=r"training\.tuning"):
            make_record(training={"tuning": wrong})

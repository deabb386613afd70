import pytest

from builders import LISTED, family_of
from mlpip_bench import registry
from mlpip_bench.benches.family import PRESETS
from mlpip_bench.benches.settings import resolve, scopes
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.records.published import load
from mlpip_bench.utils.errors import UserError


def test_the_grammar_takes_any_way_and_shot():
    bench = registry.bench("omni100w12s")
    assert (bench.family, bench.way, bench.shot) == ("omni", 100, 12)
    assert registry.bench("mini05w1s").name == "mini5w1s"


def test_way_and_shot_of_classes_of_images_may_be_ranges():
    bench = registry.bench("omni2..20w1..10s")
    assert (bench.name, bench.family, bench.way, bench.shot) == ("omni2..20w1..10s", "omni", 20, 10)
    assert (bench.range_of("way"), bench.range_of("shot")) == ((2, 20), (1, 10))
    one = registry.bench("mini05w01..5s")
    assert (one.name, one.range_of("way"), one.range_of("shot")) == ("mini5w1..5s", (5, 5), (1, 5))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("omni5..5w1s", "from a number to a larger one"),
        ("omni20..5w1s", "from a number to a larger one"),
        ("omni1..5w1s", "way of a bench is at least 2"),
        ("omni5w0..2s", "shot of a bench is at least 1"),
        ("omni2..20000w1s", "at most 10000"),
        ("omni5w1..9999999999999s", "at most 10000"),
        ("omni2...5w1s", "unknown bench"),
        ("omni2..5..9w1s", "unknown bench"),
        ("omni..5w1s", "unknown bench"),
        ("linear2..5s", "shot may be a range only where"),
        ("context1..16s", "unknown bench"),
    ],
)
def test_ranges_that_are_none_are_refused(name, says):
    with pytest.raises(UserError, match=says):
        registry.bench(name)


@pytest.mark.parametrize("name", ["omni", "omni5w", "5w1s", "cifar5w1s", "omni5w1s ", "omni-5w1s", "omni5w1s2", ""])
def test_other_names_are_refused_with_the_grammar(name):
    with pytest.raises(UserError, match="way"):
        registry.bench(name)


def test_a_misspelt_bench_gets_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'mini5w5s'"):
        registry.bench("min5w5s")


@pytest.mark.parametrize("name", ["omni1w1s", "omni0w1s", "omni5w0s"])
def test_benches_that_are_no_task_are_refused(name):
    with pytest.raises(UserError, match="at least"):
        registry.bench(name)


def test_the_papers_benches_are_listed():
    assert {row.bench for row in load()} <= set(LISTED)


@pytest.mark.parametrize("method", registry.method_names())
@pytest.mark.parametrize("bench", LISTED)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_method_resolves_on_every_bench(method, bench, preset):
    spec, family = family_of(bench)
    resolved = resolve(registry.method(method), method, family.budgets[preset], preset, scopes(family, spec), {})
    assert isinstance(resolved.plan, TrainingPlan)
    if preset == "paper":
        assert resolved.plan.test_tasks >= 600


@pytest.mark.parametrize(
    ("method", "bench", "expected"),
    [
        # Paper, appendix D.1 and D.2.
        (
            "versa",
            "omni5w1s",
            {"iterations": 80_000, "tasks_per_batch": 16, "learning_rate": 1e-4, "train_queries": 15},
        ),
        ("versa", "omni20w1s", {"iterations": 100_000, "tasks_per_batch": 16}),
        ("versa", "omni20w5s", {"iterations": 60_000}),
        ("versa", "mini5w5s", {"iterations": 100_000, "tasks_per_batch": 4, "learning_rate": 1e-4}),
        ("versa", "mini5w1s", {"iterations": 50_000, "tasks_per_batch": 8, "learning_rate": 2.5e-4}),
        # Finn et al. 2017, section 5.1 and their code.
        (
            "maml",
            "sinusoid5s",
            {"iterations": 70_000, "tasks_per_batch": 25, "learning_rate": 1e-3, "train_queries": 5},
        ),
        ("maml", "sinusoid10s", {"iterations": 70_000, "train_queries": 10}),
    ],
)
def test_the_paper_preset_is_the_papers(method, bench, expected):
    spec, family = family_of(bench)
    plan = resolve(registry.method(method), method, family.budgets["paper"], "paper", scopes(family, spec), {}).plan
    assert {key: getattr(plan, key) for key in expected} == expected


def resolve_versa(**overrides):
    return resolve(
        registry.method("versa"), "versa", registry.family("omni").budgets["quick"], "quick", ("omni",), overrides
    )


def test_a_users_setting_wins():
    resolved = resolve_versa(iterations=7, samples=3)
    assert (resolved.plan.iterations, resolved.settings.samples) == (7, 3)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"sample": 3}, "Did you mean 'samples'"),
        ({"samples": "many"}, "versa.samples must be a whole number"),
        ({"dropout": "False"}, "versa.dropout must be true or false"),
        ({"samples": -1}, "must not be negative"),
        ({"iterations": -1}, "iterations must be at least 0 and finite"),
        ({"tasks_per_batch": 0}, "tasks_per_batch must be positive"),
        ({"learning_rate": -0.1}, "learning_rate must be positive"),
    ],
)
def test_settings_that_are_wrong_are_named(overrides, says):
    with pytest.raises(UserError) as error:
        resolve_versa(**overrides)
    assert says in str(error.value)

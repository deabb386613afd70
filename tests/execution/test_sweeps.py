"""What a run expands to, what of it is left to do, and what is said of it beforehand."""

import dataclasses
import importlib
import json
import sys
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from builders import budget, invoke, make_config
from mlpip_bench import registry
from mlpip_bench.execution import estimates, options, planning, scheduler, status, worker
from mlpip_bench.execution.config import RunConfig
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION, engine_code, plugin_code, requirements
from mlpip_bench.records import store
from mlpip_bench.training import checkpoints
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet

TINY = {"validate_every": 2, "test_tasks": 3}


def run(folder: Path, *words: object, methods: str = "protonets"):
    what = ["--methods", methods, "--bench", "omni5w1s", "--source", "procedural", "--results", folder]
    return invoke("run", *what, *budget(**TINY), *words)


def config(folder: Path, **fields) -> RunConfig:
    return make_config(folder, TINY, **fields)


# --------------------------------------------------------------------------------------------------------- sweeps


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["scale=1,2"], {"*": [{"scale": 1}, {"scale": 2}]}),
        (["m.on=true,False"], {"m": [{"on": True}, {"on": False}]}),
        (["m.kind=a,b"], {"m": [{"kind": "a"}, {"kind": "b"}]}),
        (["m.rates=(0.1,0.2),(0.4,)"], {"m": [{"rates": (0.1, 0.2)}, {"rates": (0.4,)}]}),
        (["x=1,2", "m.y=3"], {"*": [{"x": 1}, {"x": 2}], "m": [{"y": 3}]}),
        (["x=1,2", "z=3,4"], {"*": [{"x": x, "z": z} for x, z in product((1, 2), (3, 4))]}),
    ],
)
def test_a_sweep_is_every_combination_of_its_values(texts, found):
    assert options.sweeps(texts, {}) == found


@pytest.mark.parametrize(
    ("texts", "fixed", "says"),
    [
        (["scale"], {}, "--sweep takes [METHOD.]NAME=VALUE,VALUE"),
        (["scale="], {}, "--sweep takes"),
        (["=1,2"], {}, "--sweep takes"),
        (["scale=1,2", "m.scale=3"], {}, "scale is set twice"),
        (["scale=1,2"], {"m": {"scale": 3}}, "scale is set twice"),
    ],
)
def test_a_sweep_that_makes_no_sense(texts, fixed, says):
    with pytest.raises(UserError, match=says.replace("[", r"\[")):
        options.sweeps(texts, fixed)


def test_a_run_is_methods_by_benches_by_seeds_by_norms_by_settings(tmp_path):
    sweeps = {"*": [{"learning_rate": 0.1}, {"learning_rate": 0.2}], "maml": [{"test_steps": 1}, {"test_steps": 3}]}
    asked = config(
        tmp_path, methods=("maml", "protonets"), benches=("omni5w1s", "omni3w1s"), seeds=(0, 7),
        norms=("metabn", "transductive"), sweeps=sweeps,
    )  # fmt: skip
    planned = planning.plan_trials(asked)
    settings = [("maml", rate, steps) for rate in (0.1, 0.2) for steps in (1, 3)]
    settings += [("protonets", rate, None) for rate in (0.1, 0.2)]
    expected = set(product(("omni5w1s", "omni3w1s"), (0, 7), ("metabn", "transductive"), settings))
    found = [
        (c.bench.name, c.seed, c.norm, (c.method, c.plan.learning_rate, getattr(c.settings, "test_steps", None)))
        for c in planned
    ]
    assert len(found) == len(expected)
    assert set(found) == expected
    assert len({c.title for c in planned}) == len({c.key for c in planned}) == len(planned)


def test_values_that_come_to_one_setting_are_one_trial(tmp_path):
    planned = planning.plan_trials(
        config(tmp_path, sweeps={"protonets": [{"scale": 1}, {"scale": 1.0}, {"scale": 2.0}]})
    )
    assert [c.settings.scale for c in planned] == [1.0, 2.0]


def test_each_trial_can_be_planned_alone_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweeps = {"*": [{"learning_rate": 0.1}, {"learning_rate": 0.2}], "maml": [{"test_steps": 1}, {"test_steps": 3}]}
    asked = config(Path("here"), methods=("maml", "protonets"), seeds=(0, 1), sweeps=sweeps)
    planned = planning.plan_trials(asked)
    alone = [(trial, asked.only([trial])) for trial in planned]
    together = asked.only(planned[:3])
    monkeypatch.chdir("/")
    for trial, narrowed in alone:
        assert [c.key for c in planning.plan_trials(narrowed)] == [trial.key]
        assert narrowed.results == tmp_path / "here"
    assert {c.key for c in planned[:3]} <= {c.key for c in planning.plan_trials(together)}


def test_a_swept_setting_names_its_trial_and_its_rows(tmp_path):
    done = run(tmp_path, "--sweep", "protonets.scale=1.0,2.0")
    assert done.exit_code == 0, done.output
    assert "2 trials run" in done.output
    assert {r.config["settings"]["scale"] for r in store.load_all(tmp_path)} == {1.0, 2.0}
    table = invoke("table", "--results", tmp_path).output
    assert "scale 1.0" in table
    assert "scale 2.0" in table


# ------------------------------------------------------------------------------------------------- what is left to do


def test_a_dry_run_says_what_is_done_and_what_is_not_and_why_and_does_nothing(tmp_path, monkeypatch):
    assert run(tmp_path).exit_code == 0
    plugin = registry.method("maml")
    with monkeypatch.context() as patch:
        patch.setattr(plugin, "loss", lambda self, batch: {}["missing"])
        assert run(tmp_path, methods="maml").exit_code == 1
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    done = run(tmp_path, "--dry-run", "--seeds", "0,1", methods="protonets,maml")
    assert done.exit_code == 0, done.output
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    lines = [line for line in done.output.splitlines() if "omni5w1s" in line and "seed" in line]
    of = {(method, seed): line for method in ("protonets", "maml") for seed in "01" for line in lines
          if f"{method} metabn seed {seed}" in line}  # fmt: skip
    assert "its records are there" in of["protonets", "0"]
    assert "no record of accuracy, nll" in of["protonets", "1"]
    assert "failed before: KeyError" in of["maml", "0"]
    assert "GB" not in done.output
    assert "3 of 4 trials to run; --estimate says" in done.output
    measured = run(tmp_path, "--estimate", "--seeds", "0,1", methods="protonets,maml")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert "3 of 4 trials to run; about " in measured.output
    assert sum("GB" in line for line in measured.output.splitlines() if "metabn seed" in line) == 3


def test_a_dry_run_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "estimate_all", lambda *arguments: pytest.fail("measured"))
    assert run(tmp_path, "--dry-run").exit_code == 0


def test_a_dry_run_in_a_new_place_makes_no_folder(tmp_path):
    assert run(tmp_path / "new", "--dry-run").exit_code == 0
    assert not (tmp_path / "new").exists()


def test_records_of_other_code_are_named(tmp_path, monkeypatch):
    assert run(tmp_path).exit_code == 0
    asked = config(tmp_path)
    (trial,) = planning.plan_trials(asked)
    changed = dataclasses.replace(trial, code={"method protonets": "0" * 12})
    (standing,) = status.survey([changed], asked)
    assert status.why(standing, asked) == "the code has changed since its records of accuracy, nll were made"
    other_seed = dataclasses.replace(changed, seed=1)
    (standing,) = status.survey([other_seed], asked)
    assert status.why(standing, asked) == "no record of accuracy, nll"


def test_a_stopped_trial_is_listed_with_its_iteration(tmp_path):
    asked = config(tmp_path)
    (trial,) = planning.plan_trials(asked)
    assert run(tmp_path).exit_code == 0
    (longer,) = planning.plan_trials(config(tmp_path, overrides={"*": asked.overrides["*"] | {"iterations": 9}}))
    state = dataclasses.replace(checkpoints.load_checkpoint(trial.checkpoint(tmp_path)), key=longer.training_key)
    checkpoints.save_checkpoint(state, longer.checkpoint(tmp_path))
    assert status.why(status.survey([longer], asked)[0], asked) == "stopped at iteration 4 of 9"


def test_estimates_add_up_what_is_left(tmp_path, monkeypatch):
    def second(work, device):
        work()
        return 1.0

    monkeypatch.setattr(estimates, "_seconds", second)
    few = config(tmp_path).overrides["*"] | {"iterations": 1000, "validate_every": 100, "test_tasks": 50}
    asked = config(tmp_path, overrides={"*": few}, protocols=("accuracy", "nll", "calibration"))
    (trial,) = planning.plan_trials(asked)

    def seconds() -> float:
        (estimate,) = estimates.estimate_all(status.survey([trial], asked), asked, Quiet()).values()
        assert estimate.peak_bytes > 2e8  # torch alone has more
        return estimate.seconds

    # A second a step; a second for the two tasks that are tried of a validation, and for those of each protocol;
    # both the best and the last model are tested.
    assert seconds() == 1000 + 10 * 2 / 2 + 2 * 50 * 3 / 2
    state = checkpoints.TrainingState(450, {}, {}, key=trial.training_key)
    checkpoints.save_checkpoint(state, trial.checkpoint(tmp_path))
    assert seconds() == 550 + 6 * 2 / 2 + 2 * 50 * 3 / 2


def test_a_trial_that_cannot_be_estimated_is_no_reason_to_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(registry.method("protonets"), "loss", lambda self, batch: {}["missing"])
    done = run(tmp_path, "--estimate")
    assert done.exit_code == 0
    assert "1 cannot be estimated" in done.output


def test_the_order_is_random_and_each_trial_comes_once(tmp_path, monkeypatch):
    order: list[tuple[str, int]] = []

    def note(trial, *rest, **more):
        order.append((trial.method, trial.seed))
        return iter(())

    monkeypatch.setattr(worker, "train_and_measure", note)
    asked = config(tmp_path, methods=("protonets", "maml", "versa"), seeds=tuple(range(8)))
    scheduler.run(planning.plan_trials(asked), asked, Quiet())
    assert sorted(order) == sorted(product(("protonets", "maml", "versa"), range(8)))
    assert order != sorted(order)
    # No method has its turns all together: in 24 shuffled trials of three methods neighbors are equal in a third.
    equal = sum(a[0] == b[0] for a, b in pairwise(order))
    assert 2 <= equal <= 14


def test_a_failed_trial_keeps_its_traceback_and_is_never_done(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(registry.method("protonets"), "loss", lambda self, batch: {}["missing"])
        assert run(tmp_path).exit_code == 1
    (failure,) = (tmp_path / "failures").rglob("*.json")
    detail = json.loads(failure.read_text())
    assert "KeyError: 'missing'" in detail["traceback"]
    assert "in train" in detail["traceback"]
    assert "1 trials run" in run(tmp_path).output
    assert not failure.exists()


# ------------------------------------------------------------------------------------------------------------- code


PLUGIN = '''"""A method of another package."""
from mlpip_bench.methods.protonets import ProtoNets
from a_package import shared


class Mine(ProtoNets):
    """Its own."""

    scale = shared.SCALE  # a comment
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package with a method, and gives the fingerprint of its code."""
    folder, info = tmp_path / "a_package", tmp_path / "a_package-1.0.dist-info"
    for made in (folder, info):
        made.mkdir()
    (folder / "__init__.py").write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a_package\nVersion: 1.0\nRequires-Dist: numpy>=1\n")
    (info / "entry_points.txt").write_text("[mlpip_bench.methods]\nmine = a_package.plugin:Mine\n")
    (info / "RECORD").write_text("a_package/__init__.py,,\na_package/plugin.py,,\na_package/shared.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def fingerprint(plugin: str = PLUGIN, shared: str = "SCALE = 1\n") -> str | None:
        (folder / "plugin.py").write_text(plugin)
        (folder / "shared.py").write_text(shared)
        importlib.invalidate_caches()
        return plugin_code("method", "mine")

    yield fingerprint
    for name in [n for n in sys.modules if n.startswith("a_package")]:
        del sys.modules[name]


def test_the_fingerprint_of_a_plugin_covers_all_modules_of_its_distribution_and_nothing_else(package):
    same = package()
    assert len(same) == 12
    assert package() == same
    assert package(PLUGIN.replace("scale = shared.SCALE", "scale = shared.SCALE + 1")) != same
    assert package(shared="SCALE = 2\n") != same
    assert plugin_code("method", "protonets") is None  # the suite's own, which the numbers version stands for
    assert requirements("method", "protonets") == {}
    assert requirements("method", "mine") == {"a_package": "1.0", "numpy": np.__version__}


def test_changed_code_is_another_trial(tmp_path):
    (trial,) = planning.plan_trials(config(tmp_path))
    method = dataclasses.replace(trial, code={"method protonets": "0" * 12})
    assert method.training_key != trial.training_key
    assert method.record_key("nll") != trial.record_key("nll")
    protocol = dataclasses.replace(trial, code={"protocol nll": "0" * 12})
    assert protocol.training_key == trial.training_key  # a protocol changes no model
    assert protocol.record_key("nll") != trial.record_key("nll")
    assert protocol.record_key("accuracy") == trial.record_key("accuracy")


def test_records_say_which_code_made_them(tmp_path):
    run(tmp_path)
    (trial,) = planning.plan_trials(config(tmp_path))
    for record in store.load_all(tmp_path):
        assert record.environment["code"] == {"numbers": NUMBERS_VERSION, "build": engine_code()}
        assert record.key == trial.record_key(record.protocol)

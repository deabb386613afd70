"""Options of a run, whether typed, read from a file, or passed from Python."""

from pathlib import Path

import numpy as np
import pytest

from builders import invoke
from mlpip_bench.execution import option_files, options, planning
from mlpip_bench.utils.errors import UserError

SMALL = "source: procedural\niterations: 3\ntest_tasks: 5\nset: {validation_tasks: 2}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "options.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def keys(asked: dict[str, object]) -> set[str]:
    """Of the trials that options ask for."""
    return {trial.key for trial in planning.plan_trials(options.run_config(options.merged(asked)))}


# -- a file of options -----------------------------------------------------------------------------------------------


def test_the_command_line_comes_before_the_file(tmp_path):
    path = written(tmp_path, f"bench: omni5w1s\nmethods: [protonets, versa]\nseeds: [0, 1]\nnorm: tasknorm\n{SMALL}")
    printed = invoke(
        "run", "--config", path, "--methods", "maml", "--seed", 7, "--set", "validation_tasks=3", "--print-config"
    )
    assert printed.exit_code == 0
    (asked,) = option_files.read_options(written(tmp_path, printed.stdout))
    config = options.run_config(options.merged(asked))
    assert (config.methods, config.seeds) == (("maml",), (7,))
    assert (config.benches, config.norms, config.source) == (("omni5w1s",), ("tasknorm",), "procedural")
    assert config.overrides == {"*": {"validation_tasks": 3, "iterations": 3, "test_tasks": 5}}


def test_the_printed_options_ask_for_the_same_trials(tmp_path):
    given = {
        "bench": "omni5w1s,omni5w5s", "methods": "protonets,versa", "seeds": "0,3", "norm": "metabn,tasknorm",
        "backbone": "conv4,channels=8", "queries": 4, "source": "procedural", "iterations": 3,
        "set": ["validation_tasks=2", "versa.eval_samples=7"], "sweep": ["protonets.scale=1,2"],
    }  # fmt: skip
    typed = [f"--{name}={value}" for name, value in given.items() if not isinstance(value, list)]
    typed += [f"--{name}={value}" for name in ("set", "sweep") for value in given[name]]
    printed = invoke("run", *typed, "--print-config")
    assert printed.exit_code == 0
    (asked,) = option_files.read_options(written(tmp_path, printed.stdout))
    assert len(keys(given)) == 2 * 2 * 2 * (2 + 1)
    assert keys(asked) == keys(given)
    again = invoke("run", "--config", tmp_path / "options.yaml", "--print-config")
    assert again.stdout == printed.stdout


def test_runs_of_a_file_share_what_stands_above_them(tmp_path):
    text = (
        f"question: which?\nbench: omni5w1s\n{SMALL}runs:\n- methods: protonets\n- {{methods: maml, test-tasks: 6}}\n"
    )
    path = written(tmp_path, text)
    first, second = option_files.read_options(path)
    assert (first["methods"], first["test_tasks"], first["bench"]) == ("protonets", 5, "omni5w1s")
    assert (second["methods"], second["test_tasks"], second["bench"]) == ("maml", 6, "omni5w1s")
    printed = invoke("run", "--config", path, "--print-config")
    assert [keys(run) for run in option_files.read_options(written(tmp_path, printed.stdout))] == [
        keys(first),
        keys(second),
    ]


def test_settings_of_a_run_join_those_above_them(tmp_path):
    text = """bench: omni5w1s
set: {halve_every: 20, tasks_per_batch: 4, maml: {test_steps: 3, inner_rate: 0.2}}
data: {omni.split: vinyals}
runs:
- {}
- {set: {tasks_per_batch: 2, maml: {test_steps: 5}}, data: {omni.resize: antialias}}
- {set: [tasks_per_batch=2]}
"""
    first, second, third = option_files.read_options(written(tmp_path, text))
    assert first["set"] == {"halve_every": 20, "tasks_per_batch": 4, "maml": {"test_steps": 3, "inner_rate": 0.2}}
    assert second["set"] == {"halve_every": 20, "tasks_per_batch": 2, "maml": {"test_steps": 5, "inner_rate": 0.2}}
    assert second["data"] == {"omni.split": "vinyals", "omni.resize": "antialias"}
    assert third["set"] == ["tasks_per_batch=2"]  # a list has no names to join by
    config = options.run_config(options.merged(second))
    assert config.overrides["*"] == {"halve_every": 20, "tasks_per_batch": 2}
    assert config.overrides["maml"] == {"test_steps": 5, "inner_rate": 0.2}


def test_nothing_in_a_file_is_the_default():
    asked = options.merged({"seeds": "5", "jobs": 3, "set": ["scale=1"]}, {"seeds": None, "jobs": None, "set": None})
    assert asked == options.DEFAULTS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bench: [", ["readable YAML", "options.yaml"]),
        ("", ["is empty. --print-config writes one"]),
        ("- bench", ["map their names to values", "list"]),
        ("bench: omni5w1s\nruns: 3", ["runs in a file of options must be a list of mappings"]),
        ("bench: omni5w1s\nruns: []", ["runs in a file of options must be a list of mappings"]),
        ("bench: omni5w1s\nseed: 1", ["unknown option of a run 'seed'", "'seeds'"]),
        ("5: omni5w1s", ["unknown option of a run '5'"]),
        ("methods: versa", ["a run needs a bench"]),
        ("bench: []", ["a run needs a bench"]),
        ("bench: 5", ["bench must be a text with commas, or a list of texts; got 5"]),
        ("bench: omni5w1s\nqueries: many", ["queries must be a whole number; got 'many'"]),
        ("bench: omni5w1s\niterations: 1.5", ["iterations must be a whole number; got 1.5"]),
        ("bench: omni5w1s\ntest_tasks: true", ["test_tasks must be a whole number; got True"]),
        ("bench: omni5w1s\njobs: two", ["jobs must be a whole number; got 'two'"]),
        ("bench: omni5w1s\nseeds: 1.5", ["seeds must be whole numbers", "got 1.5"]),
        ("bench: omni5w1s\nseeds: [0, 1.5]", ["seeds must be whole numbers", "got [0, 1.5]"]),
        ("bench: omni5w1s\nseeds: [one]", ["--seeds takes whole numbers"]),
        ('bench: omni5w1s\nwait: "no"', ["wait must be true or false; got 'no'"]),
        ("bench: omni5w1s\ncompile: off", ["compile must be a text; got False", "put quotes around off"]),
        ("bench: omni5w1s\nresults: 5", ["results must be the name of a folder; got 5"]),
        ("bench: omni5w1s\nbench: toy5", ["'bench' is there twice"]),
        ("bench: omni5w1s\nset: {scale: 1, scale: 2}", ["'scale' is there twice"]),
        ("bench: omni5w1s\nset: 5", ["set must be a text, a list of texts, or a mapping", "got 5"]),
        ("bench: omni5w1s\nset: [{scale: 1}]", ["set must be a text, a list of texts, or a mapping"]),
        ("bench: omni5w1s\nset: {scale: }", ["protonets.scale must be a number; got None"]),
        ("bench: omni5w1s\nset: {protonets: {scale: {a: 1}}}", ["protonets.scale must be a number; got {'a': 1}"]),
        ("bench: omni5w1s\ndata: {split: vinyals}", ["--data takes FAMILY.OPTION=VALUE"]),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_one_message(text, says, tmp_path):
    result = invoke(
        "run", "--config", written(tmp_path, text), "--source=procedural", "--methods=protonets", "--dry-run"
    )
    assert result.exit_code == 2
    message = " ".join(result.output.split())
    assert [part for part in says if part not in message] == []


def test_a_file_that_cannot_be_read(tmp_path):
    for path, says in ((tmp_path, "directory"), (tmp_path / "none.yaml", "No such file")):
        result = invoke("run", "--config", path)
        assert result.exit_code == 2
        assert "a file of options must be readable YAML" in result.output
        assert says in result.output


def test_all_runs_of_a_file_are_planned_before_the_first_is_done(tmp_path):
    runs = "iterations: 2\ntest_tasks: 2\nruns: [{bench: omni5w1s}, {bench: nope5w1s}]\n"
    result = invoke(
        "run", "--config", written(tmp_path, runs), "--source=procedural", "--methods=protonets", "--results", tmp_path
    )
    assert result.exit_code == 2
    assert "unknown bench 'nope5w1s'" in result.output
    assert not list(tmp_path.glob("records/*/*/*.json"))


# -- values of Python ------------------------------------------------------------------------------------------------


def test_values_of_python_are_those_that_would_be_typed():
    asked = {
        "bench": ["omni5w1s"], "seeds": range(2), "queries": np.int64(4), "results": Path("here"),
        "set": {"learning_rate": 1e-4, "maml": {"inner_rate": [0.1, 0.2], "first_order": True}, "versa.name": "x"},
        "sweep": {"maml.inner_rate": [(0.1,), (0.2, 0.3)]}, "data": {"omni": {"split": "vinyals"}},
    }  # fmt: skip
    with pytest.raises(UserError, match="inner_rate is set twice"):
        options.run_config(options.merged(asked))
    fixed = {**asked, "sweep": {"maml.steps": [1, 2], "scale": [0.5]}}
    config = options.run_config(options.merged(fixed))
    assert config.seeds == (0, 1)
    assert config.queries == 4
    assert type(config.queries) is int
    assert config.overrides == {
        "*": {"learning_rate": 1e-4}, "maml": {"inner_rate": (0.1, 0.2), "first_order": True}, "versa": {"name": "x"},
    }  # fmt: skip
    assert config.sweeps == {"maml": [{"steps": 1}, {"steps": 2}], "*": [{"scale": 0.5}]}
    assert config.data == {"omni": {"split": "vinyals"}}
    several = options.run_config(options.merged({**asked, "set": None}))
    assert several.sweeps == {"maml": [{"inner_rate": (0.1,)}, {"inner_rate": (0.2, 0.3)}]}
    alone = options.run_config(options.merged({"bench": "omni5w1s", "set": {"maml.inner_rate": [0.1]}}))
    assert alone.overrides["maml"] == {"inner_rate": (0.1,)}


def test_every_option_has_a_type_and_its_default_is_of_it():
    assert sorted(name for *_, names in options._TYPES for name in names) == sorted(options.DEFAULTS)
    assert options.merged(options.DEFAULTS) == options.DEFAULTS


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("resnet12,channels=16,40,drop_block=0.1", {"channels": (16, 40), "drop_block": 0.1}),
        ("resnet12,trained_on=cars, (a=1, b=2), and birds", {"trained_on": "cars, (a=1, b=2), and birds"}),
    ],
)
def test_a_setting_of_a_plugin_may_have_commas(text, settings):
    assert options.with_settings("backbone", text, "conv4,channels=32") == ("resnet12", settings)

"""Every command that README, CONTRIBUTING and docs/ show is run, with a small budget, or named below with the reason.

A command of the suite is run in this process, in a folder that has the committed ``results``, and ``runs`` of a user.
"""

import dataclasses
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from mlpip_bench.protocols import timing, versatility

from builders import REPOSITORY, invoke, write_trial
from mlpip_bench import registry
from mlpip_bench.cli.app import app
from mlpip_bench.datasets.procedural import patches, solids
from mlpip_bench.testing import conformance
from pictures import write_classes

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
SUITE = re.compile(r"(\S*python3?(\.exe)? -m mlpip_bench|mlpip_bench) ")

CI = "CI runs it by .ci/run"
MACHINE = "sets up or changes the machine"
CLOUD = "needs an account with a cloud provider"
PACKAGE = "it gets a public package; what is made of it is tested on made ones"
MADE = "needs what the command before it makes; tests/benches/test_drawings.py runs benches on made drawings"
ELSEWHERE = {
    "python3 -m venv .venv": CI,
    ".venv/bin/pip install -c constraints.txt tox": CI,
    ".venv/bin/tox": CI,
    "tox": CI,
    ".venv/bin/pip install -c constraints.txt .[fast]": "CI installs the wheel instead, in tox -e packaging",
    ".venv/bin/pip install -c constraints.txt -e .[dev]": MACHINE,
    "pip install -c constraints.txt .[render]": "tox -e tests installs this extra",
    "pip install -c constraints.txt .[tensorboard]": "tox -e tests installs this extra",
    "tensorboard --logdir runs/logs/tensorboard": "a server; tests/execution/test_logs.py reads the files",
    "pip install -e .": MACHINE,
    "python tests/execution/test_stored_scores.py": "it stores scores; its tests run each case",
    "pip install ./docs/example_plugin": "tests/testing/test_example_plugin.py installs it into a folder of its own",
    ". .venv/bin/activate": MACHINE,
    "source .venv/bin/activate": MACHINE,
    "ray up cluster.yaml": CLOUD,
    "ray exec cluster.yaml 'python -m mlpip_bench run --methods versa,maml --bench mini5w5s --seeds 0,1,2,3 "
    "--device cuda --ray auto --results /shared/results'": CLOUD,
    "ray down cluster.yaml": CLOUD,
    "python -m mlpip_bench run --methods versa,maml --bench omni5w1s --seeds 0,1,2,3 --ray local": (
        "tests/faults/test_executors.py runs trials on a Ray cluster"
    ),
    "pytest -m 'not slow' -n auto": "part of tox -e tests",
    "pytest tests/faults": "part of tox -e tests",
    "pytest tests/repository": "part of tox -e tests",
    "pytest tests/training/test_steps.py tests/training/test_launches.py": "part of tox -e tests",
    "pytest docs/example_plugin": "tests/testing/test_example_plugin.py runs it",
    "pre-commit install": "it writes into .git; tests/repository/test_project_files.py checks the hooks",
    "tox -e tests -- -k tasks -x": "part of tox",
    "tox -e faults": "part of tox",
    "ruff check .": "tox -e lint",
    "ruff format .": "tox -e lint checks that it would change nothing",
    "mypy": "tox -e type",
    "pip install -c constraints.txt .[drawings]": "tox -e tests installs this extra",
    "npm pack @iconify/json": PACKAGE,
    "tar xzf iconify-json-*.tgz": PACKAGE,
    "python -m mlpip_bench data prepare icons --from package --to ~/data/icons": (
        "needs the package; tests/datasets/preparing/test_icons.py runs it on a made one"
    ),
    "python -m mlpip_bench data prepare kanji --to ~/data/kanji": (
        "needs the fonts; tests/datasets/preparing/test_kanji.py runs it on made ones"
    ),
    "python -m mlpip_bench data prepare furniture --to ~/data/furniture": (
        "needs the package; tests/datasets/preparing/test_furniture.py runs it on a made one"
    ),
    **{
        f"python -m mlpip_bench run --methods {command} --data-root ~/data{more}": MADE
        for command, more in (
            ("protonets --bench icons5w1s", ""),
            ("protonets --bench kanji20w1s", ""),
            ("versa --bench views1s", " --data views.source=furniture"),
        )
    },
    **{
        f"python -m mlpip_bench run --config results/{e}/experiment.yaml --data-root ~/data --results runs/{e}": MADE
        for e in ("icons", "kanji", "furniture")
    },
    "python -m mlpip_bench data prepare shapenet --from ~/ShapeNetCore.v2 --to ~/data/shapenet": (
        "needs ShapeNet's meshes; tests/datasets/preparing/test_meshes.py runs it on made ones"
    ),
}
EXAMPLE = REPOSITORY / "docs" / "example_plugin"
EXAMPLE_PLUGINS = [
    EntryPoint(name, value, group)
    for group, plugins in tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"].items()
    for name, value in plugins.items()
]
EXAMPLE_NAMES = {entry.name for entry in EXAMPLE_PLUGINS}
RECIPES = "tests/repository/test_recipes.py follows the recipes of CONTRIBUTING.md"
ELSEWHERE |= {
    command: RECIPES
    for block in re.findall(r"^```bash\n(.*?)^```$", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.M | re.S)
    for command in block.splitlines()
    if command.startswith(("cp docs/example_plugin/", "pytest tests/")) and "#" not in command
}
SMALL = "--iterations 1 --test-tasks 2 --queries 1 --device cpu"
SMALL_SETTINGS = ("validation_tasks=1", "tasks_per_batch=1", "train_queries=1")
LONG = re.compile(
    "results/sinusoid|results/transfer|timing --set|versatility|tiny5w1s|--norm all|--preset paper|--profile|--jobs|"
    "--tune|--sweep"
)
"""What is left to the slow tests; the others have a dry run of it."""
REPLACED = re.compile(r" --(iterations|test-tasks|queries|device|results) \S+")


# -- finding them ----------------------------------------------------------------------------------------------------


def parsed(block: str) -> Iterator[str]:
    """The simple commands of a shell script, words joined by a space: loops at their ends, variables filled in."""
    values: dict[str, list[str]] = {}
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        redirected = False
        for token in [*lexer, ";"]:
            if redirected:  # this is the file's name
                redirected = False
            elif set(token) <= set("<>&|;()") and set(token) & set("<>"):
                redirected = True
            elif set(token) <= set("&|;()"):
                yield from simple(words, values)
                words = []
            else:
                words.append(token)


def simple(words: list[str], values: dict[str, list[str]]) -> Iterator[str]:
    """One command without the words of the shell; assignments go into ``values``."""
    if words[:1] == ["for"]:
        values[words[1]] = [words[3], words[-1]]
        return
    while words and (words[0] in ("do", "done", "export") or re.match(r"\w+=", words[0])):
        name, equals, value = words.pop(0).partition("=")
        if equals and not words:
            values[name] = [value]
    commands = [" ".join(shlex.quote(word) if " " in word else word for word in words)]
    for name, several in values.items():
        commands = [re.sub(rf"\${name}\b|\${{{name}}}", v, command) for command in commands for v in several]
    yield from dict.fromkeys(filter(None, commands))


def documented(page: str) -> Iterator[str]:
    """The commands of a page: those of its shell blocks, and the suite's own where they stand in a line of text."""
    fence = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.M | re.S)
    for language, block in fence.findall(page):
        if language in ("sh", "bash"):
            yield from parsed(block)
        elif language == "console":
            yield from parsed("\n".join(re.findall(r"^\$ (.*(?:\\\n.*)*)", block, re.M)))
    for span in re.findall(r"`([^`]+)`", fence.sub("", page)):
        command = " ".join(span.split())
        if SUITE.match(command):
            yield from parsed(command)


def small(command: str) -> str:
    """A command of the suite with the budget of these tests, so that those that then do the same are one.

    Tasks of miniImageNet, whose images cost forty times as much as others, are 2-way 1-shot.
    """
    if not command.startswith("run "):
        return command
    command = REPLACED.sub("", command).replace("mini5w5s", "mini2w1s")
    command = re.sub(r"\btest_steps=\d+", "test_steps=1", command)
    command = re.sub(r"\bwarmup=\d+", "warmup=0", command)
    for setting in SMALL_SETTINGS:  # what is set twice is refused
        command = re.sub(rf" --set {setting.partition('=')[0]}=\S+", "", command) + f" --set {setting}"
    return f"{re.sub('--seeds [0-9,]+', '--seeds 0', command)} {SMALL}"


def forms(command: str) -> Iterator[Any]:
    """A command as the tests have it: whole, or whole in the slow tests alone."""
    name = command.removesuffix(f" {SMALL}")
    long = LONG.search(command) is not None
    yield pytest.param(command, id=name, marks=[pytest.mark.slow] if long else [])
    if long and command.startswith("run "):
        yield pytest.param(f"{name} --dry-run {SMALL}", id=f"{name} --dry-run")


ON_THEIR_OWN = ("Trained or tested elsewhere", "Features as data")
COMMANDS = list(dict.fromkeys(c for page in PAGES for c in documented(page.read_text(encoding="utf-8"))))
ELSEWHERE |= {
    command: f"tests/docs/test_{'elsewhere' if section.startswith(ON_THEIR_OWN) else page.replace('-', '_')}.py runs it"
    for page in ("my-model", "my-method")
    for section in (REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8").split("\n## ")
    for command in documented(section)
    if SUITE.match(command)
}
ELSEWHERE |= {command: PACKAGE for command in COMMANDS if command.startswith("apt-get install ")}
RUN = list(dict.fromkeys(small(SUITE.sub("", c, count=1)) for c in COMMANDS if SUITE.match(c) and c not in ELSEWHERE))


def test_a_script_is_read_as_a_shell_would_read_it():
    script = """
    M=a,b  # a comment
    THREADS=1 python -m x run --methods $M --set "n=1 2" > out.csv && tox -- -k x; . bin/activate
    for L in 1 5 10; do python -m x --n $L \\
        --more; done
    """
    assert list(parsed(script)) == [
        "python -m x run --methods a,b --set 'n=1 2'",
        "tox -- -k x",
        ". bin/activate",
        "python -m x --n 1 --more",
        "python -m x --n 10 --more",
    ]
    page = "Say `python -m mlpip_bench\ntable`, not `table`:\n```console\n$ mlpip_bench list data\nomni\n```\n"
    assert list(documented(page)) == ["mlpip_bench list data", "python -m mlpip_bench table"]


def test_every_command_is_run_here_or_named_with_the_reason():
    unknown = [command for command in COMMANDS if not SUITE.match(command) and command not in ELSEWHERE]
    assert not unknown, f"run them in a test, or add them to ELSEWHERE: {unknown}"
    stale = ELSEWHERE.keys() - set(COMMANDS)
    assert not stale, f"no page shows these any more: {stale}"
    assert len(RUN) > 30


def test_no_command_hides_in_a_block_of_another_kind():
    for page in PAGES:
        for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S):
            assert language, f"{page}: say what kind of code it is:\n{block}"
            if language not in ("sh", "bash", "console"):
                assert not re.search(r"^(\$ )?(python3?|mlpip_bench) ", block, re.M)


def options(command: Any) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(options(c) for c in getattr(command, "commands", {}).values()))


def test_every_option_that_is_named_in_a_line_of_text_is_there():
    known = options(typer.main.get_command(app))
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for span in re.findall(r"`([^`]+)`", text):
            if span.startswith(("tensorboard ", "wandb ", "mlflow ")):
                continue
            unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)) - known
            assert not unknown, f"{page.name}: `{span}` names {unknown}"


# -- running them ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the committed experiments, runs of one bench with timings and predictions, and options."""
    folder = tmp_path_factory.mktemp("documented")
    results = folder / "results"
    derived = shutil.ignore_patterns("tables", "figures", "checkpoints", "failures", "profiles", "locks")
    shutil.copytree(REPOSITORY / "results", results, ignore=derived)
    for bench in [path for path in (results / "quick_v01" / "records").iterdir() if path.name != "omni5w1s"]:
        shutil.rmtree(bench)  # one is enough to draw and to print
    for name in ("omniglot", "timing"):
        shutil.copytree(results / name / "records", folder / "runs" / "records", dirs_exist_ok=True)
    for seed in (0, 1):
        write_trial(folder / "runs", seed=seed)  # with predictions
    write_classes(folder / "pictures" / "birds", [f"bird {number}" for number in range(30)], 12)
    labels = np.arange(300) % 30
    np.savez(folder / "features.npz", labels=labels, features=np.random.default_rng(0).normal(size=(300, 5)))
    for name in ("birds", "birds64", "butterflies"):
        invoke("data", "add", name, "--from", folder / "pictures" / "birds", "--data-root", folder / "my-data")
    of_vectors = ("--from", folder / "features.npz", "--pretrained-on", "nothing")
    invoke("data", "add", "vectors", *of_vectors, "--data-root", folder / "my-data")
    (folder / "experiment.yaml").write_text("bench: omni5w1s\nmethods: versa,maml\nseeds: 0,1,2\n")
    return folder


FewWays = dataclasses.make_dataclass(
    "FewWays", [("ways", tuple[int, ...], (5, 100)), ("shots", tuple[int, ...], (1, 15))], frozen=True
)


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small stand-ins, one conformance check, few timings and ways; and the worked plugin is installed."""
    monkeypatch.setattr(patches, "_IMAGES_PER_CLASS", 20)
    monkeypatch.setattr(patches, "_CLASSES", dict.fromkeys(patches._CLASSES, 5))
    monkeypatch.setattr(solids, "_OBJECTS_PER_CATEGORY", 1)
    check_method = conformance.check_method
    monkeypatch.setattr(conformance, "check_method", lambda plugin, **on: check_method(plugin, ["interface"], **on))
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(timing, "REPEATS", 1)
    monkeypatch.setattr(timing, "LARGEST_BATCH", 1)
    monkeypatch.setattr(timing, "VARIANTS", {})
    monkeypatch.setattr(versatility.Versatility, "Settings", FewWays)
    monkeypatch.syspath_prepend(EXAMPLE)
    entry_points = registry.entry_points
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: [
            *(entry for entry in EXAMPLE_PLUGINS if entry.group == group),
            *(entry for entry in entry_points(group=group) if entry.name not in EXAMPLE_NAMES),
        ],
    )
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)  # a command with --cpus has set it


@pytest.mark.parametrize("command", [form for command in RUN for form in forms(command)])
@pytest.mark.usefixtures("cheap")
def test_the_command_works(command, folder, tmp_path, monkeypatch, request):
    monkeypatch.chdir(folder)
    arguments = shlex.split(command)
    if "~/data" in command:
        data = request.getfixturevalue("data_root")
        arguments = [word.replace("~/data", str(data)) for word in arguments]
    if command.startswith("data verify") and "~/data" in command:
        arguments += ["--data", "context,views"]  # the others take half a minute, past the cache
    if command.startswith("data add"):
        arguments += ["--replace"]
    if command.endswith(SMALL):
        arguments += ["--results", str(tmp_path)]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output

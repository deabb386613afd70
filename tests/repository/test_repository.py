"""The repository is complete: all plugins are registered, described and cited, and the engine knows none of them."""

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import torch
from packaging.requirements import Requirement

import mlpip_bench
from builders import REPOSITORY, SMALL, make_batch
from mlpip_bench import methods, protocols, registry
from mlpip_bench.benches import families
from mlpip_bench.evaluation.protocol import EvalProtocol, SideBySideProtocol
from mlpip_bench.inference.method import Method, Problem
from mlpip_bench.nn import backbones

PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
ENTRY_POINTS: dict[str, dict[str, str]] = PYPROJECT["project"]["entry-points"]
PACKAGES = {"methods": methods, "protocols": protocols, "benches": families, "backbones": backbones}
"""Where the plugins of each kind are, by the end of their entry points' group."""
BASES = {
    "methods": ("Method",),
    "protocols": ("EvalProtocol", "SideBySideProtocol"),
    "benches": (
        "TaskFamily",
        "ImageFamily",
        "ImageClassification",
        "FixedTasks",
        "LinearGaussianFamily",
        "CurveFamily",
        "Drawings",
    ),
    "backbones": ("Backbone", "NetworkBackbone"),
}
ENGINE = Path(mlpip_bench.__file__).parent


def folder_of(kind: str) -> Path:
    """Of the plugins of a kind, in the checkout."""
    parts = PACKAGES[kind].__name__.split(".")
    return REPOSITORY.joinpath(*(parts[1:] if kind in ("methods", "protocols") else parts))


# -- registration ----------------------------------------------------------------------------------------------------


def unregistered(folder: Path, kind: str, registered: Mapping[str, str]) -> list[str]:
    """What is missing for each plugin of a folder to be registered, as sentences that say what to do.

    Args:
        folder: the folder of the package's files.
        kind: of :data:`PACKAGES`.
        registered: the group's entry points, name to value.
    """
    bases, values, problems = BASES[kind], set(registered.values()), []
    for file in sorted(folder.rglob("*.py")):
        module = ".".join((PACKAGES[kind].__name__, *file.relative_to(folder).with_suffix("").parts))
        if file.name == "__init__.py":
            continue
        names = [
            node.name
            for node in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef) and any(_base_name(expression) in bases for expression in node.bases)
        ]
        if not names:
            problems.append(
                f"{module} must define a subclass of {' or '.join(bases)}; it has none. Code that plugins share "
                "belongs elsewhere in mlpip_bench/."
            )
        problems += [
            f'{module} is not registered. Add to pyproject.toml, under [project.entry-points."'
            f'mlpip_bench.{kind}"]:\n{file.stem if len(names) == 1 else name.lower()} = "{module}:{name}"'
            for name in names
            if f"{module}:{name}" not in values
        ]
    return problems


def _base_name(expression: ast.expr) -> str | None:
    """``Method`` for the bases ``Method``, ``Method[Delta]`` and ``api.Method[Delta]``."""
    inner = expression.value if isinstance(expression, ast.Subscript) else expression
    return inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", None)


@pytest.mark.parametrize("kind", PACKAGES)
def test_every_plugin_file_is_registered(kind):
    problems = unregistered(folder_of(kind), kind, ENTRY_POINTS[f"mlpip_bench.{kind}"])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("kind", PACKAGES)
def test_what_is_installed_is_what_the_checkout_has(kind):
    installed = {info.name for info in pkgutil.iter_modules(PACKAGES[kind].__path__)}
    files = {file.stem for file in folder_of(kind).glob("*.py")} - {"__init__"}
    group = {
        e.name: e.value for e in metadata.distribution("mlpip_bench").entry_points.select(group=f"mlpip_bench.{kind}")
    }
    assert installed == files, "modules differ between checkout and installation; install again: pip install -e ."
    assert group == ENTRY_POINTS[f"mlpip_bench.{kind}"], "pyproject.toml has changed; install again: pip install -e ."


def test_an_unregistered_file_is_found_and_the_line_to_add_is_said(tmp_path):
    (tmp_path / "__init__.py").write_text('"""Plugins."""\n')
    (tmp_path / "known.py").write_text("class Known(Method[Delta]):\n    pass\n")
    registered = {"known": "mlpip_bench.methods.known:Known"}
    assert unregistered(tmp_path, "methods", registered) == []

    (tmp_path / "cosine.py").write_text(
        "class _Net(nn.Module):\n    pass\nclass CosineMeans(api.Method[Delta]):\n    pass\n"
    )
    (problem,) = unregistered(tmp_path, "methods", registered)
    assert '[project.entry-points."mlpip_bench.methods"]' in problem
    assert problem.endswith('\ncosine = "mlpip_bench.methods.cosine:CosineMeans"')

    assert unregistered(tmp_path, "methods", registered | {"cosine": "mlpip_bench.methods.cosine:CosineMeans"}) == []
    (wrong,) = unregistered(tmp_path, "methods", registered | {"cosine": "mlpip_bench.methods.cosine:Cosine"})
    assert wrong == problem

    (tmp_path / "cosine.py").write_text("class Helper:\n    pass\n")
    (problem,) = unregistered(tmp_path, "methods", registered)
    assert "must define a subclass of Method; it has none" in problem


# -- description and citation ----------------------------------------------------------------------------------------


def uncited(reference: str, docstring: str | None) -> list[str]:
    """Which of first author and year of a reference (``Finn et al. 2017, Title``) a docstring lacks."""
    found = re.match(r"(?P<author>[\w'-]+).*?\b(?P<year>(19|20)\d\d)\b, \S", reference)
    assert found, f"a reference must read 'Author et al. year, title'; got {reference!r}"
    return [part for part in found.groupdict().values() if not re.search(rf"\b{re.escape(part)}\b", docstring or "")]


@pytest.mark.parametrize("name", ENTRY_POINTS["mlpip_bench.methods"])
def test_every_method_is_described_and_cites_its_paper(name):
    plugin = registry.method(name)
    assert issubclass(plugin, Method)
    assert plugin.psi.strip()
    assert plugin.__doc__
    docstring = sys.modules[plugin.__module__].__doc__
    missing = uncited(plugin.reference, docstring)
    assert not missing, f"the docstring of {plugin.__module__} must cite {plugin.reference!r}; it lacks {missing}"
    for heading in ("psi:", "Reference:"):
        assert re.search(rf"^{heading} \S", docstring, re.M), f"the docstring of {plugin.__module__} needs '{heading}'"
    for check, reason in plugin.xfail_checks.items():
        assert len(reason.split()) > 2, f"{name}: say why it cannot pass {check}; got {reason!r}"


@pytest.mark.parametrize("name", ENTRY_POINTS["mlpip_bench.protocols"])
def test_every_protocol_is_described(name):
    plugin = registry.protocol(name)
    assert issubclass(plugin, EvalProtocol | SideBySideProtocol)
    assert plugin.description.strip()
    assert plugin.metrics
    assert plugin.__doc__
    assert sys.modules[plugin.__module__].__doc__


@pytest.mark.parametrize("name", ENTRY_POINTS["mlpip_bench.benches"])
def test_every_task_family_is_described(name):
    plugin = registry.family(name)
    assert plugin.title.strip()
    assert plugin.needs.strip()
    assert plugin.__doc__
    assert sys.modules[plugin.__module__].__doc__
    for example in plugin.examples:
        assert registry.bench(example).family == name
    for method in plugin.default_methods:
        assert plugin.kind in registry.method(method).handles
    registry.backbone(plugin.backbone)


@pytest.mark.parametrize("name", ENTRY_POINTS["mlpip_bench.backbones"])
def test_every_backbone_is_described_and_has_a_reference(name):
    plugin = registry.backbone(name)
    assert plugin.__doc__
    assert sys.modules[plugin.__module__].__doc__
    if not plugin.reference.startswith("none: "):
        assert uncited(plugin.reference, plugin.reference) == []


def test_a_docstring_without_the_paper_is_found():
    reference = "Finn et al. 2017, Model-Agnostic Meta-Learning (ICML)"
    assert uncited(reference, "Reference: Finn, Abbeel & Levine, ICML 2017.") == []
    assert uncited(reference, "Reference: Snell, NeurIPS 2017.") == ["Finn"]
    assert uncited(reference, None) == ["Finn", "2017"]


# -- the engine knows no plugin --------------------------------------------------------------------------------------


def plugin_names_in_code(source: str, names: set[str]) -> Iterator[str]:
    """Places of a module's code that name a plugin: identifiers, imports, and strings that are compared or looked up.

    Prose is free to: comments, docstrings, and examples of use in messages and help.
    """
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node.body[0], ast.Expr)
    }
    word = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, sorted(names)))})(?![a-z])", re.I)
    for node in ast.walk(tree):
        texts: list[str | None] = []
        if isinstance(node, ast.Name | ast.Attribute | ast.arg | ast.keyword | ast.alias):
            texts = [getattr(node, field, None) for field in ("id", "attr", "arg", "name", "asname")]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            texts = [node.name]
        elif isinstance(node, ast.ImportFrom):
            texts = [node.module]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            is_example = "for example" in node.value or "python -m mlpip_bench" in node.value
            texts = [] if is_example else [node.value]
        for text in texts:
            if text and word.search(text):
                yield f"line {getattr(node, 'lineno', '?')}: {text!r}"
        yield from plugin_imports(node)


def plugin_imports(node: ast.AST) -> Iterator[str]:
    """Imports of plugins, in one node of a module's code."""
    imported = [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
    imported += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    packages = [package.__name__ for package in PACKAGES.values()]
    folders = tuple(f"{name}." for name in (*packages, "methods", "protocols"))
    yield from (f"line {node.lineno}: import of {name}" for name in imported if f"{name}.".startswith(folders))


def decisions_by_name(source: str, names: set[str]) -> Iterator[str]:
    """Places of a module's code that compare a variable with a plugin's name, or map several names; and imports.

    Names of data sets and backbones are words of the field, such as ``linear``, which code may use otherwise.
    """
    for node in ast.walk(ast.parse(source)):
        yield from plugin_imports(node)
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name | ast.Attribute):
            parts = [
                e for c in node.comparators for e in (c.elts if isinstance(c, ast.Tuple | ast.List | ast.Set) else [c])
            ]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = node.keys
        found = [part for part in parts if isinstance(part, ast.Constant) and part.value in names]
        if len(found) > isinstance(node, ast.Dict):
            yield f"line {found[0].lineno}: {found[0].value!r}"


def engine_files() -> list[Path]:
    """Modules of the engine: those of the package that are no plugins.

    Without the conformance suite's cases, which try methods on the suite's own networks, the reader of records from
    before there were families, and the names of icons, where ``baseline-`` is a set's.
    """
    plugins = [Path(path) for package in PACKAGES.values() for path in package.__path__]
    others = [ENGINE / f for f in ("testing/cases.py", "records/migration.py", "datasets/preparing/icons.py")]
    return [file for file in sorted(ENGINE.rglob("*.py")) if file.parent not in plugins and file not in others]


def test_the_engine_names_no_method_and_imports_no_plugin():
    names = set(ENTRY_POINTS["mlpip_bench.methods"])
    names |= {value.rpartition(":")[2] for value in ENTRY_POINTS["mlpip_bench.methods"].values()}
    found = [
        f"{file.relative_to(ENGINE)} {place}"
        for file in engine_files()
        for place in plugin_names_in_code(file.read_text(encoding="utf-8"), names)
    ]
    assert not found, "the engine must treat all methods equally; it names some:\n" + "\n".join(found)


def test_the_engine_decides_nothing_by_the_name_of_a_data_set_or_a_backbone():
    names = {*ENTRY_POINTS["mlpip_bench.benches"], *ENTRY_POINTS["mlpip_bench.backbones"]}
    found = [
        f"{file.relative_to(ENGINE)} {place}"
        for file in engine_files()
        for place in decisions_by_name(file.read_text(encoding="utf-8"), names)
    ]
    assert not found, "the engine must treat all plugins equally; it names some:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        'if family == "omni":\n    pass',
        'if bench.family in ("toy", "omni"):\n    pass',
        'match name:\n    case "omni":\n        pass',
        'SHAPES = {"omni": (1, 28, 28), "tiny": (3, 32, 32)}',
        "from mlpip_bench.benches.families import omniglot",
        "from mlpip_bench.benches.families.omniglot import Omniglot",
        "import mlpip_bench.nn.backbones.conv4",
    ],
)
def test_a_decision_by_a_data_sets_name_is_found(code):
    assert list(decisions_by_name(code, {"omni", "tiny"}))


@pytest.mark.parametrize("code", ['backbone = "omni"', 'f("omni")', '"""As omni."""', "omni = 1"])
def test_a_default_is_no_decision(code):
    assert not list(decisions_by_name(code, {"omni", "tiny"}))


@pytest.mark.parametrize(
    "code",
    [
        'if method == "maml":\n    pass',
        "from mlpip_bench.methods.maml import Settings",
        "import methods.maml",
        "from mlpip_bench.methods import anything",
        'import_module("methods.maml")',
        "def _maml_adapt(): pass",
        "isinstance(x, MAML)",
        "x.is_maml",
        "f(maml_steps=1)",
        'SETTINGS = {"maml": 1}',
    ],
)
def test_a_method_named_in_code_is_found(code):
    assert list(plugin_names_in_code(code, {"maml", "MAML"}))


@pytest.mark.parametrize(
    "prose",
    [
        '"""First-order MAML."""',
        'def f():\n    """As MAML does."""\n    return 1  # unlike maml',
        'error("--set takes NAME=VALUE, for example maml.steps=5")',
        'app(epilog="python -m mlpip_bench run --methods maml")',
        'x = "formamlike"',
    ],
)
def test_prose_may_name_a_method(prose):
    assert not list(plugin_names_in_code(prose, {"maml", "MAML"}))


# -- imports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["tables.folders", "html"])  # they import all others
def test_tables_and_figures_load_no_model_code(module, tmp_path):
    code = (
        f"import sys, mlpip_bench.reporting.{module}\n"
        "print(*sorted(m for m in sys.modules if m.partition('.')[0] in ('torch', 'higher', 'methods', 'protocols')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not done.stdout.split(), f"importing mlpip_bench.reporting.{module} loads {done.stdout.split()[:5]}"


def test_under_tox_the_built_wheel_is_tested():
    for package in (mlpip_bench, methods, protocols):
        parts = Path(package.__file__).parts
        assert "site-packages" in parts or "MLPIP_BENCH_EXPECT_WHEEL" not in os.environ, package.__file__


# -- dependencies and hosts ------------------------------------------------------------------------------------------


def requirements() -> Iterator[Requirement]:
    project = PYPROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), PYPROJECT["build-system"]["requires"]]
    yield from (Requirement(line) for lines in lists for line in lines)


def test_dependencies_have_no_upper_bounds():
    bounded = [str(r) for r in requirements() if any(s.operator not in (">=", ">", "!=") for s in r.specifier)]
    assert not bounded, f"lower bounds only, versions belong in constraints.txt: {bounded}"


def test_constraints_pin_every_direct_dependency_to_a_version_that_pyproject_allows():
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions: dict[str, str] = {}
    for pin in pins:
        (specifier,) = pin.specifier
        assert specifier.operator == "==", pin
        assert "+" not in specifier.version, f"{pin}: a local version is not to be had everywhere"
        versions[_canonical(pin.name)] = specifier.version
    for requirement in requirements():
        if _canonical(requirement.name) != "mlpip-bench":
            version = versions.get(_canonical(requirement.name))
            assert version, f"constraints.txt lacks {requirement.name}"
            assert version in requirement.specifier, f"{requirement} does not allow constraints.txt's {version}"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_file_names_a_package_registry():
    hosts = ["pypi" + ".org", "python" + "hosted.org", "download.py" + "torch.org", "ana" + "conda.org"]
    options = ["--index" + "-url", "--extra-index" + "-url"]
    for file in repository_files():
        text = file.read_text(encoding="utf-8", errors="ignore")
        found = [word for word in hosts + options if word in text]
        assert not found, f"{file.relative_to(REPOSITORY)} names {found}; the user's own pip settings say where from"


def repository_files() -> Iterator[Path]:
    """Files of the checkout, without those of tools and runs."""
    generated = {"dist", "build", "records", "checkpoints", "failures", "__pycache__"}
    for folder, subfolders, files in os.walk(REPOSITORY):
        subfolders[:] = [
            s
            for s in subfolders
            if (s in (".ci", ".github") or s[0] != ".") and s not in generated and "egg-info" not in s
        ]
        yield from (Path(folder, file) for file in files)


# -- CONTRIBUTING ----------------------------------------------------------------------------------------------------


EXAMPLE = REPOSITORY / "docs" / "example_plugin"
WORKED = EXAMPLE / "mlpip_bench_example" / "cosine_means.py"


def worked_method() -> type[Method]:
    module = ModuleType("worked_method")
    exec(compile(WORKED.read_text(encoding="utf-8"), WORKED, "exec"), module.__dict__)
    (plugin,) = (v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Method) and v is not Method)
    return plugin


def test_the_worked_method_predicts_and_learns():
    torch.manual_seed(0)
    plugin = worked_method()
    method = plugin(Problem(SMALL, "metabn", 3), plugin.Settings())
    batch = make_batch(tasks=2, dtype=torch.float32)
    predictive = method.predictive(method.amortize(batch.support), batch.query.x)
    assert predictive.batch_shape == (2, 12)
    torch.testing.assert_close(predictive.probs.sum(-1), torch.ones(2, 12))
    torch.testing.assert_close(method.loss(batch), -predictive.log_prob(batch.query.y).mean())

    optimizer = torch.optim.Adam(method.parameters(), lr=1e-2)
    before = method.loss(batch).item()
    for _ in range(20):
        optimizer.zero_grad()
        method.loss(batch).backward()
        optimizer.step()
    assert method.loss(batch).item() < 0.8 * before


def test_the_worked_method_follows_the_rules_it_shows():
    docstring = ast.get_docstring(ast.parse(WORKED.read_text(encoding="utf-8")))
    assert uncited(worked_method().reference, docstring) == []


def test_the_worked_plugins_are_short_and_registered_in_their_package_and_in_the_recipes():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipes: dict[str, dict[str, str]] = {}
    for block in re.findall(r"^```toml\n(.*?)^```$", text, re.M | re.S):
        recipes |= tomllib.loads(block)["project"]["entry-points"]
    theirs = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    assert recipes.keys() == theirs.keys() == ENTRY_POINTS.keys()
    for group, plugins in theirs.items():
        ((name, value),) = plugins.items()
        module, _, plugin = value.partition(":")
        code = (EXAMPLE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert len(code.splitlines()) < 90  # as CONTRIBUTING says
        assert f"class {plugin}(" in code
        assert recipes[group] == {name: f"{PACKAGES[group.partition('.')[2]].__name__}.{name}:{plugin}"}


def test_the_files_that_contributing_names_exist():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    made = set(re.findall(r"^cp \S+ (\S+)$", text, re.M))
    named = set(re.findall(r"(?<![\w./])(?:tests|methods|protocols|mlpip_bench|docs|\.ci)/[\w./-]*", text)) - made
    missing = [name for name in sorted(named) if not (REPOSITORY / name).exists()]
    assert named
    assert not missing


def test_every_installed_module_can_be_imported():
    for package in (mlpip_bench, methods, protocols):
        folder = str(
            Path(package.__file__).parent
        )  # not its __path__, which in a checkout has the whole checkout in it
        for info in pkgutil.walk_packages([folder], package.__name__ + "."):
            if not info.name.endswith("__main__"):
                importlib.import_module(info.name)

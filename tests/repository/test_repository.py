"""The house is complete: all plugins are registered, described and cited, and the engine knows none of them."""

import ast
import functools
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
from mlpip_bench.evaluation.protocol import EvalProtocol, SideBySideProtocol
from mlpip_bench.inference.method import Method, Problem

PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
ENTRY_POINTS: dict[str, dict[str, str]] = PYPROJECT["project"]["entry-points"]
KINDS = {"methods": ("Method",), "protocols": ("EvalProtocol", "SideBySideProtocol")}
PACKAGES = {"methods": methods, "protocols": protocols}
ENGINE = Path(mlpip_bench.__file__).parent


# -- registration ----------------------------------------------------------------------------------------------------


def unregistered(folder: Path, package: str, registered: Mapping[str, str]) -> list[str]:
    """What is missing for each plugin of a folder to be registered, as sentences that say what to do.

    Args:
        folder: the folder of the package's files.
        package: ``methods`` or ``protocols``.
        registered: the group's entry points, name to value.
    """
    bases, values, problems = KINDS[package], set(registered.values()), []
    for file in sorted(folder.rglob("*.py")):
        module = ".".join((package, *file.relative_to(folder).with_suffix("").parts))
        if file.name == "__init__.py":
            continue
        names = [
            node.name
            for node in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef) and any(_base_name(expression) in bases for expression in node.bases)
        ]
        if not names:
            problems.append(
                f"{package}/{file.name} must define a subclass of {' or '.join(bases)}; it has none. Code that plugins "
                "share belongs in mlpip_bench/."
            )
        problems += [
            f'{package}/{file.name} is not registered. Add to pyproject.toml, under [project.entry-points."'
            f'mlpip_bench.{package}"]:\n{file.stem if len(names) == 1 else name.lower()} = "{module}:{name}"'
            for name in names
            if f"{module}:{name}" not in values
        ]
    return problems


def _base_name(expression: ast.expr) -> str | None:
    """``Method`` for the bases ``Method``, ``Method[Delta]`` and ``api.Method[Delta]``."""
    inner = expression.value if isinstance(expression, ast.Subscript) else expression
    return inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", None)


@pytest.mark.parametrize("package", KINDS)
def test_every_plugin_file_is_registered(package):
    problems = unregistered(REPOSITORY / package, package, ENTRY_POINTS[f"mlpip_bench.{package}"])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("package", KINDS)
def test_what_is_installed_is_what_the_checkout_has(package):
    installed = {info.name for info in pkgutil.iter_modules(PACKAGES[package].__path__)}
    files = {file.stem for file in (REPOSITORY / package).glob("*.py")} - {"__init__"}
    group = {
        e.name: e.value
        for e in metadata.distribution("mlpip_bench").entry_points.select(group=f"mlpip_bench.{package}")
    }
    assert installed == files, "modules differ between checkout and installation; install again: pip install -e ."
    assert group == ENTRY_POINTS[f"mlpip_bench.{package}"], (
        "pyproject.toml has changed; install again: pip install -e ."
    )


def test_an_unregistered_file_is_found_and_the_line_to_add_is_said(tmp_path):
    (tmp_path / "__init__.py").write_text('"""Plugins."""\n')
    (tmp_path / "known.py").write_text("class Known(Method[Delta]):\n    pass\n")
    registered = {"known": "methods.known:Known"}
    assert unregistered(tmp_path, "methods", registered) == []

    (tmp_path / "cosine.py").write_text(
        "class _Net(nn.Module):\n    pass\nclass CosineMeans(api.Method[Delta]):\n    pass\n"
    )
    (problem,) = unregistered(tmp_path, "methods", registered)
    assert '[project.entry-points."mlpip_bench.methods"]' in problem
    assert problem.endswith('\ncosine = "methods.cosine:CosineMeans"')

    assert unregistered(tmp_path, "methods", registered | {"cosine": "methods.cosine:CosineMeans"}) == []
    (wrong,) = unregistered(tmp_path, "methods", registered | {"cosine": "methods.cosine:Cosine"})
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
        imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        imported += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (f"line {node.lineno}: import of {m}" for m in imported if m.partition(".")[0] in KINDS)


def test_the_engine_names_no_method_and_imports_no_plugin():
    names = set(ENTRY_POINTS["mlpip_bench.methods"])
    names |= {value.rpartition(":")[2] for value in ENTRY_POINTS["mlpip_bench.methods"].values()}
    found = [
        f"{file.relative_to(ENGINE)} {place}"
        for file in sorted(ENGINE.rglob("*.py"))
        for place in plugin_names_in_code(file.read_text(encoding="utf-8"), names)
    ]
    assert not found, "the engine must treat all methods alike; it names some:\n" + "\n".join(found)


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


@functools.cache
def contributing_block(language: str) -> str:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    return block


WORKED = REPOSITORY / "docs" / "example_plugin" / "cosine_means.py"


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


def test_the_worked_method_follows_the_rules_it_shows(tmp_path):
    plugin, code = worked_method(), WORKED.read_text(encoding="utf-8")
    assert len(code.splitlines()) < 60  # as CONTRIBUTING says
    assert uncited(plugin.reference, ast.get_docstring(ast.parse(code))) == []
    (tmp_path / "cosine.py").write_text(code)
    entry_points = tomllib.loads((WORKED.parent / "pyproject.toml").read_text())["project"]["entry-points"]
    assert entry_points == {"mlpip_bench.methods": {"cosine": f"{WORKED.stem}:{plugin.__name__}"}}
    (name, value), *more = tomllib.loads(contributing_block("toml")).items()
    assert not more
    assert unregistered(tmp_path, "methods", {name: value}) == []
    (problem,) = unregistered(tmp_path, "methods", {})
    assert problem.endswith("\n" + contributing_block("toml").strip())


def test_the_files_that_contributing_names_exist():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w./])(?:tests|methods|protocols|mlpip_bench|docs|\.ci)/[\w./-]*", text)) - {
        "methods/cosine.py"
    }
    missing = [name for name in sorted(named) if not (REPOSITORY / name).exists()]
    assert named
    assert not missing


def test_every_installed_module_can_be_imported():
    for package in (mlpip_bench, methods, protocols):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not info.name.endswith("__main__"):
                importlib.import_module(info.name)

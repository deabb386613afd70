"""What docs/ and README say of plugins, protocols and the paper's numbering is what code and paper say."""

import dataclasses
import importlib.util
import logging
import pkgutil
import re
from types import SimpleNamespace

import pytest

from builders import REPOSITORY
from mlpip_bench import registry
from mlpip_bench.inference.method import TrainingPlan

DOCS = REPOSITORY / "docs"
METHODS = [
    name for name in registry.method_names() if registry.method(name).__module__.startswith("mlpip_bench.methods.")
]

# Counted in the paper's source, which test_the_numbering_is_that_of_the_papers_source does where it is there.
NUMBERS = {
    "Equations": [*map(str, range(1, 13)), "A.1", "A.2", "A.3", "A.4", "A.5", "B.1", "B.2", "B.3", "C.1", "C.2"],
    "Tables": ["1", "2", "3", "D.1", "D.2", "D.3", "D.4", "E.1", "E.2", "E.3", "E.4"],
    "Figures": ["1", "2", "3", "4", "5", "6", "B.1", "B.2"],
}


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """What stands below a heading of the second level."""
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return found


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of the tables in a text, without their heads."""
    tables = re.findall(r"^\|.*\n\|[ :|-]+\n((?:\|.*\n?)+)", text, re.M)
    lines = "".join(table if table.endswith("\n") else f"{table}\n" for table in tables).splitlines()
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_the_navigation_has_every_page_once():
    nav = re.findall(r"^ +- .*: (\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(nav) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in DOCS.glob("*.md"))])
def test_links_lead_to_files(page):
    path = REPOSITORY / page
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s#]+)", text):
        assert re.match(r"https?://", target) or (path.parent / target).exists(), target


# -- methods ---------------------------------------------------------------------------------------------------------


def test_every_method_has_a_page_and_a_row():
    assert {p.stem for p in (DOCS / "methods").glob("*.md")} == {*METHODS, "index"}
    table = rows(read("methods/index.md").partition("## Settings of training")[0])
    assert {name: psi for name, _, psi, _ in table} == {f"[`{m}`]({m}.md)": registry.method(m).psi for m in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_page_says_what_its_class_says(name):
    plugin, page = registry.method(name), read(f"methods/{name}.md")
    facts = dict(re.findall(r"^\* ([^:\n]+): (.*(?:\n  .*)*)$", page.partition("\n## ")[0], re.M))
    benches = ", ".join(f"`{dataset}`" for dataset in plugin.default_for)
    assert {key: " ".join(value.split()) for key, value in facts.items()} == {
        "Name": f"`{name}`, in [methods/{name}.py](../../{plugin.__module__.replace('.', '/')}.py)",
        "Reference": plugin.reference,
        "ψ": plugin.psi,
        "Kinds of task": ", ".join(plugin.handles),
        "Enters by default": benches or "none; name it with `--methods`",
    }
    settings = [(field, default) for field, default, _ in rows(section(page, "Settings"))]
    defaults = dataclasses.asdict(plugin.Settings())
    assert settings == [(f"`{field}`", f"`{shown(value)}`") for field, value in defaults.items()]
    assert rows(section(page, "Presets")) == [
        [
            f"`{preset}`",
            "all" if scope == "*" else f"`{scope}`",
            ", ".join(f"`{field}` {shown(value)}" for field, value in changes.items()),
        ]
        for preset, scopes in plugin.presets.items()
        for scope, changes in scopes.items()
    ]
    excused = re.findall(r"^\* `(\w+)`: (.*)\.$", page.partition("\n## Conformance\n")[2], re.M)
    assert dict(excused) == dict(plugin.xfail_checks)
    assert section(page, "q(ψ | D) and objective").strip()
    assert section(page, "Differences from its paper").strip()


def test_the_settings_of_training_are_all_there():
    table = rows(section(read("methods/index.md"), "Settings of training"))
    assert [name for name, _ in table] == [f"`{field.name}`" for field in dataclasses.fields(TrainingPlan)]


# -- protocols -------------------------------------------------------------------------------------------------------


def test_the_protocols_are_all_there():
    titles = re.findall(r"^## (.*)$", read("protocols.md"), re.M)
    assert sorted(titles) == sorted(["Common conditions", *registry.protocol_names()])


@pytest.mark.parametrize("name", registry.protocol_names())
def test_a_protocols_section_says_what_its_class_says(name):
    protocol, page = registry.protocol(name), read("protocols.md")
    text = section(page, name)
    assert text.strip().startswith("By default") == protocol.default
    described = {row[0]: row for row in rows(page)}
    for metric in protocol.metrics:
        assert f"`{metric.name}`" in text
        _, formula, unit, better = described[f"`{metric.name}`"]
        assert formula
        assert unit.startswith(metric.unit)
        assert better.startswith(metric.better)
    assert {row[0].strip("`") for row in rows(text)} <= {metric.name for metric in protocol.metrics}


# -- the map from the paper ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_number_of_the_paper_is_on_the_map(kind):
    table = rows(section(read("paper.md"), kind))
    assert [row[0] for row in table] == NUMBERS[kind]
    for number, what, code, command in table:
        assert what, number
        assert code, number
        assert command or code.startswith(("not drawn", "not computed")), number


def test_everything_that_the_map_names_is_there():
    named = re.findall(r"`((?:mlpip_bench|methods|protocols)/[\w/]+)\.py` ((?:`[\w.]+`(?:, )?)+)", read("paper.md"))
    assert len(named) > 40
    for module, names in named:
        assert (REPOSITORY / f"{module}.py").is_file()
        for name in re.findall(r"`([\w.]+)`", names):
            pkgutil.resolve_name(f"{module.replace('/', '.')}:{name}")


def test_the_numbering_is_that_of_the_papers_source():
    source = REPOSITORY.parent / "shared" / "paper.tex"
    if not source.is_file():
        pytest.skip(f"needs the paper's source, {source}")
    body, _, appendix = re.sub(r"(?<!\\)%.*", "", source.read_text(encoding="utf-8")).partition(r"\appendix")
    parts = {"": body} | {
        f"{letter}.": part for letter, part in zip("ABCDE", appendix.split(r"\section{")[1:], strict=True)
    }

    def numbered(part: str, environment: str) -> list[str]:
        """What has a number: equations unless they say \\nonumber, figures and tables by their captions."""
        found = re.findall(rf"\\begin{{{environment}}}(.*?)\\end{{{environment}}}", part, re.S)
        return [
            text for text in found if r"\nonumber" not in text and (environment == "equation" or r"\caption" in text)
        ]

    for kind, numbers in NUMBERS.items():
        environment = kind.lower().removesuffix("s")
        assert numbers == [
            f"{prefix}{number}"
            for prefix, part in parts.items()
            for number, _ in enumerate(numbered(part, environment), 1)
        ]
    captions = [re.search(r"\\caption\{(\w+)", text)[1] for text in numbered(body, "table")]
    assert captions == ["Negative", "View", "Accuracy"]


# -- the site --------------------------------------------------------------------------------------------------------


def test_links_beyond_docs_become_paths_and_broken_ones_are_warned_of(caplog):
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(DOCS / "page.md"), src_uri="page.md"))
    text = "[README.md](../README.md), [rules](../CONTRIBUTING.md#rules), [data](data.md), ![a](../results/a.png)"
    assert hooks.on_page_markdown(text, page) == (
        "`README.md`, rules (`CONTRIBUTING.md`), [data](data.md), ![a](../results/a.png)"
    )
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        hooks.on_page_markdown("[gone](../gone.py)", page)
    assert "../gone.py, which is not there" in caplog.text

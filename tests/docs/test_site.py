"""The site: pages made from the installed plugins and from docstrings, and a strict build of all of it."""

import dataclasses
import html
import importlib.util
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mlpip_bench import registry
from mlpip_bench.inference.method import TrainingPlan

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"


def loaded(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and hooks.py look there
    spec.loader.exec_module(module)
    return module


loaded("standing")
pages = loaded("pages")


_BAR = re.compile(r"(?<!\\)\|(?=(?:[^`]*`[^`]*`)*[^`]*$)")


def rows(text: str) -> list[list[str]]:
    """Cells of the first table in a text, without its head; a bar in code is none of the table's."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace(r"\|", "|") for cell in _BAR.split(line)[1:-1]] for line in lines]


def section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


# -- plugins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.method_names())
def test_a_methods_page_has_its_settings_presets_and_expected_failures(name):
    plugin, page = registry.method(name), pages.kind_pages("methods")[f"methods/{name}.md"]
    settings = plugin.Settings()
    found = rows(section(page, "Settings"))
    assert [setting for setting, *_ in found] == [f"`{f.name}`" for f in dataclasses.fields(settings)]
    for setting, kind, default, meaning in found:
        value = getattr(settings, setting.strip("`"))
        # As --set reads it: a number, a word, or a Boolean in lower case.
        assert default.strip("`") == ({True: "true", False: "false"}[value] if isinstance(value, bool) else str(value))
        assert kind
        assert len(meaning.split()) > 1, f"{name}: the docstring of its settings says nothing of {setting}"
    changes = " ".join(cell for row in rows(section(page, "Presets")) for cell in row)
    for preset, scopes in plugin.presets.items():
        assert f"`{preset}`" in changes
        for fields in scopes.values():
            assert all(f"`{field}` {str(value).lower()}" in changes for field, value in fields.items())
    for check, reason in plugin.xfail_checks.items():
        assert f"- `{check}`: {reason.replace('_', '&').replace('*', '&')}." in re.sub(r"\\[_*]", "&", page)


@pytest.mark.parametrize("name", [n for n in registry.method_names() if (REPOSITORY / "methods" / f"{n}.py").is_file()])
def test_a_methods_docstring_says_what_the_suite_wants_of_its_own(name):
    page = pages.kind_pages("methods")[f"methods/{name}.md"]
    for label in ("psi", "q", "Reference", "Objective"):
        assert re.search(rf"^\*\*{label}:\*\* \S", page, re.M), f"{name}: its module's docstring needs '{label}:'"
    assert re.search(r"^## Differences from .*\n\n\S", page, re.M), f"{name}: 'Differences from ...:' is missing"


@pytest.mark.parametrize("kind", pages.KINDS)
def test_every_installed_plugin_has_a_page_a_row_and_a_command_that_fits(kind):
    installed = pages.KINDS[kind]
    made = pages.kind_pages(kind)
    assert list(made) == [f"{kind}/{name}.md" for name in installed.names()]
    linked = [row[0] for row in rows(pages.kind_table(kind))]
    for (path, page), name, link in zip(made.items(), installed.names(), linked, strict=True):
        title = re.match(r"# (.+)\n", page)
        assert title, path
        assert title[1] != name, f"the docstring of {name}'s module must begin with 'Title: summary'"
        assert link.startswith(f"[`{name}`](")
        assert link.endswith(f"{name}.md)")
        for bench in re.findall(r"^python -m mlpip_bench run .*--bench (\w+)", page, re.M):
            family = registry.family(registry.bench(bench).family)
            plugin = installed.load(name)
            if kind == "benches":
                assert family is plugin
            else:
                assert family.kind in plugin.handles
                assert issubclass(family, getattr(plugin, "families", ()) or family)


@pytest.mark.parametrize("name", registry.protocol_names())
def test_a_protocols_page_has_its_metrics(name):
    page = pages.kind_pages("protocols")[f"protocols/{name}.md"]
    plugin = registry.protocol(name)
    found = rows(section(page, "Metrics"))
    assert [row[:3] for row in found] == [[f"`{metric.name}`", metric.unit, metric.better] for metric in plugin.metrics]
    for metric, _, _, *meaning in found:
        assert any(meaning) or f"- `{metric}`: " in page, f"{name}: nothing says what {metric} is"


def test_the_settings_of_training_are_all_there():
    found = rows(pages.training_settings())
    assert [name for name, _ in found] == [f"`{field.name}`" for field in dataclasses.fields(TrainingPlan)]
    assert all(meaning for _, meaning in found)


def test_attributes_are_read_from_a_class_and_its_bases():
    class Base:
        """A base.

        Attributes:
            one, two: both
                of them.
            three: the base's.
        """

    class Derived(Base):
        """Another.

        Attributes:
            three: its own: a word
                and more.

        Raises:
            four: no attribute.
        """

    found = {"one": "both of them", "two": "both of them", "three": "its own: a word and more"}
    assert pages.attributes(Derived) == found


def test_formulas_in_docstrings_are_no_markup():
    text = "psi* is :class:`~a.Best`, w_c < 1 and ``a_b``; see `c*`"
    assert pages.markdown(text) == r"psi\* is `a.Best`, w\_c &lt; 1 and ``a_b``; see `c*`"


def test_links_beyond_docs_become_paths_and_broken_ones_are_warned_of(caplog):
    pytest.importorskip("mkdocs")
    hooks = loaded("hooks")

    def shown(text: str, page: str) -> str:
        return hooks.on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri=page)))

    text = "[README.md](../README.md), [code](../methods/versa.py#x), [data](data.md#cache), ![a](../results/a.png)"
    linked = "`README.md`, code (`methods/versa.py`), [data](data.md#cache), ![a](../results/a.png)"
    assert shown(text, "page.md") == linked
    assert (
        shown("[rules](../CONTRIBUTING.md#rules-of-the-code)", "page.md")
        == "[rules](contributing.md#rules-of-the-code)"
    )
    assert shown("[data](docs/data.md), [it](LICENSE)", "contributing.md") == "[data](data.md), it (`LICENSE`)"
    assert shown("[data](../data.md), [up](https://a.b/c.md), [here](#x)", "methods/index.md") == (
        "[data](../data.md), [up](https://a.b/c.md), [here](#x)"
    )
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        shown("[gone](../gone.py)", "page.md")
    assert "../gone.py, which is not there" in caplog.text


# -- the build -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly; not quietly, since a strict build takes no notice of warnings that it does not show."""
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def plain(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_the_site_has_every_plugin_in_its_navigation(site):
    start = (site / "index.html").read_text(encoding="utf-8")
    for kind, installed in pages.KINDS.items():
        for name in installed.names():
            assert (site / kind / f"{name}.html").is_file()
            assert f'href="{kind}/{name}.html"' in start
    assert 'href="contributing.html"' in start


def test_the_reference_shows_shapes_and_no_foreign_markup(site):
    assert re.search(r"Float\[Tensor, .task point feature.\]", plain(site / "api" / "tasks.html"))
    for page in (site / "api").glob("*.html"):
        assert not re.search(r":\w+:`", plain(page)), page.name


def test_search_works_from_a_folder(site):
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = {")
    start = (site / "index.html").read_text(encoding="utf-8")
    scripts = re.findall(r'<script[^>]* src="([^"]+)"', start)
    assert "iframe-worker.js" in scripts
    assert all((site / script).is_file() for script in scripts), "the site fetches a script from elsewhere"

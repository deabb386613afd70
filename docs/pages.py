"""Pages of the installed plugins, made from their classes and docstrings: a fact stands in the code, and only there.

A kind of plugin is an entry of :data:`KINDS`: how its names are listed, how one is loaded, its page, and its row in the
table of all. ``hooks.py`` puts the pages into the site.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from standing import standing

from mlpip_bench import registry
from mlpip_bench.benches.family import TaskFamily
from mlpip_bench.evaluation import metrics
from mlpip_bench.evaluation.protocol import SideBySideProtocol
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.inference.search import LogUniform, OneOf
from mlpip_bench.utils.settings import fields_of

# -- text ------------------------------------------------------------------------------------------------------------

_LABEL = re.compile(r"^(psi|q|Objective|References?): +", re.M)
_HEADING = re.compile(r"^(Differences from [^:\n]+): *(.?)", re.M)


def markdown(text: str) -> str:
    """A docstring's text as Markdown: roles become code, and what is a formula's is no markup."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    code_and_text = re.split(r"(``.+?``|`[^`]+`)", text)
    return "".join(
        part if index % 2 else re.sub(r"[*_]", r"\\\g<0>", part).replace("<", "&lt;")
        for index, part in enumerate(code_and_text)
    )


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [[_cell(text) for text in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *lines])


def _cell(text: str) -> str:
    """A text on one line; in code a bar is none of the table's as it is, elsewhere with a backslash."""
    code_and_text = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if index % 2 else part.replace("|", r"\|") for index, part in enumerate(code_and_text))


def value_text(value: object) -> str:
    """A value as ``--set`` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def code(value: object) -> str:
    """A value in code."""
    return f"`{value_text(value)}`"


def codes(values: Iterable[object]) -> str:
    """Several of them."""
    return ", ".join(map(code, values))


def module_of(plugin: type) -> ModuleType:
    """The module that a plugin's class is written in."""
    return sys.modules[plugin.__module__]


def opening(name: str, plugin: type) -> tuple[str, str, str]:
    """Title, summary and the rest of a module's docstring, which begins with ``Title: summary.``."""
    first, _, rest = (inspect.getdoc(module_of(plugin)) or name).partition("\n\n")
    title, colon, summary = " ".join(first.split()).partition(": ")
    if not colon:
        title, summary = name, title
    if summary.split(" ")[0].isalpha():  # no formula
        summary = summary[:1].upper() + summary[1:]
    return title, markdown(summary), rest


def body(docstring: str) -> str:
    """The rest of a module's docstring: its labels in bold, the differences from the paper under a heading."""
    labeled = _LABEL.sub(lambda label: f"\n**{label[1]}:** ", "\n".join(markdown(docstring).splitlines()))
    headed = _HEADING.sub(lambda heading: f"\n## {heading[1]}\n\n{heading[2].upper()}", labeled)
    return re.sub(r"\n{3,}", "\n\n", headed).strip()


def page(title: str, *parts: str) -> str:
    """A page of parts that are not empty."""
    return "\n\n".join([f"# {title}", *filter(None, parts)]) + "\n"


def attributes(cls: type) -> dict[str, str]:
    """What the Google-style ``Attributes:`` of a class and of its bases say of each attribute."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = re.search(r"^Attributes:\n((?: .*\n?|\n)*)", inspect.cleandoc(vars(base).get("__doc__") or ""), re.M)
        entries = re.findall(r"^    (\w[\w, ]*): (.*(?:\n     .*)*)", section[1] if section else "", re.M)
        for names, meaning in entries:
            found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()).removesuffix("."))
    return found


def constants(module: ModuleType) -> dict[str, str]:
    """The docstrings below a module's constants."""
    return {
        node.targets[0].id: inspect.cleandoc(after.value.value)
        for node, after in itertools.pairwise(ast.parse(inspect.getsource(module)).body)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    }


def _choice(choice: LogUniform | OneOf) -> str:
    """What a setting is drawn from, in words."""
    if isinstance(choice, OneOf):
        return f"as one of {codes(choice.values)}"
    return f"log-uniformly from {choice.low:g} to {choice.high:g}"


def bench_for(wanted: Callable[[str, type[TaskFamily]], bool]) -> str:
    """A bench to show in a command: the first of the first task family that is wanted, those of images first."""
    families = sorted(
        registry.families().items(), key=lambda item: (item[1].kind != "classification", item[0] != "omni")
    )
    return next(family.examples[0] for name, family in families if wanted(name, family))


def commands(*lines: str) -> str:
    """Commands to copy."""
    return "\n".join(["```sh", *(f"python -m mlpip_bench {line}" for line in lines), "```"])


def file_of(plugin: type) -> str:
    """Where a plugin is written, as a path below the folder that it is imported from."""
    return code(plugin.__module__.replace(".", "/") + ".py")


# -- methods ---------------------------------------------------------------------------------------------------------


def shown_type(hint: Any) -> str:
    """The type of a setting: the values of a ``Literal``, else the annotation."""
    if get_origin(hint) is Literal:
        return " or ".join(map(code, get_args(hint)))
    return code(inspect.formatannotation(hint))


def settings_table(settings: type) -> str:
    """Type, default and meaning of each field of a settings dataclass."""
    hints, meanings = get_type_hints(settings), attributes(settings)
    return table(
        ("setting", "type", "default", "meaning"),
        [
            (
                code(f.name),
                shown_type(hints[f.name]),
                code(getattr(settings(), f.name)),
                markdown(meanings.get(f.name, "")),
            )
            for f in fields_of(settings)
        ],
    )


def standing_text(name: str) -> str:
    """Where a method stands, on the page of one that has records in the runs of all systems."""
    rows, notes = standing(name)
    if not rows:
        return ""
    return "\n\n".join(
        [
            "## Where it stands",
            "After minutes of training, one seed, best model on validation, 600 test tasks of real data; ± is the 95 % "
            "half-width over tasks. [All rows and what they say](../findings.md#systems-of-the-papers-table-3).",
            table(
                ("bench", "row", "accuracy, %", "NLL, nats per query", "published accuracy, %"),
                [(code(bench), *cells) for bench, *cells in rows],
            ),
            *(f"{note}." for note in notes),
        ]
    )


def method_page(name: str, plugin: Any) -> str:
    """The page of a method."""
    title, summary, rest = opening(name, plugin)
    entered = [family for family, found in registry.families().items() if name in found.default_methods]
    facts = {
        "Name": f"{code(name)}, in {file_of(plugin)}",
        "Reference": markdown(plugin.reference),
        "psi": markdown(plugin.psi),
        "Kinds of task": ", ".join(plugin.handles),
        "Entered by default": codes(entered) or "nowhere; name it with `--methods`",
    }
    settings = "None of its own; [settings of training](index.md#settings-of-training) are set as for every method."
    if fields := dataclasses.fields(plugin.Settings):
        set_one = f"Set one with `--set {name}.{fields[0].name}=VALUE`; [settings of training]"
        settings = f"{settings_table(plugin.Settings)}\n\n{set_one}(index.md#settings-of-training) likewise."
    presets = [
        (
            code(preset),
            "all" if scope == "*" else code(scope),
            ", ".join(f"{code(field)} {value_text(value)}" for field, value in changes.items()),
        )
        for preset, scopes in plugin.presets.items()
        for scope, changes in scopes.items()
    ]
    failures = [f"- {code(check)}: {markdown(reason)}." for check, reason in plugin.xfail_checks.items()]
    return page(
        title,
        summary,
        "\n".join(f"- {fact}: {value}" for fact, value in facts.items()),
        f"## In detail\n\n{body(rest)}" if rest else "",
        standing_text(name),
        f"## Settings\n\n{settings}",
        f"`run --tune` draws: {', '.join(f'{code(s)} {_choice(c)}' for s, c in plugin.search_space.items())}.",
        "## Presets",
        "What a preset changes for this method, beyond the data set's own budget; the more specific row wins."
        if presets
        else "It has the data set's own budgets.",
        table(("preset", "benches", "changes"), presets) if presets else "",
        "## Conformance",
        "Checks of the [conformance suite](../conformance.md) that it fails by its nature:\n\n" + "\n".join(failures)
        if failures
        else "It names no check of the [conformance suite](../conformance.md) that it fails by its nature.",
        "## Run it",
        commands(
            f"run --methods {name} --bench {bench_for(lambda _, family: family.kind in plugin.handles)}",
            f"check {name}",
        ),
    )


def method_row(name: str, plugin: Any) -> tuple[str, ...]:
    """A method in the table of all."""
    title, _, _ = opening(name, plugin)
    return f"[{code(name)}]({name}.md)", title, markdown(plugin.psi), ", ".join(plugin.handles)


def training_settings() -> str:
    """The settings that every method has."""
    meanings = attributes(TrainingPlan)
    fields = dataclasses.fields(TrainingPlan)
    return table(("setting", "meaning"), [(code(field.name), markdown(meanings[field.name])) for field in fields])


# -- protocols -------------------------------------------------------------------------------------------------------


def metric_text(metric: metrics.Metric, module: ModuleType) -> str:
    """The docstring of the constant that is a metric, in the protocol's module or in that of the shared metrics."""
    for place in (module, metrics):
        texts = constants(place)
        for name in (name for name, value in vars(place).items() if value is metric and name in texts):
            return markdown(texts[name])
    return ""


def measurable(plugin: Any) -> dict[str, type[TaskFamily]]:
    """The task families that a protocol can measure, by name."""
    return {
        name: family
        for name, family in registry.families().items()
        if family.kind in plugin.handles and issubclass(family, plugin.families or (TaskFamily,))
    }


def protocol_page(name: str, plugin: Any) -> str:
    """The page of a protocol."""
    title, summary, rest = opening(name, plugin)
    benches = ", ".join(
        code(f"{family}{_shown(found.naming)}") for family, found in measurable(plugin).items() if plugin.families
    )
    side_by_side = issubclass(plugin, SideBySideProtocol)
    facts = {
        "Name": f"{code(name)}, in {file_of(plugin)}",
        "Kinds of task": ", ".join(plugin.handles),
        "Benches": benches or "all of these kinds",
        "Measured by default": "yes" if plugin.default else f"no; name it with `--protocols {name}`",
        "Scores": "one a repeat, all methods of a bench by turns" if side_by_side else "one a test task",
    }
    texts = {metric: metric_text(metric, module_of(plugin)).partition("\n\n") for metric in plugin.metrics}
    heads = ("metric", "unit", "better", "what it is")
    rows = [(code(m.name), m.unit, m.better, short) for m, (short, _, _) in texts.items()]
    if not any(short for *_, short in rows):  # the module's docstring says it
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return page(
        title,
        summary,
        "\n".join(f"- {fact}: {value}" for fact, value in facts.items()),
        body(rest),
        "## Metrics",
        table(heads, rows),
        *(f"### How `{metric.name}` is computed\n\n{more}" for metric, (_, _, more) in texts.items() if more),
        "## Run it",
        commands(f"run --bench {bench_for(lambda family, _: family in measurable(plugin))} --protocols {name}"),
    )


def _shown(naming: str) -> str:
    return naming.replace("{", "<").replace("}", ">")


def protocol_row(name: str, plugin: Any) -> tuple[str, ...]:
    """A protocol in the table of all."""
    units = ", ".join(f"{code(metric.name)} ({metric.unit}, {metric.better})" for metric in plugin.metrics)
    where = codes(measurable(plugin)) if plugin.families else ", ".join(plugin.handles)
    default = "yes" if plugin.default else "no"
    return f"[{code(name)}](protocols/{name}.md)", markdown(plugin.description), units, where, default


# -- task families and backbones -------------------------------------------------------------------------------------


def settings_or_none(settings: type, none: str) -> str:
    """The table of a settings dataclass, or a sentence where it has no fields."""
    return settings_table(settings) if dataclasses.fields(settings) else none


def family_page(name: str, plugin: Any) -> str:
    """The page of a task family."""
    title, summary, rest = opening(name, plugin)
    own = ", ".join(f"{key} {value_text(value)}" for key, value in plugin.backbone_settings.items())
    facts = {
        "Name": f"{code(name)}, in {file_of(plugin)}",
        "Benches": f"{code(name + _shown(plugin.naming))}, for example {codes(plugin.examples)}",
        "Kind of task": plugin.kind,
        "Needs": markdown(plugin.needs),
        "Methods by default": codes(plugin.default_methods) or "none",
        "Backbone": f"[{code(plugin.backbone)}](../backbones/{plugin.backbone}.md)" + (f", with {own}" if own else ""),
    }
    budgets = [
        (code(preset), ", ".join(f"{code(field)} {value_text(value)}" for field, value in budget.items()))
        for preset, budget in plugin.budgets.items()
    ]
    return page(
        title,
        summary,
        "\n".join(f"- {fact}: {value}" for fact, value in facts.items()),
        body(rest),
        f"## Options\n\nSet one with `--data {name}.OPTION=VALUE`."
        if dataclasses.fields(plugin.Options)
        else "## Options",
        settings_or_none(plugin.Options, "It has none."),
        "## Budgets",
        table(("preset", "training plan"), budgets),
        "## Run it",
        commands(f"run --bench {plugin.examples[0]}"),
    )


def family_row(name: str, plugin: Any) -> tuple[str, ...]:
    """A task family in the table of all."""
    benches = code(name + _shown(plugin.naming))
    return f"[{code(name)}]({name}.md)", markdown(plugin.title), benches, plugin.kind, markdown(plugin.needs)


def backbone_page(name: str, plugin: Any) -> str:
    """The page of a backbone."""
    title, summary, rest = opening(name, plugin)
    own = [family for family, found in registry.families().items() if found.backbone == name]
    facts = {
        "Name": f"{code(name)}, in {file_of(plugin)}",
        "Reference": markdown(plugin.reference),
        "Default of": ", ".join(f"[{code(family)}](../benches/{family}.md)" for family in own) or "no task family",
    }
    fields = fields_of(plugin.Settings)
    choice = f"{name},{fields[0].name}=VALUE" if fields else name
    return page(
        title,
        summary,
        "\n".join(f"- {fact}: {value}" for fact, value in facts.items()),
        body(rest),
        f"## Settings\n\nChoose it for all methods of a run with `--backbone {choice}`.",
        settings_or_none(plugin.Settings, "It has none."),
    )


def backbone_row(name: str, plugin: Any) -> tuple[str, ...]:
    """A backbone in the table of all."""
    title, summary, _ = opening(name, plugin)
    return f"[{code(name)}]({name}.md)", title if not summary else f"{title}: {summary}", markdown(plugin.reference)


# -- the kinds -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of plugin, whose pages are in the folder of its key in :data:`KINDS`.

    Attributes:
        names: lists the installed ones.
        load: gets one by its name.
        page: its name and itself to the Markdown of its page.
        row: the same to its row in the table of all.
        columns: heads of that table.
    """

    names: Callable[[], list[str]]
    load: Callable[[str], Any]
    page: Callable[[str, Any], str]
    row: Callable[[str, Any], tuple[str, ...]]
    columns: tuple[str, ...]


KINDS: Mapping[str, Kind] = {
    "methods": Kind(
        registry.method_names, registry.method, method_page, method_row, ("name", "method", "psi", "kinds of task")
    ),
    "protocols": Kind(
        registry.protocol_names,
        registry.protocol,
        protocol_page,
        protocol_row,
        ("name", "what it measures", "metrics (unit, better)", "tasks", "by default"),
    ),
    "benches": Kind(
        lambda: registry.names("bench"),
        registry.family,
        family_page,
        family_row,
        ("name", "what it is", "benches", "kind of task", "needs"),
    ),
    "backbones": Kind(
        lambda: registry.names("backbone"),
        registry.backbone,
        backbone_page,
        backbone_row,
        ("name", "network", "reference"),
    ),
}


def kind_pages(folder: str) -> dict[str, str]:
    """Path below docs/ and Markdown of the pages of a kind."""
    kind = KINDS[folder]
    return {f"{folder}/{name}.md": kind.page(name, kind.load(name)) for name in kind.names()}


def kind_table(folder: str) -> str:
    """The table of all plugins of a kind."""
    kind = KINDS[folder]
    return table(kind.columns, [kind.row(name, kind.load(name)) for name in kind.names()])


TABLES: Mapping[str, Callable[[], str]] = {
    **{folder: lambda folder=folder: kind_table(folder) for folder in KINDS},
    "settings of training": training_settings,
}
"""What stands in a page for ``<!-- generated: NAME -->``."""

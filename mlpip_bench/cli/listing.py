"""``list``: what is installed; names come from the metadata of packages, and ``--check`` imports each plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from mlpip_bench import registry
from mlpip_bench.benches.spec import grammar
from mlpip_bench.cli.common import DataRoot, folded_table, out
from mlpip_bench.utils.console import labeled
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.settings import fields_of

list_app = typer.Typer(no_args_is_help=True, help="List what is installed.")

Check = Annotated[
    bool, typer.Option("--check", help="Import each, and show what it says of itself; exit status 1 if one is broken.")
]
Details = Callable[[Any], Sequence[str]]
"""What a plugin says of itself, a text for each further column."""


def _list(
    kind: registry.Kind,
    load: Callable[[str], Any],
    check: bool,
    columns: Sequence[str],
    details: Details,
    more: Sequence[str] = (),
) -> None:
    table = folded_table(kind if kind != "bench" else "task family", *(columns if check else ("from",)))
    table.show_lines = check
    broken = []
    known = registry.installed(kind)
    for name in [*known, *more]:
        if not check:
            table.add_row(name, "\n".join(registry.described(entry) for entry in known[name].values()))
            continue
        try:
            table.add_row(name, *details(load(name)))
        except UserError as error:
            broken.append(str(error))
    out.print(table)
    for message in broken:
        out.print(labeled("broken:", message, "red"), soft_wrap=True)
    if broken:
        raise typer.Exit(1)


def _defaults(settings: type) -> str:
    return ", ".join(f"{field.name}={getattr(settings(), field.name)!r}" for field in fields_of(settings))


@list_app.command("methods")
def list_methods(check: Check = False) -> None:
    """Installed methods; with --check, their reference, psi and settings, and those of --pretrain classify."""
    _list(
        "method",
        registry.method,
        check,
        ["psi, reference, and settings (defaults, before a preset's changes)"],
        lambda method: ["\n".join(filter(None, (method.psi, method.reference, _defaults(method.Settings))))],
    )
    if check:
        from mlpip_bench.inference.pretraining import Pretraining

        out.print(f"--pretrain classify has the settings {_defaults(Pretraining)}", markup=False, highlight=False)


@list_app.command("protocols")
def list_protocols(check: Check = False) -> None:
    """Installed protocols; with --check, their metrics."""
    _list(
        "protocol",
        registry.protocol,
        check,
        ["by default", "tasks", "metrics", "what it measures"],
        lambda protocol: [
            "yes" if protocol.default else "",
            ", ".join(protocol.handles),
            ", ".join(f"{metric.name} ({metric.unit})" for metric in protocol.metrics),
            protocol.description,
        ],
    )


@list_app.command("backbones")
def list_backbones(check: Check = False) -> None:
    """Installed backbones; with --check, their reference and settings."""
    _list(
        "backbone",
        registry.backbone,
        check,
        ["reference, and settings (defaults)"],
        lambda backbone: ["\n".join(filter(None, (backbone.reference, _defaults(backbone.Settings))))],
    )


@list_app.command("benches")
def list_benches(check: Check = False, data_root: DataRoot = None) -> None:
    """Task families and some of their benches; any number in a name works. With --check, their options too."""
    families = registry.families(data_root)
    _list(
        "bench",
        lambda name: registry.family(name, data_root),
        True,
        ["benches", "what it is", "needs", "methods by default", *(["options"] if check else [])],
        lambda family: [
            ", ".join(family.examples),
            family.title,
            family.needs,
            ", ".join(family.default_methods),
            *([_defaults(family.Options)] if check else []),
        ],
        [name for name in registry.family_names(data_root) if name not in registry.installed("bench")],
    )
    out.print(grammar({name: family.naming for name, family in families.items()}), highlight=False, markup=False)


@list_app.command("data")
def list_data(data_root: DataRoot = None) -> None:
    """Data sets, their layouts, and whether they are found below the data folder."""
    from mlpip_bench.datasets import sources

    for name, fault in registry.damaged_families(data_root).items():
        out.print(Text.assemble((name, "bold"), f"  broken: {fault}"), soft_wrap=True)
    for source in registry.data_sources(data_root).values():
        found = sources.status(source, data_root)
        out.print(Text.assemble((source.key, "bold"), f"  {source.title}"), soft_wrap=True)
        for line in [
            f"{found.status}: {found.detail}",
            f"stand-in: {source.stand_in.name if source.stand_in else 'none'}",
            f"looked for in {'/ or '.join(source.folders)}/, as",
            *(f"  - {layout}" for layout in source.layouts),
            *(f"made by `data prepare {name}` of {each.source}" for name, each in source.preparers.items()),
        ]:
            out.print(f"  {line}", markup=False, soft_wrap=True, highlight=False)


@list_app.command("models")
def list_models() -> None:
    """Trained models that ship with the suite, for predict and load."""
    from mlpip_bench.pretrained import exports
    from mlpip_bench.records.exports import read

    table = folded_table("model", "method", "trained on", "takes", "kB")
    for name, path in exports().items():
        record, content = read(path)
        shape = "x".join(map(str, record.backbone["input_shape"]))
        data = f"{record.bench} of {record.data['name']} ({record.data['source']})"
        table.add_row(name, record.method, data, f"pictures {shape}", f"{len(content) / 1000:.0f}")
    out.print(table)
    for path in exports().values():
        out.print(path.with_suffix(".md"), markup=False, highlight=False, soft_wrap=True)

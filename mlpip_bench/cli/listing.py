"""``list``: what is installed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from mlpip_bench import registry
from mlpip_bench.benches.families import DATASETS
from mlpip_bench.benches.spec import GRAMMAR, LISTED, parse_bench
from mlpip_bench.cli.common import DataRoot, folded_table, out
from mlpip_bench.datasets import catalog
from mlpip_bench.utils.errors import UserError

list_app = typer.Typer(no_args_is_help=True, help="List what is installed.")

_P = TypeVar("_P")


def loaded_plugins(names: Iterable[str], load: Callable[[str], _P]) -> tuple[dict[str, _P], dict[str, str]]:
    """Plugins by name, and errors of the broken ones by name: somebody's broken plugin hides no other."""
    plugins, broken = {}, {}
    for name in names:
        try:
            plugins[name] = load(name)
        except UserError as error:
            broken[name] = str(error)
    return plugins, broken


def _print_list(table: Table, broken: Mapping[str, str]) -> None:
    out.print(table)
    for error in broken.values():
        out.print(f"[red]broken:[/] {escape(error)}", highlight=False, soft_wrap=True)


@list_app.command("methods")
def list_methods() -> None:
    """Installed methods with reference and psi."""
    plugins, broken = loaded_plugins(registry.method_names(), registry.method)
    table = folded_table("method", "psi, reference, and settings (defaults, before a preset's changes)")
    table.show_lines = True
    for name, plugin in plugins.items():
        settings = ", ".join(f"{k}={v!r}" for k, v in dataclasses.asdict(plugin.Settings()).items())
        table.add_row(name, escape("\n".join(filter(None, (plugin.psi, plugin.reference, settings)))))
    _print_list(table, broken)


@list_app.command("protocols")
def list_protocols() -> None:
    """Installed protocols with their metrics."""
    plugins, broken = loaded_plugins(registry.protocol_names(), registry.protocol)
    table = folded_table("protocol (* by default)", "tasks", "metrics", "what it measures")
    for name, protocol in plugins.items():
        metrics = ", ".join(f"{metric.name} ({metric.unit})" for metric in protocol.metrics)
        marked = f"{name} *" if protocol.default else name
        table.add_row(marked, ", ".join(protocol.datasets or protocol.handles), metrics, protocol.description)
    _print_list(table, broken)


@list_app.command("benches")
def list_benches() -> None:
    """The paper's benches and some more; any number in a name works."""
    table = folded_table("benches", "data set", "methods by default", "needs")
    plugins, _ = loaded_plugins(registry.method_names(), registry.method)
    for dataset in dict.fromkeys(parse_bench(name).dataset for name in LISTED):
        benches = [name for name in LISTED if parse_bench(name).dataset == dataset]
        entering = [name for name, plugin in plugins.items() if dataset in plugin.default_for]
        data = DATASETS[dataset]
        table.add_row(", ".join(benches), data.title, ", ".join(entering), data.needs)
    out.print(table)
    out.print(GRAMMAR, highlight=False, markup=False)


@list_app.command("data")
def list_data(data_root: DataRoot = None) -> None:
    """Data sets, their layouts, and whether they are found below the data folder."""
    for row in catalog.describe(data_root):
        source = row.source
        out.print(f"[bold]{source.key}[/]  {escape(source.title)}", soft_wrap=True, highlight=False)
        lines = [f"{row.status}: {row.detail}", f"stand-in: {source.stand_in.name if source.stand_in else 'none'}"]
        for line in [
            *lines,
            f"looked for in {'/ or '.join(source.folders)}/, as",
            *(f"  - {x}" for x in source.layouts),
        ]:
            out.print(f"  {line}", markup=False, soft_wrap=True, highlight=False)

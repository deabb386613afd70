"""``check``: the conformance suite."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlpip_bench import registry
from mlpip_bench.cli.common import DataRoot, err, folded_table, out
from mlpip_bench.utils.console import labeled
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.places import is_place

if TYPE_CHECKING:
    from mlpip_bench.inference.method import TaskKind
    from mlpip_bench.testing.checking import CheckResult

CHECK_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench check versa maml\n\npython -m mlpip_bench check --all\n\n"
    "python -m mlpip_bench check versa --bench tiny5w1s"
)


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Methods (see: list methods), or FILE.py:NAME of your own."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All installed methods.")] = False,
    bench: Annotated[
        str | None,
        typer.Option(metavar="BENCH", help="Check on made tasks in the shape of this bench's images, on them alone."),
    ] = None,
    data_root: DataRoot = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Each check also where several methods are checked.")] = (
        False
    ),
) -> None:
    """Check that methods keep what the comparison relies on; the conformance suite, see docs/conformance.md."""
    if bool(names) == everything:
        raise UserError(f"check takes names of methods, or --all; got {'both' if names else 'neither'}.")
    from mlpip_bench.testing import conformance  # here, since torch takes a second to import

    kind, shape = (None, None) if bench is None else _inputs_of(bench, data_root)
    plugins, broken = {}, {}
    for name in registry.method_names() if everything else names or ():
        try:
            name = registry.method_at(name) if is_place(name) else name
            plugins[name] = registry.method(name)
        except UserError as error:  # somebody's broken plugin hides no other
            if not everything:
                raise
            broken[name] = str(error)
    if kind is not None and (others := [name for name, plugin in plugins.items() if kind not in plugin.handles]):
        if not everything:
            raise UserError(
                f"methods must handle the tasks of the bench; {bench} is {kind}, which {', '.join(others)} does not "
                "handle. Choose another bench, or leave --bench out."
            )
        plugins = {name: plugin for name, plugin in plugins.items() if name not in others}
    for message in broken.values():
        err.print(labeled("failed:", message, "bold red"), soft_wrap=True)
    failed, total = list(broken), len(plugins) + len(broken)
    width = max(map(len, plugins), default=0)
    for name, plugin in plugins.items():
        with err.status(Text(f"checking {name}")):
            checked = conformance.check_method(plugin, kind=kind, shape=shape)
        if any(result.status == "failed" for result in checked):
            failed.append(name)
        if verbose or total == 1:
            out.print(_check_table(name, checked))
            continue
        out.print(f"{name:{width}}  {_counts(checked)}", markup=False, highlight=False, soft_wrap=True)
        for line in conformance.failure_lines(checked):
            out.print(Padding(Text(line), (0, 0, 0, 4)))
    err.print(f"{total - len(failed)} of {total} methods pass" + (f"; failed: {', '.join(failed)}" if failed else ""))
    if failed:
        raise typer.Exit(1)


def _inputs_of(name: str, data_root: Path | None) -> tuple[TaskKind, tuple[int, int, int]]:
    """Kind and shape of what the backbone takes on a bench; data are looked for only where they alone say it."""
    from mlpip_bench.benches.family import DataRequest

    plugin = registry.family(registry.bench(name, data_root).family, data_root)
    family = plugin(plugin.Options())
    return plugin.kind, plugin.image_shape or family.input_shape(family.load(DataRequest(data_root=data_root)))


def _check_table(name: str, checked: list[CheckResult]) -> Table:
    from mlpip_bench.testing import conformance

    table = folded_table(name, "result", "what it protects, and what came")
    for result in conformance.merged(checked):
        color = "red" if result.status == "failed" else "default"
        text = "\n".join(part for part in (result.protects, result.detail) if part)
        table.add_row(result.name.replace(", ", "\n"), Text(result.status, color), text)
    return table


def _counts(checked: list[CheckResult]) -> str:
    """How many checks came out how: ``22 passed, 2 expected failures``."""
    from mlpip_bench.testing.checking import Status

    counts = Counter(result.status for result in checked)
    return ", ".join(
        f"{counts[status]} {status}" + ("s" if status.startswith("expected") and counts[status] > 1 else "")
        for status in get_args(Status)
        if counts[status]
    )

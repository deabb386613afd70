"""Records -> figures, as PNG and PDF.

A figure shows what it is grouped by, most often one bench, on one source of data, and the models that are best on
validation. A method that was run in several configurations appears once for each, labeled with what differs; the
seeds of a configuration are averaged, or the first of them is shown and named.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from matplotlib import style
from matplotlib.figure import Figure

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.figures.calibration import reliability
from mlpip_bench.reporting.figures.comparison import cost, learning
from mlpip_bench.reporting.figures.curves import curves
from mlpip_bench.reporting.figures.paper import posterior, samples, versatility
from mlpip_bench.reporting.figures.pictures import reconstruction, weights
from mlpip_bench.reporting.figures.profile import profile
from mlpip_bench.reporting.figures.scores import scores
from mlpip_bench.reporting.figures.steps import steps
from mlpip_bench.reporting.figures.style import STYLE
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically
from mlpip_bench.utils.naming import family_of
from mlpip_bench.utils.provenance import STAND_INS

# -------------------------------------------------------------------------------------------------------- writing


class FigureKind(NamedTuple):
    """A kind of figure.

    Attributes:
        draw: takes the records of one group and one data set, and published rows, and gives ``None`` where they have
            nothing to show.
        by: the group of a record, as parts of the file's name; the first is what the title names.
    """

    draw: Callable[[Sequence[Record], Sequence[Published]], Figure | None]
    by: Callable[[Record], tuple[str, ...]]


def _bench(record: Record) -> tuple[str, ...]:
    return (record.bench,)


def _bench_and_method(record: Record) -> tuple[str, ...]:
    return record.bench, record.method


def _benches(record: Record) -> tuple[str, ...]:
    """All benches of a data set, whose names begin with it."""
    return (family_of(record.bench),)


def _ours(draw: Callable[[Sequence[Record]], Figure | None]) -> Callable[..., Figure | None]:
    """A figure without published rows."""
    return lambda records, _: draw(records)


FIGURES: Mapping[str, FigureKind] = MappingProxyType(
    {
        "scores": FigureKind(scores, _benches),
        "profile": FigureKind(_ours(profile), _benches),
        "learning": FigureKind(_ours(learning), _bench),
        "cost": FigureKind(_ours(cost), _bench),
        "reliability": FigureKind(_ours(reliability), _bench),
        "steps": FigureKind(_ours(steps), _bench),
        "posterior": FigureKind(_ours(posterior), _bench),
        "samples": FigureKind(_ours(samples), _benches),
        "versatility": FigureKind(_ours(versatility), _benches),
        "weights": FigureKind(_ours(weights), _bench_and_method),
        "reconstruction": FigureKind(_ours(reconstruction), _bench),
        "curves": FigureKind(_ours(curves), _bench),
    }
)

_SEVERAL_SOURCES = ("views",)  # their files name the data set whatever other records there are


def draw_figures(records: Sequence[Record], quoted: Sequence[Published] = ()) -> Iterator[tuple[str, Figure]]:
    """Name and figure of all that the records can show.

    Data sets have figures of their own, and are named where a bench has records of several or may have.
    """
    names: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for record in records:
        names[_benches(record)[0], record.data["source"] in STAND_INS].add(record.data.get("name", ""))
    for name, (draw, by) in FIGURES.items():
        groups: dict[tuple[tuple[str, ...], bool, str], list[Record]] = defaultdict(list)
        for record in records:
            groups[by(record), record.data["source"] in STAND_INS, record.data.get("name", "")].append(record)
        for (parts, stand_in, data), group in sorted(groups.items()):
            figure = draw(group, quoted)
            if figure is None:
                continue
            family = _benches(group[0])[0]
            named = len(names[family, stand_in]) > 1 or family in _SEVERAL_SOURCES
            shown_on = parts[0] + (f" ({data})" if named else "") + (", stand-in data" if stand_in else "")
            figure.suptitle(f"{figure.get_suptitle()} on {shown_on}")
            yield "-".join([name, *parts, *([data] if named else []), *(["stand-in"] if stand_in else [])]), figure


def write_figures(
    records: Sequence[Record], results: Path, quoted: Sequence[Published] = (), folder: Path | None = None
) -> list[Path]:
    """Write ``<figure>-<bench>.png`` and ``.pdf`` to a folder, or ``results/figures``, for all that records can show.

    Figures on stand-in data are separate, with ``-stand-in`` in their names. The same records give the same bytes.

    Returns:
        The files written.

    Raises:
        UserError: no record has anything to show, or a file cannot be written.
    """
    written = []
    with style.context(STYLE):
        for stem, figure in draw_figures(records, quoted):
            for suffix, options in (("png", {"dpi": 200}), ("pdf", {"metadata": {"CreationDate": None}})):
                content = io.BytesIO()
                figure.savefig(content, format=suffix, **options)
                figure.set_layout_engine(None)  # once, for both
                path = (folder or results / "figures") / f"{stem}.{suffix}"
                write_atomically(path, content.getvalue())
                written.append(path)
    if not written:
        raise UserError(
            f"figures are made from records; there are none below {results / 'records'} that one can be drawn from. "
            "Make some first, for example with "
            "`python -m mlpip_bench run --methods versa,maml --bench mini5w5s --protocols calibration`."
        )
    return written

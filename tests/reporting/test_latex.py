"""LaTeX tables against the metrics of Computer Modern, which matplotlib ships."""

import functools
import re
from pathlib import Path

import matplotlib
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from builders import make_record, make_scores
from mlpip_bench.records import published
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.latex import TEXT_WIDTH, points, to_latex
from mlpip_bench.reporting.selection import shown
from mlpip_bench.reporting.table import WideTable
from mlpip_bench.reporting.tables.paired import method_differences, paired_tables
from mlpip_bench.reporting.tables.scores import wide_tables

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
SMALL = 9.0  # points, of \small in a document of 10
BENCHES = ("omni5w1s", "omni5w5s", "omni20w1s", "omni20w5s", "mini5w1s", "mini5w5s", "tiny5w1s", "tiny5w5s")


@functools.cache
def width(text: str, bold: bool = False) -> float:
    """Points of a text of letters, digits and the plus-minus sign, which is as wide as a plus in another font."""
    font = FontProperties(fname=str(FONTS / ("cmb10.ttf" if bold else "cmr10.ttf")))
    marked = text.replace("±", "+")
    ends = TextPath((0, 0), f"{marked}.", size=SMALL, prop=font).get_extents().x1
    return float(ends)


def plain(cell: str) -> tuple[str, bool]:
    """What a cell shows, and whether it is bold."""
    bold = r"\textbf" in cell
    text = re.sub(r"\\textbf\{(.*?)\}", r"\1", cell).replace(r"$\pm$", "±").replace(r"\_", "_").replace(r"\%", "%")
    return text.strip(), bold


def tabulars(latex: str) -> list[list[list[str]]]:
    """Rows of cells of each tabular."""
    bodies = re.findall(r"(?s)\\begin\{tabular\}\{@\{\}.*?@\{\}\}\n(.*?)\\end\{tabular\}", latex)
    return [
        [line.removesuffix(r" \\").split(" & ") for line in body.splitlines() if line.endswith(r"\\")]
        for body in bodies
    ]


def many(seeds: int = 1) -> list[Record]:
    methods = ("versa", "amortized_vi", "nonamortized_vi", "maml", "protonets")
    return [
        make_record(
            make_scores([0.5 + 0.01 * m + 0.02 * t for t in range(9)], bench=bench),
            bench=bench, method=method, seed=seed, settings={"a_long_name_of_a_setting": "x" * 30},
        )
        for bench in BENCHES for m, method in enumerate(methods) for seed in range(seeds)
    ]  # fmt: skip


def tables(seeds: int) -> list[WideTable]:
    named = shown(many(seeds))
    return [*wide_tables(named.records, named.quoted), *paired_tables(method_differences(named.records))]


@pytest.mark.parametrize("seeds", [1, 3])
def test_tables_fit_the_narrowest_text_column(seeds: int) -> None:
    for table in tables(seeds):
        latex = to_latex(table)
        assert r"\setlength{\tabcolsep}{4pt}" in latex
        for rows in tabulars(latex):
            columns = list(zip(*rows, strict=True))
            total = sum(max(width(*plain(cell)) for cell in column) for column in columns) + 8 * (len(columns) - 1)
            assert total <= TEXT_WIDTH == 397


def test_no_number_is_lost_between_the_parts() -> None:
    (table, *_) = tables(1)
    cells = [cell for rows in tabulars(to_latex(table)) for row in rows for cell in row[1:]]
    for row in (*table.rows, *table.published):
        for number in row.cells.values():
            assert any(number.text.split(" ")[0] in cell for cell in cells), number
    heads = [head for rows in tabulars(to_latex(table)) for head in rows[0][1:]]
    assert heads == [bench.replace("_", r"\_") for bench in table.benches]


@pytest.mark.parametrize("text", ["96.98 ± 0.31", "Non-Amortized VI", "omni100w1s", "nonamortized_vi", "MAML", "WWMM%"])
@pytest.mark.parametrize("bold", [False, True])
def test_widths_are_a_little_too_wide(text: str, bold: bool) -> None:
    assert width(text, bold) <= points(text, bold=bold) <= 1.45 * width(text, bold)


def test_floats_fit_a_page_and_notes_are_ragged_right_and_not_of_single_rows() -> None:
    records = [make_record(make_scores((0.1, 0.2, 0.1 + n / 100)), settings={"n": n}) for n in range(90)]
    (table,) = wide_tables(records, published.load())
    latex = to_latex(table)
    floats = latex.split(r"\begin{table}")[1:]
    assert len(floats) > 2
    assert all(part.count(r"\\") < 50 for part in floats)
    assert latex.count(r"\raggedright\footnotesize") == 1
    assert "continued" in floats[1]
    labels = re.findall(r"\\label\{(.*?)\}", latex)
    assert len(set(labels)) == len(labels) == len(floats)
    assert "[1]" not in latex


def test_a_label_has_no_character_that_ends_it() -> None:
    score = make_scores(metric="a}b%", unit="unit")
    (table,) = wide_tables([make_record(score)], [])
    assert r"\label{tab:ab}" in to_latex(table)

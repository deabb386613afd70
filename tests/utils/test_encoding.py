"""Texts of strangers as cells: what a spreadsheet or a browser would obey is a text."""

import csv
import io

import pytest

from builders import make_record, make_scores
from mlpip_bench.reporting.tables.long import long_csv
from mlpip_bench.utils.encoding import for_csv, for_markdown


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1+1", "-1+1", "@SUM(A1)", "\tx", "\r=1"])
def test_no_text_is_a_formula(text):
    assert for_csv(text) == "'" + text


@pytest.mark.parametrize("text", ["accuracy", "-1.5", "+2", "1e-3", "", "5w1s"])
def test_numbers_and_plain_texts_stay(text):
    assert for_csv(text) == text


def test_no_text_is_a_tag_or_a_second_row():
    assert for_markdown("<img src=x onerror=y>\n| a | b") == r"&lt;img src=x onerror=y> \| a \| b"


def test_no_cell_of_a_csv_file_begins_as_a_formula():
    scores = make_scores(condition={"asked": "=HYPERLINK(1)"}, unit="=1+1")
    rows = list(csv.DictReader(io.StringIO(long_csv([make_record(scores)]))))
    assert rows[0]["unit"] == "'=1+1"
    assert all(not cell.startswith("=") for row in rows for cell in row.values())

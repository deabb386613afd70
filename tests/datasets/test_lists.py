"""Lists as spreadsheets and other programs write them."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlpip_bench.datasets.lists import read_list
from mlpip_bench.utils.errors import UserError

FIELD = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1)


@given(
    rows=st.lists(st.tuples(FIELD, FIELD), min_size=1),
    delimiter=st.sampled_from(",;\t"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    end=st.sampled_from(["\n", "\r\n"]),
    index=st.booleans(),
)
def test_any_form_gives_the_same_rows(rows, delimiter, encoding, end, index, tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "list.csv"
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerow([*([""] if index else []), "label", " filename"])
    writer.writerows([*([str(i)] if index else []), label, name] for i, (name, label) in enumerate(rows))
    path.write_bytes(text.getvalue().encode(encoding))
    assert read_list(path, ("filename", "label")) == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"filename,class\na,b\n", "it lacks label: its first line has filename, class. Name the columns so"),
        (b"a,b\n", "it lacks filename,label"),
        (b"filename,label\na\n", "line 2 has too few fields"),
        (b"filename,label\n", "it has no row"),
        (b"\n\n", "it is no csv"),
        (b"", "it is empty"),
        (b"<html>", "it is a web page"),
        (b"filename,label\na,b,c\n", "line 2 has more fields than the first. Quote what has a comma"),
        ("filename,label\nMöwe,b\n".encode("latin-1"), "byte 16 begins no character of it. Save it as UTF-8"),
        (b'filename,label\n"a,b\n', "damaged"),
        (b"filename,label\n" + b"x" * 200_000 + b",b\n", "damaged"),
    ],
    ids=range(11),
)
def test_what_is_wrong_is_named(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(UserError, match=rf"list\.csv must be a csv with the columns filename,label.*{message}"):
        read_list(tmp_path / "list.csv", ("filename", "label"))

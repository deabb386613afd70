"""Lists in csv files, as spreadsheets and other programs write them."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Sequence
from pathlib import Path

from mlpip_bench.datasets.archives import broken
from mlpip_bench.datasets.reading import listed
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import read_file

_MOST = 2**26  # bytes; the longest list here has 2 MB


def read_list(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """The named columns of a csv file, a tuple a row, without spaces around them.

    The fields may be separated by commas, semicolons or tabs, and there may be other columns, an index for example.

    Args:
        path: the file.
        columns: names; of several with ``|`` between them, the first that is there.
        optional: further columns, which are empty texts where they are not there.

    Raises:
        UserError: it cannot be read, is no csv, lacks a column or has no row.
    """
    what = f"a csv with the columns {','.join(columns)}"
    try:
        # A reader that is strict says where a quote is not closed.
        text = _decoded(read_file(path, _MOST))
        first = text.lstrip("\r\n").partition("\n")[0]
        if not first.strip() or first.lstrip().startswith("<"):
            raise ValueError("it is no csv")
        rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
        rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
        chosen = {
            names: next((name for name in names.split("|") if name in rows.fieldnames), None)
            for names in (*columns, *optional)
        }
        if missing := [names for names in columns if chosen[names] is None]:
            raise UserError(
                f"{path} must be {what}; it lacks {','.join(missing)}: its first line has {listed(rows.fieldnames)}. "
                "Name the columns so."
            )
        if twice := next((n for n in chosen.values() if n is not None and rows.fieldnames.count(n) > 1), None):
            raise UserError(f"each column of {path} must have a name of its own; {twice!r} is there twice. Rename one.")
        found = []
        for row in rows:
            if None in row:
                raise UserError(
                    f"{path} must be {what}; line {rows.line_num} has more fields than the first. Quote what has a "
                    "comma."
                )
            fields = ["" if name is None else row[name] for name in chosen.values()]
            if None in fields:
                raise UserError(f"{path} must be {what}; line {rows.line_num} has too few fields. Add what is missing.")
            found.append(tuple(field.strip() for field in fields))
        if not found:
            raise UserError(f"{path} must be {what}; it has no row below its first line. Add some.")
        return found
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} must be {what}, a text in UTF-8; byte {error.start} begins no character of it. Save it as UTF-8."
        ) from error
    except (OSError, ValueError, csv.Error) as error:
        raise broken(path, what, getattr(error, "strerror", None) or error) from error


def _decoded(content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16")
    return content.decode("utf-8-sig")

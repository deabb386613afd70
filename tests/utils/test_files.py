"""Where files are written, and where they are not."""

import os

import pytest

from builders import invoke, make_record
from mlpip_bench.records import store
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_nothing_is_renamed_over_a_link_a_pipe_or_a_folder(tmp_path):
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    for name in ("link", "dangling", "pipe", "folder"):
        with pytest.raises(UserError, match="it is a link, a folder, a pipe or a device"):
            write_atomically(tmp_path / name, b"x")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "kept").read_text() == "kept"


def test_a_report_is_written_over_no_record_and_tables_do_not_leave_their_folder(tmp_path):
    record = store.save(make_record(), tmp_path / "results")
    before = record.read_bytes()
    result = invoke("report", "--results", tmp_path / "results", "--output", record)
    assert result.exit_code == 2
    assert f"{record} is there" in result.output
    assert record.read_bytes() == before
    (tmp_path / "outside").mkdir()
    for kind, command in (("figures", "figures"), ("tables", "table")):
        (tmp_path / "results" / kind).symlink_to(tmp_path / "outside")
        result = invoke(command, "--results", tmp_path / "results")
        assert result.exit_code == 2, result.output
        assert f"{tmp_path / 'results' / kind} is a link" in result.output
    assert not list((tmp_path / "outside").iterdir())

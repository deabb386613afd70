"""Hostile files: nothing in them is executed, nothing is written outside, and there is one message."""

import io
import json
import os
import pickle
import shutil
import stat
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from builders import write_record

TINY = ["--iterations", 1, "--test-tasks", 2, "--set", "validation_tasks=2"]
ABSOLUTE = "/tmp/mlpip_bench_outside.png"
OUTSIDE = ("../outside.png", "a/../../outside.png", ABSOLUTE, "..\\outside.png", "C:\\outside.png")


class Payload:
    """Unpickled without care, it writes a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.trace),))


def write_zip(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)


def link_in_a_zip() -> zipfile.ZipInfo:
    member = zipfile.ZipInfo("a/1.png")
    member.create_system, member.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return member


def declare_size(path: Path, size: int) -> None:
    """Change the size that a zip's directory gives for its only member."""
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.index(b"PK\x01\x02") + 24, size)
    path.write_bytes(content)


def write_tar(path: Path, name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> None:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, size
        archive.addfile(member, io.BytesIO(bytes(size)))


def omniglot(root: Path) -> Path:
    (root / "omniglot").mkdir()
    write_zip(root / "omniglot" / "images_evaluation.zip", ("a/character01/1.png", b"1"))
    return root / "omniglot" / "images_background.zip"


def tiny_imagenet(root: Path) -> Path:
    (root / "tiny-imagenet-32").mkdir()
    for split in ("val", "test"):
        write_tar(root / "tiny-imagenet-32" / f"{split}.tar", "n1/1.png")
    return root / "tiny-imagenet-32" / "train.tar"  # the first that is read


def mini_imagenet(root: Path, name: str) -> Path:
    (root / "miniimagenet").mkdir()
    return root / "miniimagenet" / name


def make_zip(root: Path, case: str) -> Path:
    path = omniglot(root)
    if case == "link":
        write_zip(path, (link_in_a_zip(), b"/etc/passwd"))
    elif case == "more than is said":
        write_zip(path, ("a/1.png", bytes(2**24)))
        declare_size(path, 10)
    elif case == "bomb":
        write_zip(path, ("a/1.png", bytes(1000)))
        declare_size(path, 2**32 - 2)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("a/2.png", bytes(1000))
    else:
        write_zip(path, (case, b"1"))
    return path


def make_tar(root: Path, case: str) -> Path:
    path = tiny_imagenet(root)
    kinds = {"link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "device": tarfile.CHRTYPE, "pipe": tarfile.FIFOTYPE}
    if case in kinds:
        write_tar(path, "n1/1.png", kinds[case], "/etc/passwd" if "link" in case else "")
    else:
        write_tar(path, case)
    return path


def make_pickle(root: Path, case: str) -> Path:
    trace = root / "trace"
    if case == "pickled dict":
        names = [f"mini-imagenet-cache-{split}.pkl" for split in ("train", "val", "test")]
        content = pickle.dumps({"image_data": Payload(trace), "class_dict": {}})
    else:
        names = ["train.npy", "validation.npy", "test.npy"]
        buffer = io.BytesIO()
        np.save(buffer, np.array([Payload(trace)], dtype=object))
        content = buffer.getvalue()
    folder = mini_imagenet(root, "")
    for name in names:
        (folder / name).write_bytes(content)
    return folder / names[0]


CASES = [
    *((make_zip, "omni5w1s", case) for case in (*OUTSIDE, "link", "bomb", "more than is said")),
    *((make_tar, "tiny5w1s", case) for case in (*OUTSIDE, "link", "hard link", "device", "pipe")),
    *((make_pickle, "mini5w5s", case) for case in ("pickled dict", "pickled array")),
]


@pytest.mark.parametrize(("make", "bench", "case"), CASES)
def test_hostile_data(make, bench, case, tmp_path, call, one_message, tell):
    root = tmp_path / "data" / "root"
    root.mkdir(parents=True)
    path = make(root, case)
    before = sorted(tmp_path.rglob("*"))
    arguments = ["--methods", "protonets", "--bench", bench, "--data-root", root, *TINY]
    one_message(call("run", *arguments, "--results", tmp_path / "results"), path)
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path(ABSOLUTE).exists()
    tell("hostile files refused", 1)


def test_the_payload_is_a_real_one(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "trace")))
    assert (tmp_path / "trace").exists()


def test_a_hostile_checkpoint(tmp_path, run, one_message, tell):
    assert run(tmp_path / "results").exit_code == 0
    for path in (tmp_path / "results" / "checkpoints").rglob("*.pt"):
        torch.save({**torch.load(path, weights_only=True), "history": Payload(tmp_path / "trace")}, path)
        one_message(run(tmp_path / "results", "--overwrite", "always"), path, "Delete it")
        assert not (tmp_path / "trace").exists()
        path.unlink()
        tell("hostile files refused", 1)


@pytest.mark.parametrize("field", ["bench", "method", "protocol", "metric", "data"])
def test_a_hostile_record(field, tmp_path, run, call, one_message, tell):
    folder = tmp_path / "a" / "b" / "results"
    assert run(folder).exit_code == 0
    shutil.rmtree(folder / "tables")
    path = next((folder / "records").rglob("posterior-*.json"))
    raw = json.loads(path.read_text())
    owner = {"metric": raw["scores"][0], "data": raw["data"]}.get(field, raw)
    owner["name" if field == "data" else field] = "x/../../../outside"
    write_record(path, raw)
    before = sorted(tmp_path.rglob("*"))
    for command in ("table", "figures"):
        one_message(call(command, "--results", folder), path, "x/../../../outside")
    assert sorted(tmp_path.rglob("*")) == before
    tell("hostile files refused", 1)


# What is broken rather than hostile must not make way for the stand-in either.


def make_truncated_archive(root: Path) -> None:
    (root / "omniglot").mkdir()
    (root / "omniglot" / "images_background.zip").write_bytes(b"PK\x03\x04 and no more")


def make_empty_archive(root: Path) -> None:
    (root / "tiny-imagenet-32").mkdir()
    for name in ("train.tar", "val.tar", "test.tar"):
        (root / "tiny-imagenet-32" / name).write_bytes(b"")


def make_wrong_layout(root: Path) -> None:
    (root / "miniimagenet" / "pictures").mkdir(parents=True)
    (root / "miniimagenet" / "readme.txt").write_text("moved")


@pytest.mark.parametrize(
    ("make", "bench", "says"),
    [
        (make_truncated_archive, "omni5w1s", ["images_background.zip"]),
        (make_empty_archive, "tiny5w1s", [".tar"]),
        (make_wrong_layout, "mini5w5s", ["known layout", "pictures"]),
    ],
)
def test_bad_data_never_makes_way_for_the_stand_in(make, bench, says, tmp_path, call, one_message):
    make(tmp_path)
    source = ["--source", "real"] if make is make_wrong_layout else []
    arguments = ["--methods", "protonets", "--bench", bench, "--data-root", tmp_path, *source, *TINY]
    one_message(call("run", *arguments, "--results", tmp_path / "results"), *says)
    assert not (tmp_path / "results").exists()

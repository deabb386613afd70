import io
import os
import pickle
import pickletools
import sys
import tarfile
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from mlpip_bench.datasets.archives import read_tar, read_zip
from mlpip_bench.datasets.arrays import read_npy, read_npz
from mlpip_bench.datasets.lists import read_list
from mlpip_bench.datasets.reading import decode, file_picture
from mlpip_bench.datasets.unpickling import load_plain_pickle
from mlpip_bench.utils.errors import UserError

Reader = Callable[[Path, Callable[[PurePosixPath], bool]], dict[PurePosixPath, bytes]]
READERS = {"zip": read_zip, "tar": read_tar}
HTML = b"\n<!DOCTYPE html><html><body>Sign in to download</body></html>"


def everything(_name: PurePosixPath) -> bool:
    return True


def write(path: Path, members: list[tuple[str, bytes]], folders: tuple[str, ...] = ()) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for folder in folders:
                archive.writestr(folder + "/", b"")
            for name, content in members:
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w") as archive:
        for folder in folders:
            info = tarfile.TarInfo(folder)
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture(params=["zip", "tar"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_members_that_are_wanted_come_back(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a b.{kind}", [("x/1.png", b"one"), ("x/note", b"no"), ("2.png", b"two")], ("x",))
    got = READERS[kind](path, lambda name: name.suffix == ".png")
    assert got == {PurePosixPath("x/1.png"): b"one", PurePosixPath("2.png"): b"two"}


@pytest.mark.parametrize("name", ["/etc/passwd", "../up.png", "a/../../up.png", "..\\up.png", "C:\\up.png"])
def test_members_outside_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    path = write(tmp_path / f"hostile.{kind}", [("fine.png", b"1"), (name, b"2")])
    with pytest.raises(UserError, match=r"hostile.*which points outside it"):
        READERS[kind](path, everything)


def test_links_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "l.tar", "w") as tar:
        info = tarfile.TarInfo("x/1.png")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with zipfile.ZipFile(tmp_path / "l.zip", "w") as archive:
        member = zipfile.ZipInfo("x/1.png")
        member.create_system, member.external_attr = 3, 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    for kind, reader in READERS.items():
        with pytest.raises(UserError, match="a link"):
            reader(tmp_path / f"l.{kind}", everything)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_is_refused(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"twice.{kind}", [("a.png", b"1"), ("a.png", b"2")])
    with pytest.raises(UserError, match=r"'a\.png', twice"):
        READERS[kind](path, everything)


def test_an_empty_folder_is_named(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"hollow.{kind}", [("a/1.png", b"1")], ("a", "b"))
    with pytest.raises(UserError, match=r"hollow.*'b'"):
        READERS[kind](path, everything)


def test_a_bomb_is_refused_before_it_is_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlpip_bench.datasets.archives.SIZE_LIMIT", 100)
    path = write(tmp_path / f"bomb.{kind}", [("a", b"1" * 60), ("b", b"1" * 60)])
    with pytest.raises(UserError, match=r"bomb.*'b', with which it unpacks to more than"):
        READERS[kind](path, everything)


def test_nothing_and_web_pages_are_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"download.{kind}"
    with pytest.raises(UserError, match="cannot be read: No such file"):
        READERS[kind](path, everything)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"download.*it is empty \(0 bytes\)"):
        READERS[kind](path, everything)
    path.write_bytes(HTML)
    with pytest.raises(UserError, match=r"download.*it is a web page"):
        READERS[kind](path, everything)


def test_an_archive_cut_anywhere_is_noticed(tmp_path: Path, kind: str) -> None:
    whole = write(tmp_path / f"whole.{kind}", [(f"c/{i}.png", bytes([i]) * 700) for i in range(4)])
    content = whole.read_bytes()
    end = 4 * (512 + 1024) if kind == "tar" else len(content)  # a tar ends in zeros, of which any two blocks do
    cut = tmp_path / f"cut.{kind}"
    for length in range(1, end, 97 if kind == "zip" else 256):
        cut.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"cut\..* (damaged or cut short|empty)"):
            READERS[kind](cut, everything)


def test_a_changed_byte_in_a_zip_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "flipped.zip", [("a.png", b"content of a picture")])
    content = path.read_bytes()
    path.write_bytes(content.replace(b"content", b"kontent", 1))
    with pytest.raises(UserError, match="damaged or cut short"):
        read_zip(path, everything)


def test_a_damaged_header_inside_a_tar_is_not_taken_for_its_end(tmp_path: Path) -> None:
    path = write(tmp_path / "flipped.tar", [("a.png", b"1"), ("b.png", b"2")])
    content = bytearray(path.read_bytes())
    content[1024] ^= 1  # the second member's name
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged or cut short"):
        read_tar(path, everything)


class Payload:
    """Unpickled without care, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, (f"__import__('pathlib').Path({str(self.path)!r}).touch()",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_is_refused_unexecuted(tmp_path: Path, protocol: int) -> None:
    trace, path = tmp_path / "trace", tmp_path / "hostile.pkl"
    path.write_bytes(pickle.dumps({"image_data": Payload(trace)}, protocol=protocol))
    with pytest.raises(UserError, match=r"hostile\.pkl asks for (builtins|__builtin__)\.exec"):
        load_plain_pickle(path)
    assert not trace.exists()
    pickle.loads(path.read_bytes())  # the payload is a real one
    assert trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0fdtype.__class__\x93.",
        b"cbuiltins\ngetattr\n.",
        b"cbuiltins\neval\n.",
        b"c_codecs\ndecode\n.",
    ],
)
def test_other_globals_are_refused(tmp_path: Path, content: bytes) -> None:
    pickletools.dis(content, out=io.StringIO())  # it is a pickle
    path = tmp_path / "p.pkl"
    path.write_bytes(content)
    with pytest.raises(UserError, match="asks for"):
        load_plain_pickle(path)


class Call:
    """Pickles as a call, and a state to set on its result."""

    def __init__(self, function: object, arguments: tuple[object, ...], *state: object) -> None:
        self.reduced = (function, arguments, *state)

    def __reduce__(self) -> tuple[object, ...]:
        return self.reduced


FORGED = b"\x41" * 8  # a pointer, were it taken for one
RECONSTRUCT = np.zeros(1).__reduce__()[0]
FROMBUFFER = np.zeros(1).__reduce_ex__(5)[0]
PLAIN_STATE = (3, "|", None, None, None, -1, -1, 0)  # clears the flags that protect object arrays


@pytest.mark.parametrize(
    "forgery",
    [
        Call(
            RECONSTRUCT,
            (np.ndarray, (0,), b"b"),
            (1, (1,), Call(np.dtype, ("O8", False, True), PLAIN_STATE), False, FORGED),
        ),
        Call(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), np.dtype([("a", "O")]), False, FORGED)),
        Call(np.ndarray, ((1,), "O8", FORGED)),
        Call(FROMBUFFER, (FORGED, "O8", (1,), "C")),
        Call(np.uint8(0).__reduce__()[0], (Call(np.dtype, ("O8", False, True), PLAIN_STATE), FORGED)),
        np.array([{}], dtype=object),
    ],
)
def test_forged_arrays_of_objects_are_refused(tmp_path: Path, forgery: object) -> None:
    path = tmp_path / "forged.pkl"
    for protocol in (2, 5):
        path.write_bytes(pickle.dumps({"image_data": forgery}, protocol=protocol))
        with pytest.raises(UserError, match=r"forged\.pkl (asks for (values of dtype|a call of)|must be a pickle)"):
            load_plain_pickle(path)


def test_flags_of_a_dtype_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "p.pkl"
    changed = Call(np.dtype, ("u1", False, True), (3, "|", None, ("a",), {"a": (np.dtype("i1"), 0)}, 8, 1, 63))
    path.write_bytes(pickle.dumps(changed))
    assert load_plain_pickle(path) is np.dtype("u1")
    assert np.dtype("u1").names is None
    assert np.dtype("u1").flags == 0


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_and_arrays_load(tmp_path: Path, protocol: int) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    data = {
        "image_data": array,
        "fortran": np.asfortranarray(array),
        "empty": np.zeros((0, 3), np.float32),
        "class_dict": OrderedDict(n01=[0, 1], n02=list(np.arange(2))),
        "kinds": (1, 2.5, "text", b"bytes\xff", None, True, {1, 2}, 2**80),
    }
    path = tmp_path / "p.pkl"
    path.write_bytes(pickle.dumps(data, protocol=protocol))
    got = load_plain_pickle(path)
    assert isinstance(got, dict)
    assert got.keys() == data.keys()
    for name in ("image_data", "fortran", "empty"):
        np.testing.assert_array_equal(got[name], data[name], strict=True)
    assert got["class_dict"] == data["class_dict"]
    assert got["kinds"] == data["kinds"]


def test_both_generations_of_numpy_load(tmp_path: Path) -> None:
    content = pickle.dumps(np.arange(5, dtype=np.int16), protocol=2)
    path = tmp_path / "p.pkl"
    for core in (b"numpy.core.multiarray", b"numpy._core.multiarray"):
        # Protocol 2 names globals in lines of text, so they can be renamed in place.
        path.write_bytes(
            content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray").replace(b"numpy.core.multiarray", core)
        )
        np.testing.assert_array_equal(load_plain_pickle(path), np.arange(5, dtype=np.int16))


def test_python_2_pickles_load(tmp_path: Path) -> None:
    # As Python 2.7 writes {'image_data': numpy.array([1, 200], 'u1'), 'class_dict': {'n01': [0L, 1]}} at protocol 2:
    # byte strings are BINSTRINGs ('U'), which Python 3 cannot read as ASCII.
    content = (
        b"\x80\x02}q\x00(U\x0aimage_dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04"
        b"U\x01bq\x05\x87q\x06Rq\x07(K\x01K\x02\x85q\x08cnumpy\ndtype\nq\x09U\x02u1q\x0aK\x00K\x01\x87q\x0bRq\x0c"
        b"(K\x03U\x01|q\x0dNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0eb\x89U\x02\x01\xc8q\x0ftq\x10b"
        b"U\x0aclass_dictq\x11}q\x12U\x03n01q\x13]q\x14(\x8a\x00K\x01esu."
    )
    path = tmp_path / "p.pkl"
    path.write_bytes(content)
    got = load_plain_pickle(path)
    assert isinstance(got, dict)
    np.testing.assert_array_equal(got["image_data"], np.array([1, 200], np.uint8), strict=True)
    assert got["class_dict"] == {"n01": [0, 1]}


def test_the_causes_of_broken_pickles_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.pkl"
    for content, message in ((b"", "empty"), (HTML, "web page"), (pickle.dumps(np.zeros(99))[:-40], "cut short")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"p\.pkl.*{message}"):
            load_plain_pickle(path)


# What is well formed, and made to take a machine's memory or time.


def pickled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


NATIVE = "<" if sys.byteorder == "little" else ">"
FOREIGN = ">" if NATIVE == "<" else "<"


def nested_tuples(depth: int) -> bytes:
    """``(((...),),)``, as a key of a dict."""
    return b"\x80\x02})" + b"\x85" * depth + b"Ns."


def doubled_tuples(times: int, around: bytes = b"%s") -> bytes:
    """``x = (x, x)`` so many times: few instructions, and 2 ** times parts."""
    return b"\x80\x02" + around % (b")" + b"2\x86" * times) + b"."


@pytest.mark.parametrize(
    "code", [f"{FOREIGN}i8", f"{FOREIGN}f4", "O", "O8", "V8", "i8,O", "(2,)u1", "u1" + "," * 5000, "M8"]
)
def test_dtypes_that_are_no_native_numbers_are_refused(tmp_path: Path, code: str) -> None:
    # numpy makes a new dtype for them, whose flags and fields a pickle could set: a pointer would be taken for data.
    flagged = Call(np.dtype, (code, False, True), (3, NATIVE, None, ("a",), {"a": (np.dtype("u1"), 0)}, 8, 8, 63))
    for content in (Call(np.dtype, (code, False, True)), flagged):
        path = pickled(tmp_path / "p.pkl", pickle.dumps(content, protocol=2))
        with pytest.raises(UserError, match=r"p\.pkl asks for (values of dtype|numbers in the byte order)"):
            load_plain_pickle(path)


def test_numbers_of_another_byte_order_are_refused_and_not_misread(tmp_path: Path) -> None:
    path = pickled(tmp_path / "p.pkl", pickle.dumps(np.arange(3, dtype=f"{FOREIGN}i4"), protocol=2))
    with pytest.raises(UserError, match="asks for numbers in the byte order of another machine"):
        load_plain_pickle(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nested_tuples(300_000), "a tuple as a key"),
        (nested_tuples(10), "a tuple as a key"),
        (doubled_tuples(100, b"}%sNs"), "a tuple as a key"),
        (doubled_tuples(100, b"(%s\x91"), "a tuple as a key"),  # frozenset
        (b"\x80\x02" + b"\x8b" + (2**19).to_bytes(4, "little") + b"\x7f" * 2**19 + b".", "a number of 4194303 bits"),
        (b"c__builtin__\nbytes\n(I1000000000000\ntR.", "must be a pickle"),
        (
            b"c_codecs\nencode\nq\x00(V" + b"x" * 100_000 + b"\nVlatin1\ntq\x01" + b"h\x00h\x01R" * 1000 + b".",
            "more than it holds",
        ),
        (b"ccollections\nOrderedDict\n}b.", "a state of a _Global"),
        (b"ccollections\nOrderedDict\nccollections\nOrderedDict\n\x86R.", "must be a pickle"),
        (b"(i__builtin__\nlist\n.", "the instruction INST"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f" + b"x.", "must be a pickle"),  # bytes of 2 ** 63
    ],
    ids=range(11),
)  # fmt: skip
def test_pickles_that_would_take_all_memory_or_time(tmp_path: Path, content: bytes, message: str) -> None:
    path = pickled(tmp_path / "p.pkl", content)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=message):
            load_plain_pickle(path)
        assert tracemalloc.get_traced_memory()[1] < 60 * len(content) + 2**20
    finally:
        tracemalloc.stop()


def test_containers_in_containers_load_at_any_depth(tmp_path: Path) -> None:
    path = pickled(tmp_path / "p.pkl", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    found, depth = load_plain_pickle(path), 1
    while found:
        assert isinstance(found, list)
        found, depth = found[0], depth + 1
    assert depth == 100_000
    assert len(load_plain_pickle(pickled(path, doubled_tuples(100)))) == 2  # type: ignore[arg-type]


def test_a_name_of_gigabytes_in_a_tar_is_not_read(tmp_path: Path) -> None:
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = kind, 3 * 2**30
        path = tmp_path / "long.tar"
        with path.open("wb") as file:
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            file.truncate(info.size + 4096)  # takes 8 kB of the disk
        tracemalloc.start()
        try:
            with pytest.raises(UserError, match=r"long\.tar.*a name in it has 3221225472 bytes"):
                read_tar(path, everything)
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()


def test_a_tar_with_holes_and_one_of_too_many_members_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tarfile.TarInfo("a.png")
    info.type = tarfile.GNUTYPE_SPARSE
    (tmp_path / "holes.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(UserError, match="a file with holes"):
        read_tar(tmp_path / "holes.tar", everything)
    monkeypatch.setattr("mlpip_bench.datasets.archives.MEMBERS_LIMIT", 2)
    for kind, reader in READERS.items():
        path = write(tmp_path / f"many.{kind}", [(f"{i}.png", b"") for i in range(3)])
        with pytest.raises(UserError, match="with which it has more than 2 members"):
            reader(path, everything)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "endless"):
        for reader in (
            lambda path: read_zip(path, everything),
            lambda path: read_tar(path, everything),
            load_plain_pickle,
            lambda path: read_npy(path, 100),
            lambda path: read_npz(path, ["x"], 100),
            lambda path: read_list(path, ["x"]),
            lambda path: decode(file_picture(path), "L"),
        ):
            with pytest.raises(UserError, match=r"it is a folder, a pipe or a device, not a file"):
                reader(path)

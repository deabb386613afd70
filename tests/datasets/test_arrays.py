import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mlpip_bench.datasets.arrays import read_npy, read_npz
from mlpip_bench.utils.errors import UserError

MOST = 2**20


def npy(header: str, values: bytes = b"", version: int = 1) -> bytes:
    """A file with a header that NumPy would not write."""
    text = header.encode("latin1")
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text + values


def described(shape: str, dtype: str = "|u1") -> str:
    return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"


def from_npy(folder: Path, content: bytes) -> np.ndarray:
    (folder / "a.npy").write_bytes(content)
    return read_npy(folder / "a.npy", MOST)


def from_npz(folder: Path, content: bytes) -> np.ndarray:
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    return read_npz(folder / "a.npz", ["x"], MOST)["x"]


@pytest.fixture(params=[from_npy, from_npz], ids=["npy", "npz"])
def read(request: pytest.FixtureRequest) -> Callable[[Path, bytes], np.ndarray]:
    return request.param


ARRAYS = hnp.arrays(
    st.sampled_from(["?", "|u1", "<i2", ">i4", "<u8", "<f4", ">f8", "<U3", "|S2"]),
    hnp.array_shapes(min_dims=0, min_side=0),
)


@given(array=ARRAYS, fortran=st.booleans(), version=st.sampled_from([(1, 0), (2, 0), (3, 0)]))
def test_what_numpy_writes_comes_back(array, fortran, version, tmp_path_factory):
    array = np.asfortranarray(array) if fortran else array
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version)
    folder = tmp_path_factory.mktemp("a")
    for reader in (from_npy, from_npz):
        np.testing.assert_array_equal(reader(folder, buffer.getvalue()), array, strict=True)


def test_headers_of_other_programs(read, tmp_path):
    for header in (
        "{'shape': (2,), 'descr': '<u1', 'fortran_order': False}\n",
        '{"descr":"|u1","fortran_order":False,"shape":(2L,)}',
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2), }" + " " * 60 + "\n",
    ):
        assert read(tmp_path, npy(header, b"ab")).ravel().tolist() == [97, 98]


@pytest.mark.parametrize(
    "header",
    [
        described("(-1,)"),
        described("(1000000000000,)"),
        described("(" + "9" * 5000 + ",)"),
        described("(" + "9" * 200 + ",)"),
        described("(" * 5000),
        described("(2"),
        described("{1, 2}"),
        described("(" + "-" * 4000 + "1,)"),
        described("(1j+1j,)"),
        described("(2,)", "V8"),
        described("(2,)", "<u1,<u1"),
        described("(2,)", "<u7"),
        "{'descr': '|u1'}",
        "{'descr': '|u1', 'descr': '|u1', 'shape': (2,)}",
        "__import__('os').abort()",
        "'" * 5000,
        " " * 9000,
        "",
    ],
    ids=lambda header: header[:60],
)
def test_headers_that_promise_what_is_not_there(header, read, tmp_path):
    with pytest.raises(UserError, match=r"a\.np[yz] must be an np[yz] file.*damaged or cut short"):
        read(tmp_path, npy(header, b"ab"))


def test_python_objects_are_named_and_not_loaded(tmp_path):
    rows = np.empty(2, dtype=object)
    rows[:] = [[1.0], [1.0, 2.0]]
    np.savez(tmp_path / "a.npz", x=rows)
    with pytest.raises(UserError, match=r"x of .*a\.npz holds Python objects.*rows of equal"):
        read_npz(tmp_path / "a.npz", ["x"], MOST)


def test_each_byte_of_a_header_may_be_any_other(tmp_path):
    whole = npy(described("(2,)"), b"ab")
    for place in range(len(whole) - 2):
        for byte in (0, 39, 40, 45, 57, 123, 255):
            try:
                array = from_npy(tmp_path, whole[:place] + bytes([byte]) + whole[place + 1 :])
            except UserError:
                continue
            assert array.nbytes == 2  # such as '<u1', or (02,)


def test_memory_is_bounded_by_what_is_allowed(tmp_path):
    content = npy(described(f"({8 * MOST},)"), bytes(8 * MOST))
    for read in (from_npy, from_npz):
        with pytest.raises(UserError, match="no data set here has more"):
            read(tmp_path, content)
    tracemalloc.start()
    try:
        for read_again in (
            lambda: read_npy(tmp_path / "a.npy", MOST),
            lambda: read_npz(tmp_path / "a.npz", ["x"], MOST),
        ):
            with pytest.raises(UserError):
                read_again()
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_an_array_that_is_missing_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.zeros(2))
    with pytest.raises(UserError, match=r"must have the arrays x, y; it lacks x\. Fetch it again"):
        read_npz(tmp_path / "a.npz", ["x", "y"], MOST)

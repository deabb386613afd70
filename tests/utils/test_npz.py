"""Files of arrays that are equal where the arrays are."""

import io
import time

import numpy as np

from mlpip_bench.utils.npz import write_npz


def content(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    write_npz(out, arrays)
    return out.getvalue()


def test_numpy_reads_what_is_written():
    arrays = {
        "numbers": np.arange(12, dtype="<i8").reshape(3, 4),
        "columns": np.asfortranarray(np.random.default_rng(0).normal(size=(5, 2))),
        "text": np.array("of no shape"),
        "names": np.array(["a", "bc"]),
        "none": np.empty((0, 3), np.float32),
    }
    with np.load(io.BytesIO(content(**arrays)), allow_pickle=False) as file:
        assert sorted(file) == sorted(arrays)
        for name, array in arrays.items():
            assert file[name].dtype == array.dtype
            assert file[name].shape == array.shape
            assert (file[name] == array).all()


def test_equal_arrays_have_equal_bytes_at_any_time_and_in_any_order(monkeypatch):
    a, b = np.arange(6.0).reshape(2, 3), np.ones(4, np.uint8)
    first = content(a=a, b=b)
    monkeypatch.setattr(time, "localtime", lambda *_: time.gmtime(2_000_000_000))
    assert content(b=b, a=np.asfortranarray(a)) == first
    assert content(a=a + 1, b=b) != first

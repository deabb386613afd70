"""Inputs that nobody thought of: each is either taken, or refused with one message.

``MLPIP_BENCH_FUZZ=N`` tries N times as many, and others each time.
"""

import functools
import io
import json
import os
import pickle
import pickletools
import re
import shutil
import string
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from builders import make_record, write_record
from mlpip_bench import registry
from mlpip_bench.datasets import coil100, mini_imagenet, omniglot, tiny_imagenet
from mlpip_bench.datasets.archives import read_tar, read_zip
from mlpip_bench.datasets.arrays import read_npy, read_npz
from mlpip_bench.datasets.lists import read_list
from mlpip_bench.datasets.reading import Picture, decode
from mlpip_bench.datasets.unpickling import load_plain_pickle
from mlpip_bench.execution import options
from mlpip_bench.records import store
from mlpip_bench.reporting import html
from mlpip_bench.reporting.figures import writing
from mlpip_bench.reporting.tables.writing import write_tables
from mlpip_bench.training.checkpoints import TrainingState, load_checkpoint, save_checkpoint
from mlpip_bench.utils.errors import UserError

TIMES = int(os.environ.get("MLPIP_BENCH_FUZZ", "1"))
MOST = 2**20

Fuzz = Callable[[str, int, st.SearchStrategy[Any], Callable[[Any], object]], None]


@pytest.fixture
def fuzz(tell) -> Fuzz:
    """Tries inputs, and notes how many there were."""

    def each(kind: str, count: int, inputs: st.SearchStrategy[Any], check: Callable[[Any], object]) -> None:
        tried = 0

        @settings(max_examples=count * TIMES)
        @given(inputs)
        def one(given: Any) -> None:
            nonlocal tried
            tried += 1
            check(given)

        one()
        tell(f"inputs fuzzed: {kind}", tried)

    return each


def taken_or_refused(read: Callable[[], object]) -> None:
    """Anything but a ``UserError`` is a fault; its message is one that can be shown."""
    try:
        read()
    except UserError as error:
        str(error).encode(errors="surrogatepass")


# -- what strings and values people and programs come up with --------------------------------------------------------

ODD = st.sampled_from(
    [
        "",
        " ",
        ",",
        "=",
        ".",
        "-",
        "--",
        "~",
        "~nosuchuser",
        "~/x",
        "\0",
        "a\0b",
        "../..",
        "/dev/null",
        "/dev/full/x",
        "[bold]",
        "[/]",
        "$x_{",
        "\x1b[31m",
        "\ud800",
        "é",
        "x" * 300,
        "x/" * 2500,
        "9" * 5000,
        "-1",
        "1e999",
        "nan",
        "inf",
        "None",
        "True",
        "()",
        "[1, 2",
        "{",
        "(" * 2000,
        "-" * 3000 + "1",
        "1j+" * 1000,
        "0-4",
        "1,2",
        "10**9",
        "{1: 2}",
        "'",
        '"',
        "%s",
        "{}",
        "=HYPERLINK()",
    ]
)
TEXT = ODD | st.text(string.printable, max_size=12) | st.text(max_size=8)
NUMBER = st.integers() | st.floats() | st.sampled_from([2**31, 2**63, 10**30, -1, 0, 1])
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
BENCH = TEXT | st.from_regex(r"(toy|linear|fc)\d{1,3}(w\d{1,2})?s?", fullmatch=True)
ASSIGNMENT = TEXT | st.builds(
    "{}{}={}".format,
    st.sampled_from(["", "versa.", "maml.", "omni.", "x."]),
    st.sampled_from(["iterations", "learning_rate", "inner_rate", "split", "samples", "x"]) | TEXT,
    TEXT | NUMBER,
)


def test_options_from_python_and_files(fuzz):
    names = st.sampled_from(sorted(set(options.DEFAULTS) - {"bench"}))
    assignments = st.fixed_dictionaries({}, optional=dict.fromkeys(("set", "sweep", "data"), ASSIGNMENT))
    fuzz(
        "options",
        150,
        st.builds(
            lambda bench, *parts: {"bench": bench} | parts[0] | parts[1],
            BENCH,
            st.dictionaries(names, VALUE, max_size=3),
            assignments,
        ),
        lambda asked: taken_or_refused(lambda: options.run_config(options.merged(asked))),
    )


COMMANDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("run",): (
        "--bench",
        "--methods",
        "--protocols",
        "--seeds",
        "--norm",
        "--backbone",
        "--preset",
        "--queries",
        "--set",
        "--sweep",
        "--source",
        "--data-root",
        "--data",
        "--device",
        "--precision",
        "--compile",
        "--overwrite",
        "--cpus",
        "--config",
    ),
    ("table",): ("--format", "--bench", "--methods", "--against", "--benchmark-json"),
    ("figures",): (),
    ("report",): ("--output",),
    ("compare",): (),
    ("list", "data"): ("--data-root",),
    ("data", "verify"): ("--data-root", "--data"),
    ("data", "prepare"): ("--from", "--to", "--jobs"),
    ("clean",): ("--only",),
    ("check",): (),
}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(sorted(COMMANDS)))
    named = draw(st.lists(st.sampled_from(COMMANDS[command]), max_size=3)) if COMMANDS[command] else []
    values = {"--bench": BENCH, "--set": ASSIGNMENT, "--sweep": ASSIGNMENT, "--data": ASSIGNMENT}
    words = [word for option in named for word in (option, draw(values.get(option, TEXT)))]
    return [*command, *words, *draw(st.lists(TEXT, max_size=1 if command != ("check",) else 0))]


def test_command_lines(fuzz, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writing, "write_figures", lambda *_arguments: [])  # which draw for seconds
    monkeypatch.setattr(html, "to_html", lambda *_arguments: "")
    store.save(make_record(), tmp_path / "runs")

    def check(words: list[str]) -> None:
        more = ["--dry-run"] if words[0] == "run" else []
        result = call(*words, *more)
        assert result.exit_code in (0, 1, 2), result.output
        if result.exit_code == 2 and words[:2] != ["data", "verify"]:
            assert result.output.count("error:") + result.output.count("─ Error ─") + result.output.count("Usage:") >= 1

    fuzz("command lines", 30, command_lines(), check)


# -- files ------------------------------------------------------------------------------------------------------------


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(buffer, "PNG")
    return buffer.getvalue()


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def zipped(file: io.BytesIO) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/1.png", png())


def tarred(file: io.BytesIO) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("a/" + "b" * 120 + "/1.png")  # with a long name
        info.size = len(png())
        archive.addfile(info, io.BytesIO(png()))


def seen(_name: object) -> bool:
    return True


ARRAY = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
FORMS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "pickle": (pickle.dumps({"image_data": ARRAY, "class_dict": {"n1": [0]}}, 2), load_plain_pickle),
    "npy": (written(lambda file: np.save(file, ARRAY)), lambda path: read_npy(path, MOST)),
    "npz": (written(lambda file: np.savez_compressed(file, x=ARRAY)), lambda path: read_npz(path, ["x"], MOST)),
    "zip": (written(zipped), lambda path: read_zip(path, seen)),
    "tar": (written(tarred), lambda path: read_tar(path, seen)),
    "png": (png(), lambda path: decode(Picture("p", path.read_bytes), "L")),
    "bmp": (
        written(lambda file: Image.new("RGB", (3, 3)).save(file, "BMP")),
        lambda path: decode(Picture("p", path.read_bytes), "RGB"),
    ),
    "jpeg": (
        written(lambda file: Image.new("RGB", (8, 8)).save(file, "JPEG")),
        lambda path: decode(Picture("p", path.read_bytes), "RGB"),
    ),
    "csv": (b"filename,label\na.jpg,n1\n", lambda path: read_list(path, ("filename", "label"))),
}


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes of a file, some of them changed, left out, put in or said twice."""
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        end = min(len(content), place + draw(st.sampled_from([0, 1, 1, 1, 4, 50])))
        put = draw(
            st.binary(max_size=8) | st.sampled_from([b"\xff" * 8, b"\x7f" + b"\xff" * 7, content[place:end] * 2])
        )
        content = content[:place] + put + content[end:]
    return content


@pytest.mark.parametrize("form", FORMS)
def test_damaged_files(form, fuzz, tmp_path):
    content, read = FORMS[form]
    path = tmp_path / f"damaged.{form}"

    def check(damage: bytes) -> None:
        path.write_bytes(damage)
        taken_or_refused(lambda: read(path))

    fuzz("data files", 60, damaged(content), check)


# Whole files of odd content.

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.binary(max_size=5), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(st.integers() | st.text(max_size=3), max_size=3)
    ),
    max_leaves=12,
)


def test_pickles_of_plain_data_are_what_pickle_makes_of_them(fuzz, tmp_path):
    path = tmp_path / "p.pkl"

    def check(given: tuple[Any, int]) -> None:
        content = pickle.dumps(*given)
        path.write_bytes(content)
        assert load_plain_pickle(path) == pickle.loads(content, encoding="latin1") == given[0]

    fuzz("data files", 80, st.tuples(PLAIN, st.integers(0, pickle.HIGHEST_PROTOCOL)), check)


NUMBERS = st.sampled_from(["?", "|u1", "<i2", "<u4", "<i8", "<f2", "<f4", "<f8"])


def test_pickled_arrays_are_what_pickle_makes_of_them(fuzz, tmp_path):
    path = tmp_path / "p.pkl"
    arrays = hnp.arrays(NUMBERS, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))

    def check(given: tuple[np.ndarray, bool, int]) -> None:
        array, fortran, protocol = given
        path.write_bytes(pickle.dumps({"x": np.asfortranarray(array) if fortran else array}, protocol))
        found = load_plain_pickle(path)
        assert isinstance(found, dict)
        np.testing.assert_array_equal(found["x"], pickle.loads(path.read_bytes())["x"], strict=True)

    fuzz("data files", 60, st.tuples(arrays, st.booleans(), st.integers(0, pickle.HIGHEST_PROTOCOL)), check)


GLOBALS = [b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n", b"cos\nsystem\n"]
CODES = [op.code.encode("latin1") for op in pickletools.opcodes]
OPERANDS = st.binary(max_size=4) | st.sampled_from(
    [b"1\n", b"'u1'\n", b"latin1\n", b"\x02u1", b"\xff\xff\xff\x7f", b"\n"]
)
SNIPPET = st.sampled_from(
    [*GLOBALS, b"(U\x02O8\x89\x88t", b"}", b"]", b")", b"(K\x01K\x00\x85", b"R", b"b", b"s", b"2\x86"]
) | st.builds(bytes.__add__, st.sampled_from(CODES), OPERANDS)


def test_programs_of_pickles(fuzz, tmp_path):
    path = tmp_path / "p.pkl"

    def check(program: list[bytes]) -> None:
        path.write_bytes(b"\x80\x02" + b"".join(program) + b".")
        taken_or_refused(lambda: load_plain_pickle(path))
        assert np.dtype("u1").fields is None

    fuzz("data files", 200, st.lists(SNIPPET, max_size=14), check)


def mini_content() -> st.SearchStrategy[Any]:
    """What a pickle of miniImageNet might hold, some of it right."""
    images = st.sampled_from(
        [
            np.zeros((3, 84, 84, 3), np.uint8),
            np.zeros((1, 3, 84, 84, 3), np.uint8),
            np.zeros((10**6, 0, 84, 84, 3), np.uint8),
            np.zeros((3, 84), np.uint8),
            np.zeros((3, 84, 84, 3)),
            np.zeros((), np.uint8),
            np.zeros((0, 84, 84, 3), np.uint8),
        ]
    )
    rows = st.lists(st.integers(-2, 4) | VALUE, max_size=4) | VALUE | images
    classes = st.dictionaries(TEXT | st.binary(max_size=3) | st.integers(), rows, max_size=3) | VALUE
    keys = {"image_data": images | VALUE, "class_dict": classes, "data": images | VALUE, "labels": rows}
    plain = st.fixed_dictionaries({}, optional=keys)
    return images | VALUE | plain | plain.map(lambda found: {name.encode(): value for name, value in found.items()})


def test_contents_of_mini_imagenet(fuzz, tmp_path):
    path = tmp_path / "train.pkl"

    def check(content: Any) -> None:
        path.write_bytes(pickle.dumps(content, 2))
        taken_or_refused(lambda: mini_imagenet._read_array_file("train", path))

    fuzz("data files", 100, mini_content(), check)


def test_folders_of_data_sets(fuzz, tmp_path):
    """Each reader looks at folders whose files have the right names and odd content."""
    names = [
        "train.csv",
        "val.csv",
        "test.csv",
        "images/a.jpg",
        "images/n1/a.jpg",
        "train/n1/1.jpg",
        "val/n1/1.jpg",
        "test/n1/1.jpg",
        "train.pkl",
        "val.npy",
        "test.npy",
        "ravi_splits.csv",
        "n1/n1_1.JPEG",
        "train.tar",
        "val.tar",
        "test.tar",
        "characters.csv",
        "images_background.npz",
        "images_background.zip",
        "images_background/A/character01/1.png",
        "coil100_32.npz",
    ]
    contents = st.sampled_from([b"", b"<html>", *(content for content, _ in FORMS.values())]) | st.binary(max_size=40)
    finders = [
        mini_imagenet.find,
        tiny_imagenet.find,
        coil100.find,
        functools.partial(omniglot.find, split="random", resize="nearest"),
    ]

    def check(files: dict[str, bytes]) -> None:
        folder = tmp_path / "data"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        for find in finders:

            def read(find: Callable[[Path], Any] = find) -> None:
                if (found := find(folder)) is not None:
                    found.read()

            taken_or_refused(read)

    fuzz("data files", 60, st.dictionaries(st.sampled_from(names), contents, max_size=5), check)


# -- records and checkpoints -----------------------------------------------------------------------------------------


@st.composite
def changed_json(draw: st.DrawFn, whole: Any) -> Any:
    """A JSON value with one or two of its parts left out, or something else."""
    value = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 2))):
        owner: Any = value
        while True:
            keys = sorted(owner) if isinstance(owner, dict) else list(range(len(owner)))
            key = draw(st.sampled_from(keys))
            inner = owner[key]
            if not (isinstance(inner, dict | list) and inner) or draw(st.booleans()):
                break
            owner = inner
        if draw(st.booleans()) and isinstance(owner, dict):
            del owner[key]
        else:
            owner[key] = draw(VALUE)
        if not value:
            break
    return value


def test_records(fuzz, tmp_path, call):
    record = make_record(training={"iterations": 4, "seconds": 1.0, "history": [{"iteration": 4, "nll": 1.0}]})
    store.save(record, tmp_path)
    path = tmp_path / "records" / record.filename
    whole = json.loads(path.read_text())

    def check(changed: Any) -> None:
        write_record(path, changed)  # with its right checksum, as a stranger's has
        taken_or_refused(lambda: write_tables(store.load_all(tmp_path), tmp_path))

    fuzz("records", 150, changed_json(whole), check)


def test_checkpoints(fuzz, tmp_path):
    path = tmp_path / "checkpoint.pt"
    state = TrainingState(
        3, {"w": torch.ones(2)}, {}, {"w": torch.ones(2)}, 2, 0.5, [{"iteration": 2, "nll": 0.5}], 1.0
    )
    save_checkpoint(state, path)
    content = path.read_bytes()

    def check(damage: bytes) -> None:
        path.write_bytes(damage)
        taken_or_refused(lambda: load_checkpoint(path))

    fuzz("checkpoints", 60, damaged(content), check)


# -- plugins ---------------------------------------------------------------------------------------------------------


class OddError(Exception):
    """One that cannot even be shown."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


RETURNS = [
    None,
    3,
    "text",
    float("nan"),
    torch.zeros(()),
    torch.ones(3),
    torch.tensor(float("nan")),
    torch.ones((), dtype=torch.long),
]
RAISES = [
    Exception,
    ValueError,
    KeyError,
    RuntimeError,
    MemoryError,
    StopIteration,
    AssertionError,
    OddError,
    SystemExit,
]


def test_what_a_plugin_does_fails_its_trial_alone(fuzz, run, tmp_path, monkeypatch):
    plugin = registry.method("versa")
    places = st.sampled_from(["loss", "amortize", "predictive", "__init__"])
    acts = st.sampled_from(RETURNS) | st.tuples(st.sampled_from(RAISES), TEXT)

    def check(given: tuple[str, Any]) -> None:
        place, act = given

        def misbehave(*_arguments: object, **_more: object) -> Any:
            if isinstance(act, tuple):
                raise act[0](act[1])
            return act

        folder = tmp_path / "results"
        shutil.rmtree(folder, ignore_errors=True)
        with monkeypatch.context() as patch:
            patch.setattr(plugin, place, misbehave)
            result = run(folder)
        assert result.exit_code in (1, 2), result.output
        methods = {record.method for record in store.load_all(folder)} if result.exit_code == 1 else {"amortized_vi"}
        assert methods == {"amortized_vi"}
        assert re.search("versa", result.output)

    fuzz("plugins", 5, st.tuples(places, acts), check)

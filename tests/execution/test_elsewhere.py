"""Splits and test tasks that leave the suite, and scores that come back: of the same tasks, and of no others."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from builders import assert_one_error, budget, invoke
from mlpip_bench import load_bench
from mlpip_bench.execution import split_export
from mlpip_bench.records import store
from mlpip_bench.records.verification import verify
from pictures import write_classes

TASKS, QUERIES, BENCH = 7, 3, "birds3w2s"
OPTIONS = ("--queries", QUERIES, "--test-tasks", TASKS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with ``birds`` and ``fish``, whose classes have unequal numbers of pictures."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in ("birds", "fish"):
        write_classes(folder / name, [f"{name}{i:02d}" for i in range(20)], lambda number: 6 + number % 3)
        given = ("--from", folder / name, "--image-size", 12, "--data-root", folder / "data")
        assert invoke("data", "add", name, *given).exit_code == 0
    return folder / "data"


@pytest.fixture(scope="module")
def exported(root, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "split"
    result = export(root, folder, "--images")
    assert result.exit_code == 0, result.output
    return folder


def export(root: Path, folder: Path, *more: object, bench: str = BENCH):
    return invoke("data", "export-split", bench, "--to", folder, "--data-root", root, *OPTIONS, *more)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- out -------------------------------------------------------------------------------------------------------------


def test_the_exported_indices_are_the_tasks_that_methods_get(root, exported):
    tasks, test = np.load(exported / "tasks.npz"), np.load(exported / "test.npz")
    batch = load_bench(BENCH, data_root=root).sample(TASKS, split="test", queries=QUERIES)
    for name, points in (("support", batch.support), ("query", batch.query)):
        images, labels = tasks[name], tasks[f"{name}_y"]
        np.testing.assert_array_equal(test["images"][images].astype(np.float32) / 255, points.x)
        np.testing.assert_array_equal(labels, points.y)
        of_label = np.take_along_axis(tasks["classes"], labels, 1)
        np.testing.assert_array_equal(of_label, test["classes"][images])


def test_the_split_names_classes_and_the_place_of_their_images(root, exported):
    said, data = json.loads((exported / "split.json").read_text()), load_bench(BENCH, data_root=root).data
    assert said["data"]["fingerprint"] == data.fingerprint
    names = [entry["name"] for classes in said["splits"].values() for entry in classes]
    assert sorted(names) == [f"birds{i:02d}" for i in range(20)]  # each in one split
    for split, classes in said["splits"].items():
        arrays = np.load(exported / f"{split}.npz")
        np.testing.assert_array_equal(arrays["images"], data.splits[split].images)
        for number, entry in enumerate(classes):
            assert entry["images"] == 6 + int(entry["name"][-2:]) % 3
            its_own = slice(entry["first"], entry["first"] + entry["images"])
            assert (arrays["classes"][its_own] == number).all()
            assert (arrays["classes"] == number).sum() == entry["images"]


def test_two_exports_are_equal_and_say_the_digest_of_each_file(root, exported, tmp_path):
    assert export(root, tmp_path / "again", "--images").exit_code == 0
    files = names_in(exported)
    assert files == ["README.md", "split.json", "tasks.npz", "test.npz", "train.npz", "validation.npz"]
    about = (exported / "README.md").read_text()
    for name in files:
        content = (exported / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == content
        assert name == "README.md" or f"| `{hashlib.sha256(content).hexdigest()}` |" in about
    # Without images the same tasks, and nothing that the table of files names is missing.
    assert export(root, tmp_path / "small").exit_code == 0
    assert (tmp_path / "small" / "tasks.npz").read_bytes() == (exported / "tasks.npz").read_bytes()
    assert names_in(tmp_path / "small") == ["README.md", "split.json", "tasks.npz"]


def test_tasks_of_other_options_are_other_tasks(root, exported, tmp_path):
    usual = (exported / "tasks.npz").read_bytes()
    variants = {"queries": ("--queries", 2), "unequal": ("--query-concentration", 1), "on": ("--test-on", "fish")}
    for name, more in variants.items():
        assert export(root, tmp_path / name, *more).exit_code == 0
        assert (tmp_path / name / "tasks.npz").read_bytes() != usual
    said = json.loads((tmp_path / "on" / "split.json").read_text())
    assert {split: classes[0]["name"][:4] for split, classes in said["splits"].items()} == {
        "train": "bird", "validation": "bird", "test": "fish",
    }  # fmt: skip
    assert said["data"]["test_on"]["family"] == "fish"
    counts = np.apply_along_axis(np.bincount, 1, np.load(tmp_path / "unequal" / "tasks.npz")["query_y"], minlength=3)
    assert (counts.sum(1) == 3 * QUERIES).all()
    assert (counts != QUERIES).any()


@pytest.mark.parametrize(
    ("bench", "more", "says"),
    [
        ("toy5", (), "of classes that are new at test, as those of omni5w1s; those of toy5 are not"),
        ("birds2..3w1s", (), "of one way and shot"),
        ("birds3w2s,birds2w1s", (), "one bench"),
        ("brids3w2s", (), "unknown bench 'brids3w2s'"),
        (BENCH, ("--queries", 20), "need 22 images in each class"),
        (BENCH, ("--source", "reel"), "unknown source"),
        (BENCH, ("--data", "omni.split=random"), "'omni' is not among birds"),
    ],
)
def test_what_cannot_be_exported_is_refused(bench, more, says, root, tmp_path):
    result = export(root, tmp_path / "split", *more, bench=bench)
    assert result.exit_code == 2
    assert says in result.output.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_an_export_never_mixes_with_what_is_there(root, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("full", "file", "link"):
        assert f"which it makes; {tmp_path / name} is there" in export(root, tmp_path / name).output
    assert "cannot write" in export(root, tmp_path / "file" / "split").output
    monkeypatch.chdir(tmp_path)
    assert export(root, Path()).exit_code == 2

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(split_export, "write_npz", fail)
    result = export(root, tmp_path / "new", "--images")
    assert result.exit_code == 2
    assert "Free some space" in result.output
    assert names_in(tmp_path) == ["file", "full", "link"]
    assert names_in(tmp_path / "full") == ["thesis.tex"]


# -- back ------------------------------------------------------------------------------------------------------------

ACCURACY = [k / 9 for k in (3, 9, 5, 0, 7, 8, 6)]
NLL = [1.1, 0.01, 0.5, 3.0, 0.4, 0.2, 0.7]
MADE = {
    "--as": "theirs", "--backbone": "ResNet-12", "--norm": "running", "--inductive": None, "--parameters": 1000,
    "--pretraining": "classification, 90 epochs", "--saw": "the training classes",
}  # fmt: skip


def write_csv(path: Path, **columns: list[float]) -> Path:
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


def bring(root: Path, scores: Path, tasks: object, results: Path, *more: object, **changed: object):
    made = MADE | {f"--{name}": value for name, value in changed.items()}
    words = [word for option, value in made.items() if value != () for word in (option, value) if word is not None]
    given = ("--bench", BENCH, "--tasks", tasks, "--data-root", root, "--results", results)
    return invoke("import-scores", scores, *given, *OPTIONS, *words, *more)


def test_scores_from_elsewhere_stand_next_to_those_of_the_suite(root, exported, tmp_path):
    scores, results = write_csv(tmp_path / "s.csv", accuracy=ACCURACY, nll=NLL), tmp_path / "runs"
    weights = tmp_path / "net.pt"
    weights.write_bytes(b"weights")
    result = bring(root, scores, exported / "tasks.npz", results, weights=weights)
    assert result.exit_code == 0, result.output
    given = ("--bench", BENCH, "--data-root", root, "--results", results)
    own = invoke("run", "--methods", "protonets", *given, *budget(train_queries=3, test_tasks=TASKS), *OPTIONS[:2])
    assert own.exit_code == 0, own.output
    records = {(r.method, r.protocol): r for r in store.load_all(results)}
    theirs, ours = records["theirs", "accuracy"], records["protonets", "accuracy"]
    assert list(theirs.scores[0].per_task) == ACCURACY
    assert list(records["theirs", "nll"].scores[0].per_task) == NLL
    assert theirs.data == ours.data
    for field in ("metric", "unit", "better", "way", "shot", "queries", "model", "condition"):
        assert getattr(theirs.scores[0], field) == getattr(ours.scores[0], field)
    assert (theirs.backbone["name"], theirs.parameters, theirs.inductive) == ("ResNet-12", 1000, True)
    assert theirs.training == {
        "outside": True, "iterations": 0, "tasks_seen": 0, "seconds": 0.0,
        "pretraining": {
            "what": "classification, 90 epochs", "saw": "the training classes", "file": "net.pt",
            "sha256": hashlib.sha256(b"weights").hexdigest(),
        },
    }  # fmt: skip
    assert theirs.environment["tasks"] == hashlib.sha256((exported / "tasks.npz").read_bytes()).hexdigest()
    path = results / "records" / theirs.filename
    assert verify(path).status == "unverified"  # no predictions came along
    # Paired, though the norms differ: the mean difference is that of the means, on the same tasks.
    paired = invoke("table", "--results", results, "--paired", "--format", "csv", "--metric", "accuracy").output
    row = dict(zip(*(line.split(",") for line in re.sub('"[^"]*"', "", paired).splitlines()[:2]), strict=True))
    expected = np.mean(ours.scores[0].per_task) - np.mean(ACCURACY)
    assert abs(float(row["difference"])) == pytest.approx(abs(expected))
    assert "theirs" in (results / "tables" / "accuracy.md").read_text()


def test_the_form_of_the_file_does_not_matter(root, exported, tmp_path):
    order = [3, 0, 6, 2, 5, 1, 4]
    shuffled = {"nll": [NLL[i] for i in order], "task": order, "accuracy": [ACCURACY[i] for i in order]}
    np.savez(tmp_path / "s.npz", accuracy=np.array(ACCURACY), nll=np.array(NLL))
    files = {
        "npz": tmp_path / "s.npz",
        "shuffled": write_csv(tmp_path / "shuffled.csv", **shuffled),
        "accuracy alone": write_csv(tmp_path / "one.csv", accuracy=ACCURACY),
    }
    digest = hashlib.sha256((exported / "tasks.npz").read_bytes()).hexdigest()
    for name, file in files.items():
        result = bring(root, file, digest.upper(), tmp_path / name, pretraining="none", saw=())
        assert result.exit_code == 0, result.output
        found = {r.protocol: r for r in store.load_all(tmp_path / name)}
        assert list(found["accuracy"].scores[0].per_task) == ACCURACY
        assert "pretraining" not in found["accuracy"].training
        assert ("nll" in found) == (name != "accuracy alone")


def test_a_record_is_replaced_on_request_alone(root, exported, tmp_path):
    tasks, results = exported / "tasks.npz", tmp_path / "runs"
    first, other = (write_csv(tmp_path / f"{i}.csv", nll=values) for i, values in enumerate((NLL, NLL[::-1])))
    assert bring(root, first, tasks, results).exit_code == 0
    assert bring(root, first, tasks, results).exit_code == 0  # the same again
    refused = bring(root, other, tasks, results)
    assert refused.exit_code == 2
    assert "a record is written once" in refused.output
    assert list(store.load_all(results)[0].scores[0].per_task) == NLL
    assert bring(root, other, tasks, results, seed=1).exit_code == 0
    assert bring(root, other, tasks, results, "--replace").exit_code == 0
    assert [list(r.scores[0].per_task) for r in store.load_all(results)] == [NLL[::-1], NLL[::-1]]


GOOD = "accuracy\n" + "0.3333\n" * TASKS


def test_the_file_of_tasks_says_how_many_there_are(root, exported, tmp_path):
    scores = write_csv(tmp_path / "s.csv", accuracy=[round(value, 4) for value in ACCURACY])
    made = [word for pair in MADE.items() for word in pair if word is not None]
    given = ("--bench", BENCH, "--data-root", root, "--queries", QUERIES, "--results", tmp_path / "runs", *made)
    digest = hashlib.sha256((exported / "tasks.npz").read_bytes()).hexdigest()
    assert_one_error(invoke("import-scores", scores, *given, "--tasks", digest), "Pass the options of .*--test-tasks")
    done = invoke("import-scores", scores, *given, "--tasks", exported / "tasks.npz")
    assert done.exit_code == 0, done.output
    assert len(store.load_all(tmp_path / "runs")[0].scores[0].per_task) == TASKS
    assert_one_error(invoke("import-scores", scores, *given, "--tasks", scores), r"s\.csv .*is not")


@pytest.mark.parametrize(
    ("content", "changed", "says"),
    [
        (GOOD, {"tasks": "0" * 64}, "scores must be of the bench's own test tasks"),
        (GOOD, {"tasks": "00ff"}, "--tasks takes the SHA-256"),
        (GOOD, {"queries": 2}, "Pass the options of data export-split"),
        (GOOD, {"as": "protonets"}, "a name of their own; protonets is a method"),
        (GOOD, {"as": "a/b"}, "--as: names must be parts of file names"),
        (GOOD, {"inductive": ()}, "pass --inductive"),
        (GOOD, {"saw": ()}, "--pretraining TEXT goes with --saw TEXT"),
        (GOOD, {"pretraining": "none"}, "--pretraining none with nothing"),
        (GOOD, {"backbone": " "}, "got --backbone ' '"),
        (GOOD, {"backbone": "a\nb"}, "a line of at most 200 characters"),
        (GOOD, {"parameters": -1}, "--parameters takes a whole number from 0"),
        (GOOD, {"seed": -1}, "--seed takes a whole number from 0"),
        (GOOD, {"weights": "/no/such.pt"}, "/no/such.pt is not: No such file"),
        ("accuracy\n" + "0.5\n" * 6, {}, "one accuracy for each of the 7 test tasks; "),
        ("accuracy\n" + "0.5\n" * 6 + "92\n", {}, "(92 % is 0.92); that of task 6 in"),
        ("nll\n" + "0.5\n" * 6 + "nan\n", {}, "nll is 0 or more nats a query, and finite; that of task 6"),
        ("nll\n-0.5\n" + "0.5\n" * 6, {}, "that of task 0"),
        ("acc\n" + "0.5\n" * 7, {}, "has acc. Name its columns so"),
        ("", {}, "has none"),
        ("accuracy,nll\n0.5\n", {}, "row 2 of"),
        ("accuracy,accuracy\n", {}, "each column has a name of its own"),
        ("accuracy\nhalf\n", {}, "accuracy in row 2"),
        ("accuracy;nll\n0,5;1,2\n", {}, "separated by commas, and numbers have a point; "),
        ("accuracy\tnll\n0.5\t1.2\n", {}, "begins with 'accuracy\\tnll'"),
        ("accuracy\n0,5\n", {}, "a value a column, 1, with commas between values alone; row 2"),
        (
            "accuracy\n" + "1\n" * 6 + "0.333\n",
            {},
            "over the 9 of a task, to four digits at least; that of task 6 in {file} is 0.333, and the nearest is "
            "3/9 = 0.3333. Write it unrounded",
        ),
        ("accuracy\n" + "0.5\n" * 7, {}, "that of task 0 in {file} is 0.5, and the nearest is 4/9 = 0.4444"),
        ("task,accuracy\n" + "0,0.5\n" * 7, {}, "each of 0 to 6 once"),
        ("\xff\xfe", {}, "scores are a csv file in UTF-8"),
    ],
)
def test_scores_that_cannot_be_trusted_are_refused(content, changed, says, root, exported, tmp_path):
    file = tmp_path / "scores.csv"
    file.write_bytes(content.encode("latin1"))
    changed = dict(changed)
    result = bring(root, file, changed.pop("tasks", exported / "tasks.npz"), tmp_path / "runs", **changed)
    assert result.exit_code == 2, result.output
    assert says.replace("{file}", str(file)) in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["absent", "folder", "pipe", "damaged npz"])
def test_a_file_that_is_none_is_one_message(kind, root, exported, tmp_path):
    file = tmp_path / ("scores.npz" if kind == "damaged npz" else "scores.csv")
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "damaged npz":
        shutil.copy(exported / "tasks.npz", file)
        file.write_bytes(file.read_bytes()[:-200])
    result = bring(root, file, exported / "tasks.npz", tmp_path / "runs")
    assert result.exit_code == 2, result.output
    assert file.name in result.output

"""``export`` and ``predict``: the predictions of the trained model itself, and one message for what cannot be done."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import mlpip_bench as mb
from builders import assert_one_error, budget, invoke, write_record
from mlpip_bench.reporting.figures.sheet import MOST, contact_sheet
from mlpip_bench.tasks.batch import Labeled
from pictures import picture, write_classes

METHODS = ("protonets", "versa", "maml")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the command line, with an export of each method."""
    folder = tmp_path_factory.mktemp("finished")
    what = ("--methods", ",".join(METHODS), "--bench", "omni5w1s", "--source", "procedural", "--results", folder)
    result = invoke("run", *what, *budget(), "--protocols", "accuracy,nll")
    assert result.exit_code == 0, result.output
    for method in METHODS:
        result = invoke("export", record_of(folder, method), "--to", folder / f"{method}.safetensors")
        assert result.exit_code == 0, result.output
        assert result.stdout.split() == [str(folder / f"{method}{ending}") for ending in (".safetensors", ".md")]
    return folder


def record_of(folder: Path, method: str, protocol: str = "accuracy") -> Path:
    (path,) = folder.glob(f"records/omni5w1s/{method}/{protocol}-*.json")
    return path


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of the bench as pictures, dark ink on light paper; its queries in two levels of folders."""
    folder = tmp_path_factory.mktemp("task")
    batch = mb.load_bench("omni5w1s", source="procedural").sample(1, queries=2)
    for part, points in (("support", batch.support), ("query", batch.query)):
        for number, (image, label) in enumerate(zip(points.x[0, :, 0].numpy(), points.y[0].tolist(), strict=True)):
            place = folder / part / f"class {label}" if part == "support" else folder / part / f"part{number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((255 - 255 * image).round().astype(np.uint8)).save(place / f"{number}-{label}.png")
    return folder


def predict(model: object, task: Path, *more: object):
    return invoke("predict", "--model", model, "--support", task / "support", "--query", task / "query", *more)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def probabilities_of(rows: list[dict[str, str]]) -> np.ndarray:
    return np.array([[float(row[f"p(class {label})"]) for label in range(5)] for row in rows])


# -- the same everywhere ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_record_and_export_give_what_the_method_computes_by_hand(method, finished, task, tmp_path):
    tables = []
    for name, model in (("record", record_of(finished, method)), ("export", finished / f"{method}.safetensors")):
        done = predict(model, task, "--to", tmp_path / f"{name}.csv")
        assert done.exit_code == 0, done.output
        assert "pictures are made black and white at 105x105, then 28x28 with bright ink on dark paper" in done.output
        tables.append((tmp_path / f"{name}.csv").read_text())
    assert tables[0] == tables[1]
    rows = rows_of(tmp_path / "export.csv")
    files = [row["file"] for row in rows]
    assert files == sorted(path.relative_to(task / "query").as_posix() for path in (task / "query").rglob("*.png"))
    found = probabilities_of(rows)

    model = mb.load(finished / f"{method}.safetensors")
    batch = mb.load_bench("omni5w1s", source="procedural").sample(1, queries=2)
    numbers = [int(Path(file).stem.partition("-")[0]) for file in files]
    with torch.random.fork_rng(), model.computing():
        q = model.method.amortize(Labeled(batch.support.x, batch.support.y, 5))
        by_hand = model.method.predictive(q, batch.query.x[:, numbers])
        probs = by_hand.probs[0] if hasattr(by_hand, "probs") else None
    assert probs is not None
    assert found == pytest.approx(probs.double().numpy(), abs=1e-5)

    support = sorted((task / "support").rglob("*.png"))
    adapted = model.adapt(model.pictures.read(support), [path.parent.name for path in support])
    in_python = adapted.predict(model.pictures.read([task / "query" / file for file in files]))
    assert found == pytest.approx(in_python, abs=0)
    assert adapted.classes == tuple(f"class {label}" for label in range(5))


def test_a_row_says_the_class_its_probability_and_the_entropy(finished, task, tmp_path):
    done = predict(finished / "versa.safetensors", task, "--to", tmp_path / "p.csv")
    for row in rows_of(tmp_path / "p.csv"):
        of_classes = {name[2:-1]: float(row[name]) for name in row if name.startswith("p(")}
        assert sum(of_classes.values()) == pytest.approx(1)
        assert row["predicted"] == max(of_classes, key=lambda name: of_classes[name])
        assert float(row["probability"]) == max(of_classes.values())
        expected = -sum(p * np.log(p) for p in of_classes.values() if p)
        assert float(row["entropy"]) == pytest.approx(expected)
        assert row["file"] in done.output
    assert list(row)[:4] == ["file", "predicted", "probability", "entropy"]


def test_many_queries_are_shown_in_part_and_written_in_full(finished, task, tmp_path):
    write_classes(tmp_path / "query", ["many"], 14)
    done = invoke(
        "predict", "--model", finished / "protonets.safetensors", "--support", task / "support",
        "--query", tmp_path / "query", "--to", tmp_path / "p.csv",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "and 4 more" in done.output
    assert len(rows_of(tmp_path / "p.csv")) == 14


def test_queries_are_asked_a_part_at_a_time(finished, task, monkeypatch):
    model = mb.load(finished / "versa.safetensors")
    support = sorted((task / "support").rglob("*.png"))
    adapted = model.adapt(model.pictures.read(support), [path.parent.name for path in support])
    queries = model.pictures.read(sorted((task / "query").rglob("*.png")))
    together = adapted.predict(queries)
    monkeypatch.setattr("mlpip_bench.api.adapting.POINTS_AT_ONCE", 3)
    assert adapted.predict(queries) == pytest.approx(together, abs=1e-6)


def test_pictures_of_other_sizes_and_modes_are_taken(finished, task, tmp_path):
    for number, (size, mode) in enumerate((size, mode) for size in ((200, 100), (9, 9)) for mode in ("RGB", "L")):
        for part, names in (("support", "ab"), ("query", "q")):
            for name in names:
                (tmp_path / part / name).mkdir(parents=True, exist_ok=True)
                picture(number, ord(name), size).convert(mode).save(tmp_path / part / name / f"{number}.png")
    done = predict(finished / "protonets.safetensors", tmp_path, "--to", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    assert len(rows_of(tmp_path / "p.csv")) == 4


def test_names_of_strangers_are_text_in_a_spreadsheet(finished, task, tmp_path):
    write_classes(tmp_path / "support", ["=1+1", "file"])
    write_classes(tmp_path / "query", ["=q"], 1)
    done = predict(
        finished / "protonets.safetensors", tmp_path, "--to", tmp_path / "p.csv", "--sheet", tmp_path / "s.png"
    )
    assert done.exit_code == 0, done.output
    head, row = (tmp_path / "p.csv").read_text().splitlines()
    assert head == "file,predicted,probability,entropy,p(=1+1),p(file)"
    assert row.startswith("'=q/00.png,")


# -- the contact sheet -----------------------------------------------------------------------------------------------


def test_the_contact_sheet_is_a_picture(finished, task, tmp_path):
    done = predict(finished / "protonets.safetensors", task, "--sheet", tmp_path / "sheet.png")
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert min(sheet.size) > 300


def test_the_sheet_has_the_support_set_and_each_query_with_its_class():
    rng = np.random.default_rng(0)
    support, queries = rng.random((3, 1, 8, 8)), rng.random((MOST + 5, 1, 8, 8))
    predicted = rng.dirichlet([1, 1], MOST + 5)
    figure = contact_sheet("a title", support, np.array([0, 1, 1]), ["cat", "d" * 40], queries, predicted)
    (above,), below = (part.axes for part in figure.subfigs)
    assert [label.get_text() for label in above.get_yticklabels()] == ["cat", "d" * 17 + "…"]
    shown = [axes for axes in below if axes.images]
    assert len(shown) == MOST
    for axes, image, row in zip(shown, queries, predicted, strict=False):
        assert (axes.images[0].get_array()[..., 0] == image[0]).all()
        name, probability = axes.get_title().splitlines()
        assert name == ["cat", "d" * 17 + "…"][row.argmax()]
        assert probability == f"{row.max():.2f}"
    assert f"the first {MOST} of {MOST + 5}" in figure.subfigs[1].get_suptitle()


# -- what cannot be done ---------------------------------------------------------------------------------------------


def no_support(task: Path) -> None:
    for path in (task / "support").rglob("*.png"):
        path.unlink()


def one_class(task: Path) -> None:
    for place in list((task / "support").iterdir())[1:]:
        place.rename(task / place.name)


def no_query(task: Path) -> None:
    (task / "query").rename(task / "elsewhere")
    (task / "query").mkdir()


def broken_query(task: Path) -> None:
    (task / "query" / "broken.jpg").write_bytes(b"no picture")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (no_support, "a class needs at least one picture"),
        (one_class, "a support set needs at least two classes, each a folder of its pictures"),
        (no_query, "there must be a picture to classify in"),
        (broken_query, "broken.jpg is not: it is none of them"),
        (lambda task: (task / "support").rename(task / "gone"), "pictures are given as a folder; "),
        (lambda task: (task / "query").rename(task / "gone"), "pictures are given as a folder; "),
    ],
)
def test_pictures_that_are_no_task(spoil: Callable[[Path], object], says, finished, tmp_path):
    write_classes(tmp_path / "support", ["a", "b"])
    write_classes(tmp_path / "query", ["c"])
    spoil(tmp_path)
    done = predict(
        finished / "protonets.safetensors", tmp_path, "--to", tmp_path / "p.csv", "--sheet", tmp_path / "s.png"
    )
    assert (done.exit_code, says in done.output) == (2, True), done.output
    assert not (tmp_path / "p.csv").exists()
    assert not (tmp_path / "s.png").exists()


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("omniglot-protonet", "unknown model 'omniglot-protonet'. Did you mean 'omniglot-protonets'?"),
        ("none.safetensors", "an exported model must be readable; none.safetensors is not: No such file"),
        ("none.json", "a record must be there; none.json is not."),
        (".", "a record must be readable and whole; . is not: "),
        ("", "a path needs a name"),
        ("~nobody-has-this-name/m.safetensors", "~ stands for a home folder"),
    ],
)
def test_models_that_are_not_there(model, says, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = predict(model, task)
    assert (done.exit_code, says in done.output) == (2, True), done.output


def test_weights_alone_are_no_model(finished, task, tmp_path):
    """Neither a state dict of another program nor a checkpoint of the suite, for which its record is."""
    network = torch.nn.Linear(3, 2)
    torch.save(network.state_dict(), tmp_path / "w.pt")
    torch.save(network, tmp_path / "whole.pth")
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    checkpoint = next(finished.glob("checkpoints/*/versa/*.pt"))
    for model in (tmp_path / "w.pt", tmp_path / "whole.pth", tmp_path / "w.safetensors", checkpoint):
        assert_one_error(predict(model, task), f"{model} is none of them.* record.* export.* --init {model},trained_on")


def test_imported_scores_are_no_model(finished, task, tmp_path):
    raw = json.loads(record_of(finished, "versa").read_text())
    path = tmp_path / "runs" / "records" / "omni5w1s" / "theirs" / "accuracy-seed0-000000000000.json"
    path.parent.mkdir(parents=True)
    write_record(path, {**raw, "method": "theirs", "environment": {"code": {}, "tasks": "0", "scores": {}}})
    for done in (predict(path, task), invoke("export", path, "--to", tmp_path / "m.safetensors")):
        assert_one_error(done, f"{path} has scores that import-scores brought .* an exported model")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_no_model(task, tmp_path):
    os.mkfifo(tmp_path / "m.safetensors")
    done = predict(tmp_path / "m.safetensors", task)
    assert done.exit_code == 2
    assert "a folder, a pipe or a device, not a file" in done.output


def test_models_that_do_not_classify_pictures(task, tmp_path):
    linear = mb.export(mb.fit("exact_linear", "linear5s", iterations=1, device="cpu"), tmp_path / "linear.safetensors")
    assert "predict" not in linear.with_suffix(".md").read_text()
    done = predict(linear, task)
    assert done.exit_code == 2
    assert "pictures are for models that classify pictures; this one is for regression" in done.output
    np.savez(tmp_path / "v.npz", labels=np.arange(120) % 12, features=np.random.default_rng(0).normal(size=(120, 5)))
    made = ("--from", tmp_path / "v.npz", "--pretrained-on", "nothing", "--data-root", tmp_path / "root")
    assert invoke("data", "add", "vectors", *made).exit_code == 0
    small = {"validation_tasks": 1, "train_queries": 2}
    vectors = mb.fit(
        "protonets", "vectors2w1s", iterations=1, queries=2, settings=small, data_root=tmp_path / "root", device="cpu"
    )
    done = predict(mb.export(vectors, tmp_path / "vectors.safetensors"), task)
    assert done.exit_code == 2
    assert "this one is for feature vectors" in done.output


@pytest.mark.parametrize(("option", "name"), [("--to", "p.txt"), ("--sheet", "s.jpg")])
def test_files_of_other_endings_are_refused_first(option, name, task, tmp_path):
    done = predict("nowhere.json", task, option, tmp_path / name)
    assert done.exit_code == 2
    assert f"{option} takes a file that ends in" in done.output


def test_a_file_that_cannot_be_written(finished, task, tmp_path):
    (tmp_path / "file").write_text("")
    done = predict(finished / "protonets.safetensors", task, "--to", tmp_path / "file" / "p.csv")
    assert done.exit_code == 2
    assert "cannot write" in done.output


def test_export_of_what_is_no_record(finished, tmp_path):
    done = invoke("export", tmp_path / "none.json", "--to", tmp_path / "m.safetensors")
    assert (done.exit_code, "a record must be there" in done.output) == (2, True)
    done = invoke("export", record_of(finished, "versa"), "--to", tmp_path / "m.pt")
    assert (done.exit_code, "a file that ends in .safetensors" in done.output) == (2, True)
    assert not list(tmp_path.iterdir())


def test_the_card_has_the_scores_of_all_records_of_the_trial(finished, tmp_path):
    card = (finished / "versa.md").read_text()
    for protocol in ("accuracy", "nll"):
        best = mb.read_records(finished).query("method == 'versa' and metric == @protocol and model == 'best'")
        mean = float(best["mean"].iloc[0])
        assert f"| {100 * mean:.2f} ± " in card if protocol == "accuracy" else f"| {mean:.4f} ± " in card
    assert card.count("| this one |") == 2
    assert "a stand-in" in card
    loaded = mb.export(mb.load(record_of(finished, "versa")), tmp_path / "m.safetensors").with_suffix(".md").read_text()
    assert loaded.count("| this one |") == 1  # of the record that it was loaded with
    assert "| license of the data | not stated |" in card


def test_classes_may_have_the_names_of_other_columns(tmp_path):
    write_classes(tmp_path / "support", ["file", "predicted"], 1)
    write_classes(tmp_path / "query", ["some"], 2)
    arguments = ("--support", tmp_path / "support", "--query", tmp_path / "query", "--to", tmp_path / "p.csv")
    assert invoke("predict", "--model", "omniglot-protonets", *arguments).exit_code == 0
    for row in rows_of(tmp_path / "p.csv"):
        assert row["file"].startswith("some/")
        assert float(row["p(file)"]) + float(row["p(predicted)"]) == pytest.approx(1)

"""The models that ship with the suite are those of committed records, small, and work at once."""

from pathlib import Path

import numpy as np
import pytest

import mlpip_bench as mb
from builders import REPOSITORY, invoke
from mlpip_bench.execution import restoring
from mlpip_bench.pretrained import exports
from mlpip_bench.records import store
from mlpip_bench.records.exports import read
from mlpip_bench.records.record import Record

NAMES = list(exports())


def committed(name: str) -> Record:
    """The record of accuracy that a model is of."""
    model = read(exports()[name])[0]
    places = REPOSITORY.glob(f"results/*/records/{model.bench}/{model.method}/accuracy-seed{model.seed}-*.json")
    found = [record for record in map(store.load, places) if restoring.trial_of(record).training_key == model.key]
    (record,) = (record for record in found if record.training["seconds"] == model.training["seconds"])
    return record


def test_there_are_two():
    assert len(NAMES) == 2
    listed = invoke("list", "models").output
    assert all(name in listed for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_small_and_of_a_committed_record_that_its_card_quotes(name):
    path = exports()[name]
    assert path.stat().st_size < 500_000
    record, card = committed(name), path.with_suffix(".md").read_text(encoding="utf-8")
    (best,) = (score for score in record.scores if score.model == "best")
    assert f"| {100 * np.mean(best.per_task):.2f} ± " in card
    assert record.data["fingerprint"] in card
    assert record.data["source"] == "real"
    assert "license of the data | not stated" not in card
    assert mb.load(name).training.best_iteration == record.training["best_iteration"]


def test_a_model_has_the_scores_of_its_record_on_real_data(data_root):
    name = "omniglot-protonets"
    batch = mb.load_bench("omni5w1s", data_root=data_root, source="real").sample(20, split="test")
    model, accuracies = mb.load(name), []
    for x, y, queries, truth in zip(batch.support.x, batch.support.y, batch.query.x, batch.query.y, strict=True):
        found = model.adapt(x.numpy(), y.tolist()).predict(queries.numpy()).argmax(1)
        accuracies.append(float((found == truth.numpy()).mean()))
    (best,) = (score for score in committed(name).scores if score.model == "best")
    assert accuracies == pytest.approx(best.per_task[:20])


@pytest.mark.parametrize("name", NAMES)
def test_a_model_tells_simple_shapes_from_each_other(name, tmp_path: Path):
    from PIL import Image, ImageDraw

    def draw(shape: str, number: int) -> Image.Image:
        image = Image.new("RGB", (120, 120), "white")
        box = (20 + 3 * number, 20, 95, 95 - 4 * number)
        pen = ImageDraw.Draw(image)
        if shape == "ring":
            pen.ellipse(box, outline="black", width=10)
        else:
            pen.line((*box[:2], *box[2:]), fill="black", width=10)
            pen.line((box[0], box[3], box[2], box[1]), fill="black", width=10)
        return image

    for shape in ("ring", "cross"):
        (tmp_path / "support" / shape).mkdir(parents=True)
        (tmp_path / "query").mkdir(exist_ok=True)
        draw(shape, 0).save(tmp_path / "support" / shape / "0.png")
        for number in (1, 2):
            draw(shape, number).save(tmp_path / "query" / f"{shape}{number}.png")
    to = ("--support", tmp_path / "support", "--query", tmp_path / "query", "--to", tmp_path / "p.csv")
    done = invoke("predict", "--model", name, *to)
    assert done.exit_code == 0, done.output
    for line in (tmp_path / "p.csv").read_text().splitlines()[1:]:
        file, predicted, *_ = line.split(",")
        assert file.startswith(predicted)

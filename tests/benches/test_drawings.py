"""Benches of drawings, on drawings that the tests make."""

import json

import numpy as np
import pytest

from builders import CPU, budget, family_of, invoke
from mlpip_bench.benches.family import DataRequest
from mlpip_bench.datasets.base import SPLITS
from mlpip_bench.datasets.preparing import drawings
from mlpip_bench.datasets.preparing.drawings import Drawer
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.testing import assert_family_conforms
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet

CLASSES, DRAWERS = 60, 60


def draw(drawer: Drawer) -> dict[str, np.ndarray]:
    """Noise whose first pixels say the class and the drawer."""
    number = int(drawer.name[4:])
    images = np.random.default_rng(number).integers(0, 256, (CLASSES, 28, 28)).astype(np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.arange(CLASSES), number
    return {f"thing{i:02d}": image for i, image in enumerate(images)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for name in ("icons", "kanji"):
        (root / name).mkdir()
        drawers = [Drawer(f"hand{i:02d}", str(i), i, "", "", "MIT") for i in range(DRAWERS)]
        drawings.prepare(name, root / name, drawers, draw, Quiet(), {"title": name, "source": "a test"}, str)
    return root


@pytest.mark.parametrize("name", ["icons", "kanji"])
@pytest.mark.parametrize("split", ["classes", "drawers"])
def test_test_tasks_have_classes_and_by_drawers_hands_that_training_has_not(root, name, split):
    spec, family = family_of(f"{name}5w1s", split=split)
    data = family.load(DataRequest(data_root=root))
    assert family.input_shape(data) == family.image_shape
    plan = TrainingPlan(**{**family.budgets["quick"], "train_queries": 5})
    streams = family.streams(spec, data, plan, queries=15, seed=0, device=CPU)
    classes, hands = {}, {}
    for part, stream in streams.items():
        batch = stream.batch(0, 100)
        pixels = (np.concatenate([batch.support.x, batch.query.x], axis=1)[:, :, 0, 0, :2] * 255).round().astype(int)
        classes[part], hands[part] = (set(pixels[..., i].ravel().tolist()) for i in (0, 1))
    assert [len(classes[part]) for part in SPLITS] == [42, 6, 12]
    assert not classes["train"] & classes["test"]
    assert bool(hands["train"] & hands["test"]) == (split == "classes")
    assert hands["train"] == hands["validation"]


@pytest.mark.parametrize("name", ["icons", "kanji"])
def test_a_run_on_them_names_the_data_and_the_split(root, name, tmp_path):
    result = invoke(
        "run", "--methods", "protonets", "--bench", f"{name}5w1s", "--data-root", root, "--results", tmp_path,
        "--data", f"{name}.split=drawers", *budget(),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    records = [json.loads(path.read_text()) for path in (tmp_path / "records").rglob("*.json")]
    assert {record["data"]["name"] for record in records} == {name}
    assert {record["data"]["source"] for record in records} == {"real"}
    assert {record["data"]["options"]["split"] for record in records} == {"drawers"}


@pytest.mark.parametrize("name", ["icons", "kanji"])
def test_without_data_the_message_says_what_makes_it(name, tmp_path):
    _, family = family_of(f"{name}5w1s")
    with pytest.raises(UserError, match=rf"drawings\.npz, which `data prepare {name}` makes"):
        family.load(DataRequest(data_root=tmp_path))


@pytest.mark.parametrize("name", ["icons", "kanji"])
def test_the_families_conform(root, name):
    assert_family_conforms(type(family_of(f"{name}5w1s")[1]), DataRequest("real", root))

"""What is done to drawings, compared with counts by hand."""

import hashlib
import json

import numpy as np
import pytest
import yaml

from mlpip_bench.datasets import drawings as reader
from mlpip_bench.datasets.base import SPLITS
from mlpip_bench.datasets.preparing import drawings
from mlpip_bench.datasets.preparing.drawings import Drawer
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet

FACTS = {"title": "Marks", "source": "a package 1.0"}
NAMES = [f"{kind}-{i}" for kind in "abcdefgh" for i in range(3)]


def noise(*seed: object) -> np.ndarray:
    """A drawing unlike any other, the same each time; a fifth of it is ink."""
    number = int(hashlib.sha256(repr(seed).encode()).hexdigest()[:8], 16)
    return (np.random.default_rng(number).random((28, 28)) < 0.2).astype(np.uint8) * 255


def drawers(count: int = 24, state: object = 1) -> list[Drawer]:
    return [Drawer(f"set{i:02d}", f"hand{i // 2}", state, f"Set {i}", f"A | B {i}", "MIT", "url") for i in range(count)]


def draw(drawer: Drawer) -> dict[str, np.ndarray]:
    return {name: noise(drawer.name, name) for name in NAMES}


def prepare(target, draw=draw, entered=None) -> None:
    drawings.prepare("marks", target, entered or drawers(), draw, Quiet(), FACTS, lambda name: name.partition("-")[0])


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_what_is_written_can_be_read_and_says_where_it_is_from(tmp_path):
    prepare(tmp_path)
    found = reader.find(tmp_path, "marks", "classes")
    assert found is not None
    dataset = found.read()
    names = [name for part in SPLITS for name in dataset.splits[part].class_names]
    assert sorted(names) == NAMES
    for part in SPLITS:
        data = dataset.splits[part]
        assert set(data.counts) == {24}
        row = iter(data.images[:, 0])
        for name in data.class_names:
            for drawer in drawers():
                np.testing.assert_array_equal(next(row), noise(drawer.name, name))
    kinds = [{name[0] for name in dataset.splits[part].class_names} for part in SPLITS]
    assert [len(each) for each in kinds] == [6, 1, 1]  # of 8 kinds: 0.7, 0.1 and 0.2 of 24 classes, in threes
    assert set.union(*kinds) == set("abcdefgh")
    facts = yaml.safe_load((tmp_path / "facts.yaml").read_text())
    assert facts["name"] == "marks"
    assert facts["source"] == "a package 1.0"
    assert facts["license"] == {"MIT": 24}
    assert facts["counts"]["train"] == {"classes": 18, "images": 18 * 24}
    lines = (tmp_path / "ATTRIBUTION.md").read_text().splitlines()
    assert r"| set03 | Set 3 | A \| B 3 | MIT | url | 24 |" in lines
    assert len([line for line in lines if line.startswith("| set")]) == 24


def test_drawers_of_one_hand_are_on_one_side(tmp_path):
    prepare(tmp_path)
    facts = yaml.safe_load((tmp_path / "facts.yaml").read_text())
    assert facts["drawers"] == {"train": 12, "test": 12}
    with np.load(tmp_path / "drawings.npz") as file:
        about = json.loads(file["about"].tobytes())
    sides = [side for _, side in about["drawers"]]
    assert sides[::2] == sides[1::2]  # of set00 and set01, which are of one hand, and so on
    found = reader.find(tmp_path, "marks", "drawers")
    with pytest.raises(UserError, match="each split needs a class with 16 drawings"):
        found.read()


def test_a_stopped_command_goes_on_with_what_is_left_and_ends_with_the_same_files(tmp_path):
    asked = []

    def counted(drawer: Drawer):
        asked.append(drawer.name)
        if drawer.name == "set09" and len(asked) < 11:
            raise KeyboardInterrupt
        return draw(drawer)

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "stopped", counted)
    assert not (tmp_path / "stopped" / "drawings.npz").exists()
    damaged, *_ = (tmp_path / "stopped" / ".parts").iterdir()
    damaged.write_bytes(damaged.read_bytes()[:100])
    asked.clear()
    asked.extend(["before"] * 20)
    prepare(tmp_path / "stopped", counted)
    again = asked[20:]
    assert len(again) == 24 - 9 + 1  # those that were not drawn, and the damaged one
    prepare(tmp_path / "whole")
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")
    assert not (tmp_path / "stopped" / ".parts").exists()


def test_what_is_there_is_made_again_only_of_other_files(tmp_path):
    def never(drawer: Drawer):
        raise AssertionError("it draws again")

    prepare(tmp_path)
    before = content(tmp_path)
    prepare(tmp_path, never)
    assert content(tmp_path) == before
    prepare(tmp_path, entered=drawers(state=2))
    assert content(tmp_path) != before


def test_blanks_copies_and_what_stands_for_two_classes_are_left_out():
    box = np.zeros((28, 28), dtype=np.uint8)
    box[4:24, 4:24] = 255
    nearly = noise("a", 0).copy()
    nearly[0, 0] ^= 255
    blank = np.zeros((28, 28), dtype=np.uint8)
    full = np.full((28, 28), 255, dtype=np.uint8)
    drawn = [{"a": noise("a", i), "b": noise("b", i), "c": noise("c", i)} for i in range(20)]
    drawn.append({"a": nearly, "b": box, "c": box})
    drawn.append({"a": blank, "b": full, "c": noise("c", 20)})
    drawn[3] |= {"b": noise("a", 5)}
    images, classes, numbers = drawings.chosen(drawn)
    # a lacks what b shows, too; so a and b have 19 and c 21.
    assert set(classes) == {"c"}
    assert numbers.tolist() == [*range(20), 21]
    np.testing.assert_array_equal(images[-1], noise("c", 20))


def test_of_two_classes_that_look_the_same_the_second_is_left_out():
    def drawn(common: str, *seed: object) -> np.ndarray:
        """Correlation 0.8 with others of what is common; the mean of 22 has 0.99 with their mean."""
        grain = np.random.default_rng([len(common), *map(ord, "".join(map(str, seed)))]).integers(0, 104, (28, 28))
        return (noise(common) / 255 * 150 + grain).astype(np.uint8)

    def classes(b: str) -> set[str]:
        shown = [{"a": drawn("x", "a", i), "b": drawn(b, "b", i), "c": drawn("z", "c", i)} for i in range(22)]
        return set(drawings.chosen(shown)[1])

    assert classes("y") == {"a", "b", "c"}
    assert classes("x") == {"a", "c"}


def test_nearly_equal_is_by_correlation():
    first = noise(1)
    lighter = (first // 2 + 20).astype(np.uint8)  # correlation 1
    images = np.stack([first, noise(2), lighter])
    assert drawings.distinct(images) == [0, 1]
    correlation = np.corrcoef(first.ravel(), noise(2).ravel())[0, 1]
    assert drawings.distinct(images, correlation - 0.01) == [0]
    assert drawings.distinct(images, correlation + 0.01) == [0, 1]


@pytest.mark.parametrize("groups", [3, 4, 10, 100])
def test_splits_have_their_shares_and_kin_stays_together(groups):
    items = range(3 * groups)
    found = drawings.split(items, lambda i: str(i // 3), (0.7, 0.1, 0.2), SPLITS)
    assert sorted(found) == list(items)
    assert all(found[3 * i] == found[3 * i + 1] == found[3 * i + 2] for i in range(groups))
    shares = [sum(part == each for each in found.values()) / len(items) for part in SPLITS]
    assert all(shares)
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=1.01 / groups if groups > 4 else 0.4)


def test_too_few_drawings_are_one_error(tmp_path):
    with pytest.raises(UserError, match=r"drawn by 19 drawers has 0 of them\. Install more"):
        prepare(tmp_path, entered=drawers(19))

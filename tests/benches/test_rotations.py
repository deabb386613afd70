"""Rotations of a character that meet in a task: how many tasks have some, and the option that decides it."""

import re

import numpy as np
import pytest

from builders import CPU, REPOSITORY, family_of
from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.datasets.omniglot import RANDOM_SIZES
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.utils.errors import UserError

CHARACTERS = 30
TASKS = 4000


def rate(characters: int, way: int) -> float:
    """Share of tasks with two of the four rotations of one character, where classes are drawn at random."""
    none = 1.0
    for drawn in range(way):
        none *= (4 * characters - 4 * drawn) / (4 * characters - drawn)
    return 1 - none


def turned() -> ImageDataset:
    """Characters and their quarter turns; a character's images have its number as their pixels."""
    names = tuple(f"c{i}{turn}" for i in range(CHARACTERS) for turn in ("", "@90", "@180", "@270"))
    images = np.repeat(np.arange(CHARACTERS, dtype=np.uint8), 4 * 2).reshape(-1, 1, 1, 1)
    part = ClassImages(np.ascontiguousarray(images), np.full(len(names), 2), names)
    return ImageDataset("made", "procedural", dict.fromkeys(SPLITS, part))


def tasks_with_two(bench: str, rotations: str) -> dict[str, float]:
    """Share of tasks in which two classes are of one character, by split."""
    spec, family = family_of(bench, rotations=rotations)
    plan = TrainingPlan(**{**family.budgets["quick"], "train_queries": 1})
    streams = family.streams(spec, turned(), plan, queries=1, seed=0, device=CPU)
    shares = {}
    for split, stream in streams.items():
        support = stream.batch(0, TASKS).support
        characters = (support.x.flatten(1) * 255).round().sort(1).values
        shares[split] = float((characters.diff(dim=1) == 0).any(1).double().mean())
    return shares


@pytest.mark.parametrize("bench", ["omni5w1s", "omni10w1s"])
def test_the_rate_of_tasks_with_two_rotations_is_that_of_the_formula(bench):
    expected = rate(CHARACTERS, family_of(bench)[0].way)
    for split, share in tasks_with_two(bench, "on").items():
        assert abs(share - expected) < 4 * (expected * (1 - expected) / TASKS) ** 0.5, split


def test_rotations_that_are_kept_separate_never_meet():
    assert tasks_with_two("omni20w1s", "separate") == dict.fromkeys(SPLITS, 0.0)
    with pytest.raises(UserError, match=r"way 31 needs 31 .* classes that may meet in a task; this data set has 30"):
        tasks_with_two("omni31w1s", "separate")


def test_the_page_on_data_has_the_rates_of_the_random_split():
    page = (REPOSITORY / "docs" / "data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (train|validation|test) \| ([\d.]+) % \| ([\d.]+) % \|$", page, re.M)
    assert {row[0] for row in rows} == set(SPLITS)
    for split, five, twenty in rows:
        expected = [f"{100 * rate(RANDOM_SIZES[split], way):.1f}" for way in (5, 20)]
        assert [five, twenty] == expected, split


def test_what_is_said_of_the_data_names_a_choice_that_is_not_the_default():
    said = {choice: family_of("omni5w1s", rotations=choice)[1].task_options for choice in ("on", "separate", "off")}
    assert said == {"on": {}, "separate": {"rotations": "separate"}, "off": {}}  # off changes the data themselves


def test_the_stand_in_has_the_same_choice():
    source = {choice: family_of("omni5w1s", rotations=choice)[1].source() for choice in ("on", "separate", "off")}
    assert source["on"].stand_in.made_from == source["separate"].stand_in.made_from
    assert source["on"].stand_in.name != source["off"].stand_in.name
    assert source["on"].chosen == source["off"].chosen == {}
    upright = source["off"].stand_in.build(lambda _: None)
    assert not any("@" in name for part in upright.splits.values() for name in part.class_names)
    assert upright.options["rotations"] == "off"

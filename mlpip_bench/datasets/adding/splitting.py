"""Which class is in which split: as the data say, by a list, or at random."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mlpip_bench.datasets.adding.material import UNSPLIT, Classes, Item, split_named
from mlpip_bench.datasets.base import SPLITS
from mlpip_bench.datasets.lists import read_list
from mlpip_bench.datasets.reading import listed
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import given_path
from mlpip_bench.utils.seeding import seed_from

DEFAULT = "60/20/20"
GIVEN = "as given"
FEWEST = 2
"""Classes of a split, for a task to have a choice."""

_SHARES = re.compile(r"(\d{1,3})/(\d{1,3})/(\d{1,3})")


def split_classes(
    splits: Mapping[str, Classes], rule: str | None, seed: int, source: Path
) -> tuple[dict[str, Classes], str]:
    """The classes of each split, and the rule that put them there.

    Args:
        splits: the classes, as their source splits them.
        rule: shares of the classes as in ``60/20/20``, or a csv file with the columns ``class,split``; None for the
            source's own splits, else ``DEFAULT``.
        seed: of the random split.
        source: for messages.

    Raises:
        UserError: a class is in two splits or none, or a split has too few.
    """
    if rule is None and UNSPLIT not in splits:
        return _given(splits, source), GIVEN
    classes = pooled(splits)
    rule = DEFAULT if rule is None else rule
    if shares := _SHARES.fullmatch(rule):
        chosen = _at_random(sorted(classes), [int(share) for share in shares.groups()], seed, source)
    else:
        chosen = _listed(sorted(classes), given_path(rule), source)
    found: dict[str, Classes] = {split: {name: classes[name] for name in names} for split, names in chosen.items()}
    _check_enough(found, source)
    return found, rule if shares else "by list"


def _given(splits: Mapping[str, Classes], source: Path) -> dict[str, Classes]:
    split_of: dict[str, str] = {}
    for split, classes in splits.items():
        if common := sorted(classes.keys() & split_of.keys()):
            raise UserError(
                f"a class may be in one split only, since few-shot tests are of new classes; {source} has "
                f"{len(common)} in both {split_of[common[0]]} and {split}: {listed(common)}. Pass --split {DEFAULT} "
                "to put the pictures of each class together and to split the classes."
            )
        split_of |= dict.fromkeys(classes, split)
    if missing := [split for split in SPLITS if split not in splits]:
        raise UserError(
            f"data that say their splits must have train, validation and test; {source} has no "
            f"{' and no '.join(missing)}. Add it, or pass --split {DEFAULT} to split all classes anew."
        )
    found = {split: dict(sorted(splits[split].items())) for split in SPLITS}
    _check_enough(found, source)
    return dict(found)


def pooled(splits: Mapping[str, Classes]) -> dict[str, list[Item]]:
    """The classes of all splits; one that is in several has its items of all of them."""
    found: dict[str, list[Item]] = defaultdict(list)
    for classes in splits.values():
        for name, items in classes.items():
            found[name] += items
    return found


def _at_random(names: list[str], shares: list[int], seed: int, source: Path) -> dict[str, list[str]]:
    if sum(shares) != 100 or 0 in shares:
        raise UserError(
            f"--split takes three shares of the classes that add up to 100, such as {DEFAULT}, or a csv file; got "
            f"{'/'.join(map(str, shares))}."
        )
    if len(names) < (least := FEWEST * len(SPLITS)):
        raise UserError(
            f"three splits of at least {FEWEST} classes take {least}, none of which is in another split; {source} has "
            f"{len(names)}: {listed(names)}. Add classes."
        )
    train, others = round(shares[0] * len(names) / 100), (shares[0] + shares[1]) * len(names) // 100
    counts = np.diff([0, train, max(train, others), len(names)])  # the test split has what shares leave over
    while counts.min() < FEWEST:  # of few classes no share comes out exactly
        counts[counts.argmax()] -= 1
        counts[counts.argmin()] += 1
    order = np.random.default_rng(seed_from("classes of splits", seed)).permutation(len(names))
    parts = np.split(order, np.cumsum(counts)[:-1])
    return {split: [names[i] for i in sorted(part)] for split, part in zip(SPLITS, parts, strict=True)}


def _listed(names: list[str], path: Path, source: Path) -> dict[str, list[str]]:
    if not path.is_file():
        raise UserError(
            f"--split takes shares of the classes such as {DEFAULT}, or a csv file with the columns class,split; got "
            f"{path}, and there is no such file."
        )
    chosen: dict[str, list[str]] = {split: [] for split in SPLITS}
    met: set[str] = set()
    digits = {len(name) for name in names if name.isdigit()} if all(map(str.isdigit, names)) else set()
    for listed_name, word in read_list(path, ("class|label", "split")):
        name = listed_name.zfill(max(digits)) if digits and listed_name.isdigit() else listed_name
        split = split_named(word)
        if split is None:
            raise UserError(f"the splits in {path} must be train, val or test; {name} is in {word!r}.")
        if name in met:
            raise UserError(f"a class may be in one split only; {path} lists {name} twice.")
        met.add(name)
        chosen[split].append(name)
    if unknown := sorted(met - set(names)):
        raise UserError(f"{path} must list classes of {source}; it has not {listed(unknown)}. It has {listed(names)}.")
    return {split: sorted(of_split) for split, of_split in chosen.items()}


def _check_enough(splits: Mapping[str, Classes], source: Path) -> None:
    for split, classes in splits.items():
        if len(classes) < FEWEST:
            raise UserError(
                f"each split needs at least {FEWEST} classes, none of which is in another split; {split} of {source} "
                f"has {len(classes)}{': ' + listed(classes) if classes else ''}. Add classes, or split them otherwise "
                "(--split)."
            )

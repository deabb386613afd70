"""``data add``: find, split, decode, check, write."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from mlpip_bench.datasets import added
from mlpip_bench.datasets.adding import array_files, folders, lists
from mlpip_bench.datasets.adding.decoding import decode_splits
from mlpip_bench.datasets.adding.layouts import (
    cifar_fs,
    cub,
    idx,
    meta_album,
    parquet,
    pickles,
    split_lists,
    tiny_imagenet,
)
from mlpip_bench.datasets.adding.layouts import domains as domains_of
from mlpip_bench.datasets.adding.material import FEATURE_OPTIONS, Classes, Material, Reader, sole_folder
from mlpip_bench.datasets.adding.splitting import GIVEN, pooled, split_classes
from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.provenance import Source

READERS: tuple[Reader, ...] = (
    array_files.find,
    lists.find,
    parquet.find,
    pickles.find,
    idx.find,
    meta_album.find,
    cub.find,
    cifar_fs.find,
    tiny_imagenet.find,
    split_lists.find,
)
"""Tried in this order, then two levels of folders, and then class folders."""
LARGEST_SIZE = 1024


@dataclass(frozen=True)
class Choices:
    """What a user chooses.

    Attributes:
        image_size: height and width of the images; None for the data's own, or what pictures have by default.
        split: see :func:`~mlpip_bench.datasets.adding.splitting.split_classes`.
        seed: of the random split; None for 0.
        license, citation: of the data.
        pretrained_on: what the network was trained on that made the features.
        replace: whether an added data set of that name is replaced.
        domains: of two levels of folders, whether the upper ones are domains of the same classes; None where the names
            of the folders say it.
    """

    image_size: int | None = None
    split: str | None = None
    seed: int | None = None
    license: str = ""
    citation: str = ""
    pretrained_on: str = ""
    replace: bool = False
    domains: bool | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None and not 8 <= self.image_size <= LARGEST_SIZE:
            raise UserError(f"--image-size takes a number from 8 to {LARGEST_SIZE}; got {self.image_size}.")


def add(name: str, source: Path, data_root: Path, choices: Choices, reporter: Reporter) -> added.Description:
    """Make a data set of a user's data, below the data root.

    Args:
        name: of the data set; it has been checked that no other task family has it.
        source: a folder, a csv list or an npz file.
        data_root: where data sets are.
        choices: the user's.
        reporter: shows what takes long.

    Raises:
        UserError: what is wrong with the data or the choices, or a file that cannot be written; nothing is left then.
    """
    added.check_name(name)
    if data_root.exists() and source.exists() and data_root.samefile(source):
        raise UserError(
            f"a data set is written to a folder of the data root, which would be a class of the next one; {source} is "
            "the data root itself. Use another --data-root."
        )
    return added.write(data_root, name, _maker(name, source, choices, reporter), replace=choices.replace)


def _maker(
    name: str, source: Path, choices: Choices, reporter: Reporter
) -> Callable[[], tuple[ImageDataset, added.Description]]:
    def make() -> tuple[ImageDataset, added.Description]:
        try:
            material = _found(source, choices.domains)
        except OSError as error:
            raise UserError(f"the data must be readable; {error.filename} is not: {error.strerror}.") from error
        _check_choices(material, choices, source)
        splits, rule = split_classes(material.splits, choices.split, choices.seed or 0, source)
        is_random = rule not in (GIVEN, "by list")
        if choices.seed is not None and not is_random:
            raise UserError(f"--seed is of a random split; the classes of {source} are split {rule}. Leave it out.")
        _check_class_names(pooled(material.splits), source)
        size = choices.image_size or material.size
        of_a_bench = "features_of" in material.facts  # whose images may be equal
        arrays, repeated = decode_splits(
            splits, size, is_features=material.is_features, reporter=reporter, as_they_are=of_a_bench
        )
        unlisted = len(pooled(material.splits)) - sum(map(len, splits.values()))
        uncounted = {"repeated": repeated, "classes in no split": unlisted}
        options: dict[str, str | int] = {} if material.is_features else {"size": size}
        options |= {"split": rule}
        options |= {"split_seed": choices.seed or 0} if is_random else {}
        trained_on = choices.pretrained_on or material.facts.get("pretrained_on", "")
        options |= {"pretrained_on": trained_on} if material.is_features else {}
        options |= {option: material.facts[option] for option in FEATURE_OPTIONS if option in material.facts}
        dataset = ImageDataset(name, cast("Source", material.facts.get("source", "real")), arrays, options)
        description = added.Description(
            name=name,
            kind="features" if material.is_features else "images",
            image_shape=dataset.image_shape,
            source=f"{source.absolute()}, {material.layout}",
            options=options,
            license=choices.license or material.facts.get("license", ""),
            citation=choices.citation or material.facts.get("citation", ""),
            pretrained_on=trained_on,
            left_out={**material.left_out, **{what: count for what, count in uncounted.items() if count}},
            fingerprint=dataset.fingerprint,
            splits={
                split: dict(zip(data.class_names, data.counts.tolist(), strict=True)) for split, data in arrays.items()
            },
        )
        return dataset, description

    return make


def _found(source: Path, domains: bool | None) -> Material:
    if not source.exists():
        raise UserError(f"--from names a folder, a csv list or an npz file; {source} is not there.")
    inner = sole_folder(source)
    places = [source] if inner is None else [source, inner]
    readers: tuple[Reader, ...] = (*READERS, partial(domains_of.find, domains=domains))
    for place in places:
        for read in readers:
            if (material := read(place)) is not None:
                return material
    if (material := folders.find(places[-1])) is not None:
        return material
    raise UserError(
        f"--from names a folder of class folders, a csv list (.csv, .tsv) or an array file (.npz); got {source}."
    )


def _check_class_names(classes: Classes, source: Path) -> None:
    """Refuse names that no list or message can show, all letters of all languages can be; and two shown as one."""
    if odd := [name for name in classes if not name.isprintable()]:
        raise UserError(f"names of classes must have characters that can be shown; {source} has {odd[0]!r}. Rename it.")
    met: dict[str, str] = {}
    for name in classes:
        if (other := met.setdefault(unicodedata.normalize("NFC", name), name)) != name:
            raise UserError(
                f"two classes may not have one name; {source} has {name!r} twice, its letters composed as "
                f"{other!a} and as {name!a}. Put their pictures together, or rename one."
            )


def _check_choices(material: Material, choices: Choices, source: Path) -> None:
    if material.is_features and choices.image_size is not None:
        raise UserError(f"--image-size is for pictures; {source} has feature vectors. Leave it out.")
    if material.is_features and not (choices.pretrained_on or material.facts.get("pretrained_on")):
        raise UserError(
            f"{source} has feature vectors: a result on them depends on what their network was trained on. Name it "
            "with --pretrained-on, for example --pretrained-on 'ImageNet-1k, supervised', or none."
        )
    if not material.is_features and choices.pretrained_on:
        raise UserError(f"--pretrained-on is for feature vectors; {source} has pictures. Leave it out.")

"""``data export-split``: the classes of a bench's splits and its test tasks, so that nobody need guess what is test."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlpip_bench.datasets.base import ClassImages
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION
from mlpip_bench.execution.frozen_tasks import FrozenTasks
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import cannot_write, sha256_of
from mlpip_bench.utils.npz import write_npz
from mlpip_bench.utils.progress import Reporter

FORMAT = "mlpip_bench split 1"
SPLIT, TASKS, ABOUT = "split.json", "tasks.npz", "README.md"
_WHAT = {
    SPLIT: "the data set, the bench, and the classes of each split, with the place of their images",
    TASKS: "the test tasks, as indices",
}


def export_split(frozen: FrozenTasks, target: Path, reporter: Reporter, *, images: bool = False) -> None:
    """Write a folder, whole or not at all; two of the same data and options are equal.

    Args:
        frozen: the bench's test tasks, and its splits.
        target: the folder, which is made.
        reporter: shows what takes long.
        images: whether the images are written, too.

    Raises:
        UserError: there is something at that place, or it cannot be written.
    """
    if os.path.lexists(target):
        raise UserError(f"an export gets a folder of its own, which it makes; {target} is there. Name another.")
    temporary = target.with_name(f".{target.name}.exporting.{secrets.token_hex(4)}")
    try:
        temporary.mkdir(parents=True)
        (temporary / TASKS).write_bytes(frozen.content)
        (temporary / SPLIT).write_text(json.dumps(described(frozen), indent=1) + "\n", encoding="utf-8")
        what = dict(_WHAT)
        if images:
            with reporter.stage("writing images", len(frozen.splits)) as step:
                for done, (split, data) in enumerate(frozen.splits.items(), 1):
                    _write_images(temporary / f"{split}.npz", data)
                    what[f"{split}.npz"] = f"the {data.num_images} images of the {split} classes, and their classes"
                    step(done)
        (temporary / ABOUT).write_text(_about(frozen, temporary, what), encoding="utf-8")
        temporary.rename(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def described(frozen: FrozenTasks) -> dict[str, Any]:
    """What ``split.json`` says."""
    trial = frozen.trial
    config = {name: value for name, value in trial.config.items() if name in ("way", "shot", "queries", "preset")}
    return {
        "format": FORMAT,
        "numbers": NUMBERS_VERSION,
        "bench": trial.measured_as,
        **config,
        "query_concentration": trial.query_concentration,
        "test_tasks": trial.plan.test_tasks,
        "tasks_sha256": frozen.sha256,
        "image_shape": list(frozen.splits["test"].image_shape),
        "data": trial.data_facts,
        "splits": {split: _classes(data) for split, data in frozen.splits.items()},
    }


def _classes(data: ClassImages) -> list[dict[str, Any]]:
    starts = np.cumsum(data.counts) - data.counts
    return [
        {"class": number, "name": name, "first": int(first), "images": int(count)}
        for number, (name, first, count) in enumerate(zip(data.class_names, starts, data.counts, strict=True))
    ]


def _write_images(path: Path, data: ClassImages) -> None:
    with path.open("xb") as file:
        write_npz(file, {"images": data.images, "classes": np.repeat(np.arange(data.num_classes), data.counts)})


def _about(frozen: FrozenTasks, folder: Path, what: Mapping[str, str]) -> str:
    trial = frozen.trial
    files = "".join(f"| `{name}` | {words} | `{sha256_of(folder / name)}` |\n" for name, words in what.items())
    sizes = (f"{split} {data.num_classes} classes, {data.num_images} images" for split, data in frozen.splits.items())
    return f"""# {trial.measured_as}: the classes of each split, and the test tasks

Data: {trial.data.name} ({trial.data.source}), with the fingerprint `{trial.data.fingerprint}`.
Splits: {"; ".join(sizes)}.
What is trained for this bench may see the classes of `train`, be chosen on those of `validation`, and must never have
seen those of `test`.

| file | what | SHA-256 |
| --- | --- | --- |
{files}
`{SPLIT}`: under `splits` each split's classes in their order; `first` is the index of a class's first image among
those of its split, which stand together, `images` how many there are, in the order in which the suite reads them.

`{TASKS}`: `numpy.load` gives {trial.plan.test_tasks} tasks of {trial.bench.way} ways with

| array | shape | what |
| --- | --- | --- |
| `classes` | task, way | which class of `test` each label is |
| `support`, `support_y` | task, point | index among the images of `test`, and label, of each support point |
| `query`, `query_y` | task, point | the same of each query |

`train.npz`, `validation.npz` and `test.npz`, where they were asked for: `images`, [image, channel, height, width] of
uint8, which networks of the suite see divided by 255 (or vectors of float32), and `classes`, the class of each.

Scores of these tasks, a row a task in a csv file with the columns `accuracy` and `nll` (a fraction, and nats per
query), are put next to those of the suite by `python -m mlpip_bench import-scores`, with
`--tasks {frozen.sha256}`.
"""

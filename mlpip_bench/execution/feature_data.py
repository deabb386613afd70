"""``data features``: the images of a bench as the feature vectors of a network, for heads that train on a CPU."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mlpip_bench import registry
from mlpip_bench.benches.family import DataRequest
from mlpip_bench.benches.images import ImageClassification
from mlpip_bench.datasets import added
from mlpip_bench.datasets.adding.array_files import FACTS
from mlpip_bench.datasets.base import ClassImages, ImageDataset
from mlpip_bench.execution import options
from mlpip_bench.nn.backbone import Backbone, BackboneSpec, InputShape
from mlpip_bench.nn.weights import NOTHING, NetworkSettings
from mlpip_bench.utils.choices import NORM_MODES, OWN_NORM, NormMode
from mlpip_bench.utils.errors import UserError, cut, unknown_name
from mlpip_bench.utils.files import write_atomically
from mlpip_bench.utils.npz import write_npz
from mlpip_bench.utils.numerics import SCORED
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.seeding import seed_from
from mlpip_bench.utils.settings import field_types, key_of, with_values

_OF_A_TASK: tuple[NormMode, ...] = ("transductive", "metabn", "tasknorm")
"""Norms under which features of an image are other ones in another task."""
_AT_ONCE = 256  # images of a pass


@dataclass(frozen=True, eq=False)
class Extractor:
    """A network that is applied as it is.

    Attributes:
        network: in evaluation mode, on its device.
        trained_on: what it saw.
        title: the network in words, with its weights' digest and its norm.
    """

    network: Backbone
    trained_on: str
    title: str

    @torch.no_grad()
    def vectors(self, images: NDArray[Any], device: torch.device) -> NDArray[np.float32]:
        """The features of some images, each of which the network sees alone."""
        x = torch.from_numpy(images).to(device).to(torch.float32).div_(255)
        features, _ = self.network(x.unsqueeze(0))
        return features[0].cpu().numpy()


def extractor(text: str, norm: str, shape: InputShape, device: torch.device) -> Extractor:
    """The network that a user names.

    Args:
        text: a backbone with its settings, ``weights`` and ``trained_on`` among them, as ``--backbone`` has it.
        norm: one under which features do not depend on a task.
        shape: of an image.
        device: where it runs.

    Raises:
        UserError: no such network, settings or norm; weights that do not fit; or nothing that says what they saw.
    """
    allowed = [mode for mode in (*NORM_MODES, OWN_NORM) if mode not in _OF_A_TASK]
    if norm in _OF_A_TASK:
        raise UserError(
            f"features of an image must be the same in every task; under the norm {norm} they are not. Use one of "
            f"{', '.join(allowed)}."
        )
    if norm not in allowed:
        raise unknown_name("norm", norm, allowed)
    name, values = options.with_settings("backbone", text, "resnet12,trained_on=none")
    assert name is not None  # which is None for no text
    plugin = registry.backbone(name)
    settings = with_values(plugin.Settings, values, name)
    spec = BackboneSpec(name, plugin, settings, shape)
    outside = spec.outside
    saw = outside.saw if outside else getattr(settings, "trained_on", NOTHING)
    if not saw.strip():
        raise UserError(
            "what a result on features means depends on what their network was trained on; --backbone does not say it. "
            f"Add trained_on=TEXT, for example {name},weights=FILE,trained_on=ImageNet-1k, or trained_on={NOTHING} for "
            "initial parameters."
        )
    used = spec.norm_used(norm)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_from("initialisation", 0))
        network = spec.build(used)
    facts = [f"norm {norm}"] * plugin.normalizes
    facts += [f"weights {outside.sha256[:12]}"] if outside and outside.sha256 else []
    of_training = field_types(NetworkSettings)
    chosen = [f"{key}={value}" for key, value in key_of(settings).items() if key not in of_training]
    title = ",".join([name, *chosen]) + (f" ({', '.join(facts)})" if facts else "")
    return Extractor(network.to(device).eval(), saw, cut(title))


def images_of(
    bench: str, data_root: Path | None, request: DataRequest, chosen: Mapping[str, Mapping[str, Any]]
) -> tuple[ImageDataset, ImageClassification]:
    """The data set of a bench, and its family.

    Args:
        bench: its name; way and shot do not matter.
        data_root: where data sets are that were added.
        request: where data may come from.
        chosen: options of task families, by family.

    Raises:
        UserError: no such bench or data; or they are no images of classes that are other ones at test.
    """
    name = registry.bench(bench, data_root).family
    if others := chosen.keys() - {name}:
        raise UserError(f"--data names the bench's task family, {name}; got {others.pop()!r}.")
    plugin = registry.family(name, data_root)
    family = plugin(with_values(plugin.Options, chosen.get(name, {}), name))
    if not isinstance(family, ImageClassification):
        raise UserError(
            f"features are of images of classes, other ones at test; {bench} has none. Choose another bench."
        )
    if family.task_options:
        words = ", ".join(f"{option}={value}" for option, value in family.task_options.items())
        raise UserError(f"{name}.{words} shapes tasks, which a data set of features cannot keep. Leave it out.")
    data = family.load(request)
    if data.image_shape[1:] == (1, 1):
        raise UserError(f"features are of images; {bench} has vectors already. Use them as they are.")
    return data, family


def feature_data(
    name: str, data: ImageDataset, used: Extractor, device: torch.device, reporter: Reporter
) -> ImageDataset:
    """All images of a data set as vectors, with what made them among its options.

    Raises:
        UserError: a feature that is no finite number.
    """
    found, done = {}, 0
    with SCORED.applied(), reporter.stage("features", sum(part.num_images for part in data.splits.values())) as step:
        for split, part in data.splits.items():
            parts = []
            for start in range(0, part.num_images, _AT_ONCE):
                parts.append(used.vectors(part.images[start : start + _AT_ONCE], device))
                step(done := done + len(parts[-1]))
            vectors = np.concatenate(parts).astype(np.float32)
            if not np.isfinite(vectors).all():
                raise UserError(f"features must be finite numbers; some of {used.title} are not. Check its weights.")
            found[split] = ClassImages(vectors[..., None, None], part.counts, part.class_names)
    made = {
        "pretrained_on": used.trained_on,
        "features_by": used.title,
        "features_of": f"{data.name} {data.fingerprint[:12]}",
    }
    return ImageDataset(name, data.source, found, {**data.options, **made})


def write_file(path: Path, features: ImageDataset) -> None:
    """A file as ``data add`` takes it.

    Raises:
        UserError: it cannot be written.
    """
    splits, said = features.splits, {"source": features.source, **features.options}
    arrays = {
        "features": np.concatenate([part.images[..., 0, 0] for part in splits.values()]),
        "labels": np.concatenate([np.repeat(part.class_names, part.counts) for part in splits.values()]),
        "split": np.repeat(list(splits), [part.num_images for part in splits.values()]),
        **{name: np.array(said[name]) for name in FACTS},
    }
    content = io.BytesIO()
    write_npz(content, arrays)
    write_atomically(path, content.getvalue())


def write_data(
    name: str, make: Callable[[], ImageDataset], family: ImageClassification, data_root: Path, *, replace: bool
) -> None:
    """A data set below the data root, as ``data add`` makes them, with the classes and images of the one it is made of.

    Args:
        name: of the data set.
        make: computes the features, once it is certain that they can be put there.
        family: of the images; a license of theirs is that of the features.
        data_root: where data sets are.
        replace: whether one of that name that was added before is replaced.

    Raises:
        UserError: there is something of its name, or it cannot be written.
    """
    of: added.Description | None = getattr(family, "description", None)

    def described() -> tuple[ImageDataset, added.Description]:
        features = make()
        return features, added.Description(
            name=name,
            kind="features",
            image_shape=features.image_shape,
            source=f"{features.options['features_of']}, by data features",
            options=features.options,
            license=of.license if of else "",
            citation=of.citation if of else "",
            pretrained_on=str(features.options["pretrained_on"]),
            left_out={},
            fingerprint=features.fingerprint,
            splits={
                split: dict(zip(part.class_names, part.counts.tolist(), strict=True))
                for split, part in features.splits.items()
            },
        )

    added.write(data_root, name, described, replace=replace)

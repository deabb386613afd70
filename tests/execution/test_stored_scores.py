"""Tiny runs of every method, against the scores that they had when the numbers version was last raised.

They are in float64, where another processor or another order of sums moves them by far less than the tolerance. What is
stored also holds what each method's settings come to by default: a setting at its default is no part of a record's key.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from builders import CPU, in_float64
from mlpip_bench import registry
from mlpip_bench.benches.families.views import Views
from mlpip_bench.benches.family import PRESETS, DataRequest
from mlpip_bench.benches.images import FixedTasks
from mlpip_bench.benches.linear import LinearGaussianFamily
from mlpip_bench.benches.settings import resolve, scopes
from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.datasets.views import VIEWS, view_dataset
from mlpip_bench.evaluation.protocol import Evaluation
from mlpip_bench.inference.method import Problem, TrainingPlan
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.training.loop import train
from mlpip_bench.utils.choices import NORM_MODES
from mlpip_bench.utils.seeding import seed_from

STORED = Path(__file__).with_name("stored_scores.json")
PLAN = TrainingPlan(3, 2, 3, 1e-3, validate_every=2, validation_tasks=2, test_tasks=3)
SHOWN = ("linear5s", "toy5", "toyfresh5", "context16", "views1s", "omni5w1s", "omni20w5s", "tiny5w1s", "mini5w5s")


def images(classes: dict[str, int], each: int, shape: tuple[int, int, int], *, same: bool = False) -> ImageDataset:
    """A noisy template a class; ``same`` for the same classes in all splits."""
    splits = {}
    for split in SPLITS:
        rng = np.random.default_rng([len(split) * (not same), *shape])
        templates = rng.integers(0, 256, (classes[split], 1, *shape))
        noise = np.random.default_rng(len(split)).integers(-60, 61, (classes[split], each, *shape))
        made = np.clip(templates + noise, 0, 255).astype(np.uint8)
        names = tuple(f"{'' if same else split} {i}" for i in range(classes[split]))
        splits[split] = ClassImages(made.reshape(-1, *shape), np.full(classes[split], each), names)
    return ImageDataset("made", "procedural", splits)


def dataset(family):
    """Made data in the shape of a family's."""
    if isinstance(family, LinearGaussianFamily):
        return family.load(DataRequest())
    if isinstance(family, Views):
        pictures = np.random.default_rng(7).integers(0, 256, (12, VIEWS, 32, 32)).astype(np.uint8)
        return view_dataset("made", "procedural", pictures, [str(i) for i in range(12)], {})
    if isinstance(family, FixedTasks):
        return images(dict.fromkeys(SPLITS, 10), 40, (1, 28, 28), same=True)
    shape = {"Omniglot": (1, 28, 28), "TinyImageNet": (3, 32, 32), "MiniImageNet": (3, 84, 84)}[type(family).__name__]
    return images({"train": 8, "validation": 6, "test": 7}, 20, shape)


class InFloat64:
    """A stream, in float64."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def batch(self, first, tasks):
        return in_float64(self.stream.batch(first, tasks))


def tiny_run(method: str, name: str, norm: str, folder: Path) -> dict[str, list[float]]:
    """Scores of a method after three steps on made data."""
    bench = registry.bench(name)
    family_plugin = registry.family(bench.family)
    family = family_plugin(family_plugin.Options())
    plugin, data = registry.method(method), dataset(family)
    plan = family.fitted(PLAN, bench, data)
    settings = plugin.Settings()
    steps = [f.name for f in dataclasses.fields(settings) if f.name.endswith("steps")]
    settings = dataclasses.replace(settings, **{step: min(getattr(settings, step), 4) for step in steps})
    if family.kind == "reconstruction" and hasattr(settings, "eval_samples"):
        settings = dataclasses.replace(settings, eval_samples=min(settings.eval_samples, 4))  # each draws images
    found = family.streams(bench, data, plan, queries=family.queries_at_test(4), seed=0, device=CPU)
    streams = {split: InFloat64(stream) for split, stream in found.items()}
    backbone = registry.backbone(family.backbone)
    chosen = backbone.Settings(**family.settings_of_backbone(bench))
    spec = BackboneSpec(family.backbone, backbone, chosen, family.input_shape(data))
    problem = Problem(spec, norm, bench.way, family.kind, family.noise_std, family.inputs, family.kernel)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_from("initialisation", 0))
        built = plugin(problem, settings)
    metrics = family.validation_metrics
    state = train(
        built, plan, streams["train"], streams["validation"], metrics=metrics, seed=0, checkpoint=folder / "state.pt"
    )
    built.load_state_dict(state.model)
    scores = Evaluation(built, "last", streams["test"], plan.test_tasks).scores(metrics)
    return {s.metric: list(s.per_task) for s in scores} | {"loss": [e["loss"] for e in state.history if "loss" in e]}


def cases() -> list[tuple[str, str, str]]:
    """Method, bench and norm of each tiny run."""
    found = []
    for method in registry.method_names():
        handles = registry.method(method).handles
        found += [(method, "omni3w2s", "metabn")] * ("classification" in handles)
        found += [(method, "linear5s", "metabn"), (method, "toy5", "metabn")] * ("regression" in handles)
        found += [(method, "views2s", "metabn")] * ("reconstruction" in handles)
    found += [("protonets", "omni3w2s", norm) for norm in NORM_MODES if norm != "metabn"]
    found += [(method, "omni3w2s", "running") for method in ("versa", "maml")]
    return [
        *found,
        ("protonets", "tiny3w1s", "metabn"),
        ("protonets", "mini3w1s", "metabn"),
        ("versa", "context4", "metabn"),
    ]


def defaults() -> dict[str, dict[str, object]]:
    """What plan and settings of each method come to, by bench and budget."""
    found = {}
    for method in registry.method_names():
        plugin = registry.method(method)
        for name in SHOWN:
            bench = registry.bench(name)
            family = registry.family(bench.family)
            if family.kind in plugin.handles:
                for preset in PRESETS:
                    scope = scopes(family, bench)
                    resolved = resolve(plugin, method, family.budgets[preset], preset, scope, {})
                    config = dataclasses.asdict(resolved.plan) | dataclasses.asdict(resolved.settings)
                    found[f"{method} {name} {preset}"] = json.loads(json.dumps(config))
    return found


@pytest.fixture
def _float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("case", cases(), ids=" ".join)
def test_a_tiny_run_has_the_scores_that_it_had(case, tmp_path):
    stored = json.loads(STORED.read_text())["scores"].get(" ".join(case))
    if stored is None:
        pytest.skip(
            "no scores are stored; PYTHONPATH=tests "
            "python tests/execution/test_stored_scores.py stores those of all cases"
        )
    found = tiny_run(*case, tmp_path)
    assert found.keys() == stored.keys()
    for name, values in stored.items():
        assert found[name] == pytest.approx(values, rel=1e-8, abs=1e-8), name


def test_settings_have_the_defaults_that_they_had():
    stored = json.loads(STORED.read_text())["defaults"]
    found = defaults()
    for case, config in stored.items():
        assert {name: found[case].get(name) for name in config} == config, case


if __name__ == "__main__":  # writes what is stored anew
    import tempfile

    torch.set_default_dtype(torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        runs = {" ".join(case): tiny_run(*case, Path(folder) / str(i)) for i, case in enumerate(cases())}
    STORED.write_text(json.dumps({"scores": runs, "defaults": defaults()}, indent=1) + "\n")

"""What tests of several packages build or call: one of each."""

from pathlib import Path
from typing import Any

from mlpip_bench import registry
from mlpip_bench.benches.family import TaskFamily
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.nn.backbone import BackboneSpec, InputShape

REPOSITORY = Path(__file__).resolve().parents[1]


def backbone(name: str, input_shape: InputShape, **settings: Any) -> BackboneSpec:
    """A backbone with some settings, for inputs of a shape."""
    plugin = registry.backbone(name)
    return BackboneSpec(name, plugin, plugin.Settings(**settings), input_shape)


def family_of(bench: str, **options: Any) -> tuple[BenchSpec, TaskFamily]:
    """What a bench's name says, and its task family with some options."""
    spec = registry.bench(bench)
    plugin = registry.family(spec.family)
    return spec, plugin(plugin.Options(**options))


LISTED = [example for plugin in registry.families().values() for example in plugin.examples]
"""The benches that are listed."""

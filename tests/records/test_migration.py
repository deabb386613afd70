"""Records of schema 1, which version 0.1 wrote, as the present one has them."""

import hashlib
import json
from pathlib import Path

import pytest

from builders import REPOSITORY
from mlpip_bench import registry
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.records import store
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.settings import with_values

SCHEMA_1 = {
    "schema": 1,
    "key": "b347a337d7a5",
    "bench": "omni5w1s",
    "method": "protonets",
    "protocol": "accuracy",
    "seed": 0,
    "device": "cpu",
    "inductive": True,
    "config": {
        "way": 5, "shot": 1, "queries": 15, "norm": "metabn", "preset": "quick", "iterations": 3,
        "tasks_per_batch": 16,
        "settings": {"scale": 1.0},
    },
    "data": {"name": "omniglot", "source": "real", "fingerprint": "f" * 64, "options": {"split": "random"}},
    "scores": [
        {
            "metric": "accuracy", "unit": "fraction", "better": "higher", "way": 5, "shot": 1, "queries": 15,
            "model": "best", "per_task": [0.5, 0.75], "condition": {}, "detail": {}, "over": "tasks",
        }
    ],
    "parameters": 111680,
    "training": {"iterations": 3},
    "seconds": 1.5,
    "environment": {"mlpip_bench": "0.1.0", "code": {"engine": "0.1.0", "method": "e379fb8de506"}},
}  # fmt: skip
"""Written out by hand, as version 0.1 wrote it."""


def written(folder: Path, **changes: object) -> Path:
    """A record of version 0.1, with its checksum."""
    raw = {**SCHEMA_1, **changes}
    checksum = hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()
    path = folder / "record.json"
    path.write_text(json.dumps({**raw, "checksum": checksum}, indent=1), encoding="utf-8")
    return path


def test_a_record_of_schema_1_keeps_all_it_says_and_gets_the_backbone_it_had(tmp_path):
    record = store.load(written(tmp_path))
    assert record.schema == 2
    assert record.scores[0].per_task == (0.5, 0.75)
    for name in SCHEMA_1.keys() - {"schema", "scores"}:
        assert getattr(record, name) == SCHEMA_1[name]
    assert record.backbone == {
        "name": "conv4",
        "spec": {"blocks": 4, "channels": 64, "ceil_mode": True, "dropout": 0.1, "last": None},
        "input_shape": [1, 28, 28],
    }
    assert store.load(store.save(record, tmp_path)) == record


SHAPES = {
    "omni20w5s": (1, 28, 28),
    "tiny5w1s": (3, 32, 32),
    "mini5w5s": (3, 84, 84),
    "context2": (1, 28, 28),
    "context16": (1, 28, 28),
    "views1s": (1, 32, 32),
    "linear5s": (3, 1, 1),
    "toy10": (0, 1, 1),
    "toyfresh5": (0, 1, 1),
}


@pytest.mark.parametrize("bench", SHAPES)
def test_the_backbone_of_schema_1_is_the_one_that_the_bench_has_by_default(bench, tmp_path):
    record = store.load(written(tmp_path, bench=bench))
    spec = registry.bench(bench)
    family = registry.family(spec.family)
    backbone = registry.backbone(family.backbone)
    chosen = with_values(backbone.Settings, family.settings_of_backbone(spec), family.backbone)
    now = BackboneSpec(family.backbone, backbone, chosen, SHAPES[bench])
    assert record.backbone == {"name": now.name, "spec": now.spec, "input_shape": list(SHAPES[bench])}


def test_committed_records_of_all_benches_load_with_a_backbone_that_is_installed():
    by_bench = {path.parts[-3]: path for path in (REPOSITORY / "results").rglob("records/*/*/*.json")}
    assert {"omni5w1s", "tiny5w5s", "toy10", "linear5s"} <= by_bench.keys()
    for bench, path in by_bench.items():
        record = store.load(path)
        assert (record.schema, record.bench) == (2, bench)
        settings = registry.backbone(record.backbone["name"]).Settings
        assert with_values(settings, record.backbone["spec"], bench) is not None
        assert len(record.backbone["input_shape"]) == 3


@pytest.mark.parametrize("schema", [99, 0, None, "two", [1]])
def test_other_schemas_are_refused(schema, tmp_path):
    with pytest.raises(UserError, match="this version reads schemas 1 to 2"):
        store.load(written(tmp_path, schema=schema))


def test_a_record_of_a_newer_version_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="A newer mlpip_bench wrote it: upgrade this one"):
        store.load(written(tmp_path, schema=99))


def test_a_record_of_schema_1_that_was_changed_is_refused(tmp_path):
    path = written(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("0.75", "0.85"), encoding="utf-8")
    with pytest.raises(UserError, match="its checksum is wrong"):
        store.load(path)

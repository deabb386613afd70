"""A user's own network as a backbone, from a module or a file, with weights of a file."""

import csv
import json
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import mlpip_bench
from builders import assert_one_error, budget, invoke
from mlpip_bench import registry
from mlpip_bench.execution.fingerprint import plugin_code
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.nn.weights import load_strictly, read_weights
from mlpip_bench.records import store
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.settings import key_of, with_values

NETWORK = """
    from __future__ import annotations

    import torch
    from torch import nn


    def build(input_shape, width: int = 3, bias: bool = True):
        '''A convolution and batch norm.'''
        convolution = nn.Conv2d(input_shape[0], width, 3, stride=4, bias=bias)
        return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten())


    class Network(nn.Sequential):
        def __init__(self, input_shape, layers=1):
            super().__init__(*[nn.Identity() for _ in range(layers)], nn.Flatten())


    def without_shape():
        return nn.Flatten()


    def with_names(*names, **more):
        return nn.Flatten()


    def sees_others(input_shape):
        class Seeing(nn.Module):
            def forward(self, x):
                return (x - x.mean(0)).flatten(1)

        return Seeing()


    class FirstOfBatch(nn.Flatten):
        def forward(self, x):
            features = super().forward(x)
            return features + features[:1]


    class Moving(nn.Flatten):
        def __init__(self, input_shape):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return super().forward(x)


    class Growing(nn.Flatten):
        def __init__(self, input_shape):
            super().__init__()

        def forward(self, x):
            self.register_buffer(f"seen{len(self._buffers)}", torch.zeros(()))
            return super().forward(x)


    class Pair(nn.Flatten):
        def forward(self, x):
            return super().forward(x), x


    class OneMore(nn.Flatten):
        def forward(self, x):
            return super().forward(torch.cat([x, x[:1]]))


    def with_objects(input_shape, layers: list = [1, 2], norm=nn.BatchNorm2d, more={}, width: int = 2):
        return nn.Sequential(*[nn.Conv2d(input_shape[0], width, 1) for _ in layers[:1]], norm(width), nn.Flatten())


    def fails(input_shape):
        raise RuntimeError("no such thing")


    def ends(input_shape):
        raise SystemExit(3)


    def builds_nothing(input_shape):
        return None


    def has_no_default(input_shape, width):
        return nn.Flatten()


    def takes_frozen(input_shape, frozen=True):
        return nn.Flatten()


    def twice(input_shape):
        layer = nn.BatchNorm2d(input_shape[0])
        return nn.Sequential(layer, layer, nn.Flatten())


    class Noisy(nn.Flatten):
        def forward(self, x):
            return super().forward(x) + torch.randn(1)


    class Spoiling(nn.Flatten):
        def forward(self, x):
            return super().forward(x.mul_(0.5))


    class Infinite(nn.Flatten):
        def forward(self, x):
            return super().forward(x) / 0


    def lazy(input_shape):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(16))


    def with_another_epsilon(input_shape):
        return nn.Sequential(nn.BatchNorm2d(input_shape[0], eps=1e-3), nn.Flatten())


    number = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my network.py"
    path.write_text(textwrap.dedent(NETWORK), encoding="utf-8")
    return path


def run(tmp_path: Path, backbone: str, *more: str, methods: str = "protonets,maml"):
    where = ["--bench", "omni5w1s", "--source", "procedural", "--results", tmp_path / "runs"]
    return invoke("run", *where, "--methods", methods, "--backbone", backbone, *budget(), *more)


def test_a_network_of_a_file_is_trained_named_and_loaded_again(file, tmp_path):
    result = run(tmp_path, f"{file}:build,width=2", "--protocols", "accuracy")
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "runs").rglob("accuracy*.json"))) == 2
    records = list((tmp_path / "runs").rglob("protonets/accuracy*.json"))
    record = json.loads(records[0].read_text(encoding="utf-8"))
    assert record["backbone"]["name"] == f"{file}:build"
    assert record["backbone"]["spec"] == {"width": 2, "bias": True}
    assert record["environment"]["code"]["plugins"] == {
        f"backbone {file}:build": plugin_code("backbone", f"{file}:build")
    }
    model = mlpip_bench.load(records[0], trust_code=True)
    assert model.method.backbone.network[0][0].weight.shape == (2, 1, 3, 3)


def test_another_file_makes_another_trial(file, tmp_path):
    run(tmp_path, f"{file}:build", "--protocols", "accuracy")
    assert "0 trials run" in run(tmp_path, f"{file}:build", "--protocols", "accuracy").output
    before = plugin_code("backbone", f"{file}:build")
    file.write_text(file.read_text(encoding="utf-8") + "\n# another\n", encoding="utf-8")
    assert plugin_code("backbone", f"{file}:build") != before


def test_a_module_of_the_working_folder_is_found(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file.rename(tmp_path / "network_of_mine.py")
    network = registry.backbone("network_of_mine:build")
    assert network((1, 12, 12), network.Settings(), "metabn").features == 3 * 3 * 3
    assert network.__doc__ == "A convolution and batch norm."


@pytest.mark.parametrize(("name", "settings"), [("Network", {"layers": 2}), ("without_shape", {}), ("with_names", {})])
def test_classes_and_functions_without_parameters_are_taken(name, settings, file):
    plugin = registry.backbone(f"{file}:{name}")
    assert plugin((1, 4, 4), with_values(plugin.Settings, settings, name), "metabn").features == 16


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("sees_others", "those of .*:sees_others do"),
        ("FirstOfBatch", "those of .*:FirstOfBatch do"),
        ("Moving", "changes seen when it is asked"),
        ("Growing", r"changes seen\d+, .* when it is asked"),
        ("Pair", r"must return one tensor, \[image, feature\]; for 2 images .*:Pair returns a tuple"),
        ("OneMore", r"must return one tensor, \[image, feature\]; for 2 images .*:OneMore returns \(3, \d+\)"),
        ("with_objects,layers=3", "unknown setting.*layers"),
        ("build,width", "where 'width' has no value"),
        ("fails", "it raises RuntimeError: no such thing"),
        ("ends", "it raises SystemExit: 3"),
        ("builds_nothing", "it returns a NoneType"),
        ("has_no_default", "width has none"),
        ("takes_frozen", "has a parameter frozen. Rename it"),
        ("twice", "0 is used twice"),
        ("Noisy", "must be the same at each pass"),
        ("Spoiling", "changes them in place"),
        ("Infinite", "are NaN or infinite"),
        ("with_another_epsilon", r"0 has epsilon 0.001. Keep the network's own \(--norm own\)"),
        ("number", "takes a function that returns a network; .*:number is of type int"),
        ("nothing", "network.py has no nothing"),
        ("build,widht=4", "unknown setting.*Did you mean 'width'"),
        ("build,width=wide", "width must be a whole number; got 'wide'"),
        ("build,weights=w.pt", "weights need trained_on"),
        ("build,weights=none.pt,trained_on=x", "none.pt is not: No such file"),
        ("no name", "module:name or path/to/file.py:name"),
    ],
)
def test_what_cannot_be_a_backbone_is_one_error(backbone, message, file, tmp_path):
    result = run(tmp_path, f"{file}:{backbone}")
    assert_one_error(result, message)


def test_parameters_whose_defaults_cannot_be_typed_keep_them(file):
    plugin = registry.backbone(f"{file}:with_objects")
    built = plugin((1, 4, 4), with_values(plugin.Settings, {"width": 3}, "it"), "metabn")
    assert built.features == 48
    assert set(key_of(built.settings)) == {"width"}


def test_weights_that_a_networks_own_code_loads_are_named_and_not_trained_again(file, tmp_path):
    result = run(tmp_path, f"{file}:build,trained_on=glyphs", "--norm", "own", methods="nearest_mean")
    assert result.exit_code == 0, result.output
    for record in store.load_all(tmp_path / "runs"):
        assert record.training["pretraining"] == {"what": "weights that its code loads", "saw": "glyphs"}
    shown = invoke("table", "--results", tmp_path / "runs", "--format", "csv").output
    rows = list(csv.DictReader(shown.splitlines()))
    assert {row["pretraining"] for row in rows} == {"weights that its code loads: glyphs"}


def test_weights_of_a_networks_own_code_and_of_a_file_are_one_too_many(file, tmp_path):
    result = run(tmp_path, f"{file}:build,trained_on=glyphs", "--init", "w.pt,trained_on=x")
    assert_one_error(result, "--init names w.pt, and --backbone has weights that its code loads")


def test_a_module_that_is_not_there_is_one_error(tmp_path):
    for where, message in (("nowhere_at_all", "No module named"), (str(tmp_path / "none.py"), "does not")):
        with pytest.raises(UserError, match=message):
            registry.backbone(f"{where}:build")


def test_own_norm_is_that_of_networks_that_have_one(file, tmp_path):
    result = run(tmp_path, f"{file}:build", "--norm", "own", "--protocols", "accuracy")
    assert result.exit_code == 0, result.output
    assert {json.loads(p.read_text())["config"]["norm"] for p in (tmp_path / "runs").rglob("accuracy*.json")} == {"own"}
    result = run(tmp_path, f"{file}:with_another_epsilon", "--norm", "own", "--dry-run")
    assert result.exit_code == 0, result.output
    result = run(tmp_path, "mlp", "--norm", "own")
    assert result.exit_code == 2
    assert "mlp has none" in result.output


def test_several_norms_of_a_network_that_normalizes_nothing_are_one_trial(tmp_path):
    result = run(tmp_path, "mlp", "--norm", "metabn,instance", "--dry-run")
    assert "2 of 2 trials to run" in result.output  # one of each method


def test_weights_are_read_from_each_format_and_frozen(file, tmp_path):
    plugin = registry.backbone(f"{file}:build")
    saved = plugin((1, 12, 12), plugin.Settings(), "own").network[0].state_dict()
    torch.save(saved, tmp_path / "plain.pt")
    torch.save({"state_dict": {f"module.{n}": t for n, t in saved.items()}, "epoch": 3}, tmp_path / "wrapped.pt")
    save_file(saved, tmp_path / "w.safetensors")
    keys = set()
    for name in ("plain.pt", "wrapped.pt", "w.safetensors"):
        asked = {"weights": str(tmp_path / name), "trained_on": "noise", "frozen": True}
        settings = with_values(plugin.Settings, asked, "build")
        network = BackboneSpec("build", plugin, settings, (1, 12, 12)).build("running").train()
        torch.testing.assert_close(network.network[0][0].weight, saved["0.weight"])
        assert not any(p.requires_grad for p in network.parameters())
        assert not any(layer.training for layer in network.network.modules())
        before = {n: t.clone() for n, t in network.state_dict().items()}
        network(torch.rand(2, 3, 1, 12, 12))
        torch.testing.assert_close(network.state_dict(), before)  # running averages among them
        keys.add(key_of(settings)["weights"])
    assert len(keys) == 3  # what the files hold, not what they are called


class Opens:
    def __reduce__(self):
        return open, ("never", "w")


def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Opens()}, tmp_path / "bad.pt")
    with pytest.raises(UserError, match=r"can run code; .*bad\.pt holds more\. Save the state dict"):
        read_weights(tmp_path / "bad.pt")
    assert not Path("never").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [([1, 2], "holds something else"), ({"a": 3}, "holds something else"), ({}, "holds something else")],
)
def test_what_is_no_state_dict_is_refused(content, message, tmp_path):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(UserError, match=message):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 and no more"])
def test_a_damaged_file_is_named(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is damaged, or none"):
        read_weights(tmp_path / name)


def test_what_does_not_fit_is_listed():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    weights = dict(network.state_dict())
    weights["0.weight"] = torch.zeros(4, 2)
    del weights["1.bias"]
    weights["head.weight"] = torch.zeros(1)
    with pytest.raises(UserError) as raised:
        load_strictly(network, weights, "w.pt")
    assert str(raised.value) == (
        "weights must fit the model; of those of w.pt are 1 missing: 1.bias; 1 not the model's: head.weight; 1 of "
        "another shape: 0.weight (4x2 in place of 3x2). Give the model the settings that it had when they were "
        "trained, or take other weights."
    )


def test_lazy_layers_are_made_for_the_images(file):
    plugin = registry.backbone(f"{file}:lazy")
    built = plugin((1, 12, 12), plugin.Settings(), "metabn")
    assert built.features == 16
    assert built.network[0][1].in_features == 144
    x = torch.rand(2, 3, 1, 12, 12)
    torch.testing.assert_close(built(x)[0], built.network[0][1](x.flatten(2)))


def test_weights_that_are_no_numbers_are_named(file, tmp_path):
    plugin = registry.backbone(f"{file}:build")
    saved = plugin((1, 12, 12), plugin.Settings(), "own").network[0].state_dict()
    saved["0.bias"][1] = torch.nan
    torch.save(saved, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"with NaN or infinity: 0\.bias"):
        plugin.check((1, 12, 12), plugin.Settings(weights=tmp_path / "w.pt", trained_on="x"))


def test_a_record_whose_weights_have_changed_says_so(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plugin = registry.backbone(f"{file}:build")
    for seed in range(2):
        torch.manual_seed(seed)
        torch.save(plugin((1, 12, 12), plugin.Settings(), "own").network[0].state_dict(), tmp_path / "w.pt")
        if not seed:
            assert run(tmp_path, f"{file}:build,weights=w.pt,trained_on=x", "--protocols", "accuracy").exit_code == 0
    path = next((tmp_path / "runs").rglob("accuracy-*.json"))
    with pytest.raises(UserError, match=r"w\.pt has SHA-256 .* and had .* Put that file back"):
        mlpip_bench.load(path, trust_code=True)

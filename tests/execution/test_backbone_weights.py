"""Weights of a file for a network of the suite: they are where it starts, or stays, and records say so."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import mlpip_bench
from builders import assert_one_error, backbone, budget, invoke, make_config
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.execution.starting import begin
from mlpip_bench.inference.method import Method
from mlpip_bench.nn.backbone import Backbone, BackboneSpec
from mlpip_bench.nn.weights import NetworkSettings
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.training.checkpoints import load_checkpoint
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import sha256_of
from mlpip_bench.utils.progress import Quiet
from mlpip_bench.utils.settings import key_of

NETWORKS = [
    ("conv4", {"blocks": 2, "channels": 4}),
    ("conv4-512", {"widths": (4, 6)}),
    ("resnet12", {"channels": (4, 6)}),
    ("mlp", {"features": 5}),
    ("view_encoder", {"blocks": 2, "channels": 4}),
]
SHAPE = (1, 8, 8)
SMALL = "conv4,blocks=2,channels=4"


def trained(spec: BackboneSpec, norm: str = "running", seed: int = 5) -> dict[str, Tensor]:
    """A state as after some training: no parameter, and no running average, is an initial one."""
    torch.manual_seed(seed)
    network = spec.build(norm).train()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
        for _ in range(3):
            network(torch.rand(2, 5, *spec.input_shape))
    return network.state_dict()


@pytest.fixture
def file(tmp_path: Path, monkeypatch) -> Path:
    """Weights of a small network for Omniglot's images, in the working folder."""
    monkeypatch.chdir(tmp_path)
    torch.save(trained(backbone("conv4", (1, 28, 28), blocks=2, channels=4, ceil_mode=True, dropout=0.1)), "w.pt")
    return tmp_path / "w.pt"


def run(chosen: str, *more: object, methods: str = "versa", results: str = "r", norm: str = "running", **settings):
    arguments = ("--bench", "omni5w1s", "--source", "procedural", "--results", results, "--norm", norm)
    arguments += ("--protocols", "accuracy", "--backbone", chosen)
    return invoke("run", "--methods", methods, *arguments, *budget(**settings), *more)


def done(result) -> None:
    assert result.exit_code == 0, result.output


def record(results: str = "r", method: str = "versa") -> Record:
    (found,) = (r for r in store.load_all(Path(results)) if r.method == method)
    return found


def network_of(results: str = "r", method: str = "versa") -> dict[str, Tensor]:
    """The state of the backbone at the end of a training."""
    (path,) = (Path(results) / "checkpoints" / "omni5w1s" / method).glob("*.pt")
    state = load_checkpoint(path).model
    return {n.partition("backbone.")[2]: t for n, t in state.items() if "backbone." in n}


def network_in(method: Method) -> Backbone:
    (network,) = (part for part in method.modules() if isinstance(part, Backbone))
    return network


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[bool]:
    assert found.keys() == expected.keys()
    return [torch.equal(found[name], tensor) for name, tensor in expected.items()]


@pytest.mark.parametrize(("name", "settings"), NETWORKS)
def test_a_frozen_network_has_the_features_of_its_weights_also_in_training(name, settings, tmp_path):
    plain = backbone(name, SHAPE, **settings)
    state = trained(plain)
    torch.save(state, tmp_path / "w.pt")
    images = torch.rand(2, 3, *SHAPE)
    other = plain.build("running")
    other.load_state_dict(state)
    expected = other.eval()(images)[0]
    given = {"weights": tmp_path / "w.pt", "trained_on": "noise"}
    assert plain.norm_used("running") == backbone(name, SHAPE, **settings, **given).norm_used("running")
    network = backbone(name, SHAPE, **settings, **given, frozen=True).build("running", dropout=True)
    for module in (network, torch.nn.Sequential(network).train()[0]):
        torch.testing.assert_close(module(images)[0], expected)
        assert all(same(module.state_dict(), state))
        assert not module(images)[0].requires_grad
    tuned = backbone(name, SHAPE, **settings, **given).build("running").train()
    tuned(images)[0].sum().backward()
    assert all(p.grad is not None for p in tuned.parameters())


@pytest.mark.parametrize(("name", "settings"), NETWORKS)
def test_what_nobody_sets_is_no_part_of_keys_and_records(name, settings):
    spec = backbone(name, SHAPE, **settings)
    assert isinstance(spec.settings, NetworkSettings)
    assert not {"weights", "trained_on", "frozen"} & (key_of(spec.settings).keys() | spec.spec.keys())


def test_records_of_conv4_say_what_they_said():
    assert backbone("conv4", SHAPE).spec == {
        "blocks": 4, "channels": 64, "ceil_mode": False, "dropout": 0.0, "last": None,
    }  # fmt: skip


def test_frozen_weights_stay_while_the_rest_is_trained(file):
    done(run(f"{SMALL},weights=w.pt,trained_on=glyphs,frozen=true", methods="versa,maml,protonets"))
    expected = torch.load(file)
    for method in ("versa", "maml", "protonets"):
        assert all(same(network_of(method=method), expected))
        found = record(method=method)
        assert found.training["pretraining"] == {
            "what": "weights", "file": "w.pt", "sha256": sha256_of(file), "saw": "glyphs",
        }  # fmt: skip
        assert (
            found.backbone["spec"] | {"weights": "w.pt", "trained_on": "glyphs", "frozen": True}
            == (found.backbone["spec"])
        )
        assert found.parameters >= sum(t.numel() for n, t in expected.items() if "running" not in n)
        assert found.training["iterations"] == (0 if method == "protonets" else 4)
    table = Path("r/tables/accuracy.md").read_text()
    assert f"{sha256_of(file)[:12]}" in table
    assert "glyphs" in table


def test_weights_are_where_training_starts(file):
    done(run(f"{SMALL},weights=w.pt,trained_on=glyphs", "--evaluate-only"))
    assert all(same(network_of(), torch.load(file)))
    assert record().training["outside"] is True
    done(run(f"{SMALL},weights=w.pt,trained_on=glyphs", results="tuned", iterations=1))
    moved = [float((network_of("tuned")[n] - t).abs().max()) for n, t in torch.load(file).items() if "conv" in n]
    assert 0 < max(moved) <= 1.01e-3  # the learning rate, which bounds the first step of Adam
    assert "0 trials run" in run(f"{SMALL},weights=w.pt,trained_on=glyphs", results="tuned", iterations=1).output
    loaded = mlpip_bench.load(Path("tuned/records") / record("tuned").filename)
    assert all(same(network_in(loaded.method).state_dict(), network_of("tuned")))


def test_a_file_that_has_changed_since_is_refused(file):
    chosen = f"{SMALL},weights=w.pt,trained_on=glyphs"
    done(run(chosen))
    before = sha256_of(file)
    path = Path("r/records") / record().filename
    torch.save({name: tensor + 1 for name, tensor in torch.load(file).items()}, file)
    assert_one_error(run(chosen), rf"w\.pt has SHA-256 .* and had {before[:12]}")
    with pytest.raises(UserError, match=r"w\.pt has SHA-256 .* Put that file back"):
        mlpip_bench.load(path)
    done(run(chosen, results="other"))


@pytest.mark.parametrize(
    ("chosen", "more", "message"),
    [
        (f"{SMALL},weights=w.pt", (), "weights need trained_on"),
        (f"{SMALL},trained_on=glyphs", (), "Add weights=FILE, or use trained_on=none"),
        (f"{SMALL},weights=none.pt,trained_on=x", (), "none.pt is not: No such file"),
        (f"{SMALL},weights=pickle.pt,trained_on=x", (), "holds tensors alone"),
        ("conv4,channels=4,weights=w.pt,trained_on=x", (), r"w\.pt are 10 missing: blocks\.2\.conv\.weight"),
        (f"{SMALL},weights=w.pt,trained_on=x", ("--norm", "metabn"), r"not the model's: .* norm \(here metabn\)"),
        (f"{SMALL},weights=w.pt,trained_on=x", ("--init", "w.pt,trained_on=x"), "parameters are of one file"),
        (f"{SMALL},weights=w.pt,trained_on=x", ("--pretrain", "classify"), "trained here before, or somewhere else"),
        (f"{SMALL},weights=w.pt,trained_on=x,frozen=perhaps", (), "frozen must be true or false"),
        (f"{SMALL},weights=w.pt,trained_on='a\\nb'", (), "trained_on is a line"),
        ("identity,weights=w.pt,trained_on=x", (), "unknown setting of identity 'weights'"),
    ],
)
def test_what_cannot_be_weights_is_one_error_before_any_training(chosen, more, message, file):
    torch.save({"function": print}, "pickle.pt")
    assert_one_error(run(chosen, *more), message)
    assert not Path("r/checkpoints").exists()


def test_a_network_that_is_trained_here_before_is_frozen_after_that(tmp_path):
    asked = {"pretrain": "classify", "pretrain_settings": {"iterations": 2, "batch_size": 8}}
    frozen, plain = (
        plan_trials(make_config(tmp_path, methods=("versa",), backbone="conv4", backbone_settings=given, **asked))[0]
        for given in ({"blocks": 2, "frozen": True}, {"blocks": 2})
    )
    assert frozen.pretraining_key == plain.pretraining_key
    assert frozen.training_key != plain.training_key
    (first, _), (second, _) = (begin(trial, trial.streams(), tmp_path, Quiet()) for trial in (frozen, plain))
    assert all(same(network_in(first).state_dict(), network_in(second).state_dict()))
    initial = network_in(frozen.build_method()).state_dict()
    assert not any(same({n: t for n, t in initial.items() if "conv.weight" in n},
                        {n: t for n, t in network_in(first).state_dict().items() if "conv.weight" in n}))  # fmt: skip
    assert not any(p.requires_grad for p in network_in(first).parameters())

"""Features as data: those of the network, of each image alone, and never without what the network saw."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from builders import invoke
from mlpip_bench import load_bench
from mlpip_bench.datasets import added
from mlpip_bench.datasets.base import SPLITS
from mlpip_bench.execution import feature_data
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.nn.backbones.conv4 import Conv4
from mlpip_bench.utils.errors import UserError
from pictures import write_classes

NETWORK = """
from torch import nn

def build(input_shape):
    return nn.Sequential(nn.Conv2d(input_shape[0], 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2))

def endless(input_shape):
    return nn.Sequential(nn.Flatten(), Infinite())

class Infinite(nn.Module):
    def forward(self, x):
        return x.mean(1, keepdim=True) / 0
"""


def plain_network() -> nn.Module:
    """Of the same form, with averages as after some training."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    with torch.no_grad():
        network(torch.rand(50, 3, 12, 12))  # which moves its averages
    return network


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with ``birds``, real pictures; and a license."""
    folder = tmp_path_factory.mktemp("features")
    write_classes(folder / "birds", [f"b{i:02d}" for i in range(15)], lambda number: 5 + number % 3)
    given = ("--from", folder / "birds", "--image-size", 12, "--license", "CC0", "--data-root", folder / "data")
    assert invoke("data", "add", "birds", *given).exit_code == 0
    return folder / "data"


@pytest.fixture
def root(pictures, tmp_path, monkeypatch) -> Path:
    """The same for one test, in a working folder with the networks and weights of one."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "birds").symlink_to(pictures / "birds")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NETWORK)
    torch.save(plain_network().state_dict(), "net.pt")
    return tmp_path / "data"


def features(root: Path, backbone: str, *more: object, bench: str = "birds3w1s"):
    return invoke("data", "features", "--bench", bench, "--data-root", root, "--backbone", backbone, *more)


def done(result) -> None:
    assert result.exit_code == 0, result.output


OWN = "net.py:build,weights=net.pt,trained_on=noise"


@pytest.mark.parametrize("norm", ["running", "own"])
def test_vectors_are_the_features_of_the_plain_network_at_test(norm, root):
    done(features(root, OWN, "--norm", norm, "--as", "vectors"))
    found, images = added.read(root / "vectors"), added.read(root / "birds")
    network = plain_network().eval()
    for split in SPLITS:
        ours, theirs = found.splits[split], images.splits[split]
        with torch.no_grad():
            expected = network(torch.from_numpy(theirs.images).float() / 255).flatten(1)
        np.testing.assert_allclose(ours.images[..., 0, 0], expected, rtol=1e-4, atol=1e-5)
        assert ours.class_names == theirs.class_names
        assert ours.counts.tolist() == theirs.counts.tolist()
        assert ours.images.dtype == np.float32
    said = added.describe(root / "vectors")
    assert (said.kind, said.license, said.pretrained_on, found.source) == ("features", "CC0", "noise", "real")
    assert said.options["pretrained_on"] == "noise"
    assert said.options["features_of"] == f"birds {images.fingerprint[:12]}"
    assert said.options["features_by"].startswith(f"net.py:build (norm {norm}, weights ")


def test_a_network_of_the_suite_takes_weights_and_other_settings(root):
    spec = BackboneSpec("conv4", Conv4, Conv4.Settings(blocks=2, channels=8), (3, 12, 12))
    torch.manual_seed(5)
    conv4 = spec.build("running").eval()
    torch.save(conv4.state_dict(), "conv4.pt")
    done(features(root, "conv4,blocks=2,channels=8,weights=conv4.pt,trained_on=noise", "--as", "vectors"))
    found, images = (added.read(root / name).splits["test"].images for name in ("vectors", "birds"))
    with torch.no_grad():
        alone = [conv4(torch.from_numpy(image)[None, None].float() / 255)[0].flatten() for image in images]
    np.testing.assert_allclose(found[..., 0, 0], torch.stack(alone), rtol=1e-4, atol=1e-5)
    by = added.describe(root / "vectors").options["features_by"]
    assert by.startswith("conv4,blocks=2,channels=8 (norm running, weights ")
    # Initial parameters are the same each time, and other ones.
    for name in ("first", "second"):
        done(features(root, "conv4,blocks=2,channels=8,trained_on=none", "--as", name))
    first, second = (added.read(root / name).splits["test"].images for name in ("first", "second"))
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first, found)


def test_a_file_of_features_becomes_the_same_data(root):
    done(features(root, OWN, "--to", "out/features.npz"))
    done(features(root, OWN, "--as", "direct"))
    done(invoke("data", "add", "mine", "--from", "out/features.npz", "--data-root", root))
    ours, theirs = added.read(root / "mine"), added.read(root / "direct")
    for split in SPLITS:
        assert ours.splits[split].class_names == theirs.splits[split].class_names
        np.testing.assert_array_equal(ours.splits[split].images, theirs.splits[split].images)
    said = added.describe(root / "mine")
    shared = ("pretrained_on", "features_by", "features_of")
    assert {n: said.options[n] for n in shared} == {n: added.describe(root / "direct").options[n] for n in shared}
    with np.load("out/features.npz") as file:  # as any other program reads it
        assert file["features"].shape[0] == len(file["labels"]) == len(file["split"])
        assert str(file["pretrained_on"]) == "noise"


def test_features_of_stand_ins_stay_stand_ins(root):
    given = ("--source", "procedural", "--norm", "layer")
    done(features(root, "identity", *given, "--as", "glyph-pixels", bench="omni5w1s"))
    assert load_bench("glyph-pixels5w1s", data_root=root).data.source == "procedural"
    with pytest.raises(UserError, match="glyph-pixels is procedural"):
        load_bench("glyph-pixels5w1s", data_root=root, source="real")
    done(features(root, "identity", *given, "--to", "f.npz", bench="omni5w1s"))
    with np.load("f.npz") as file:
        assert str(file["source"]) == "procedural"


def test_a_data_set_is_replaced_on_request_alone(root, monkeypatch):
    done(features(root, OWN, "--as", "vectors"))
    with monkeypatch.context() as patched:
        patched.setattr(feature_data.Extractor, "vectors", lambda *_: pytest.fail("computed for nothing"))
        refused = features(root, OWN, "--as", "vectors")
    assert refused.exit_code == 2
    assert "pass --replace" in refused.output
    done(features(root, OWN, "--as", "vectors", "--replace"))


@pytest.mark.parametrize(
    ("backbone", "more", "says"),
    [
        ("net.py:build,weights=net.pt", (), "weights need trained_on"),
        ("net.py:build", (), "Add trained_on=TEXT"),
        ("conv4,blocks=2", (), "Add trained_on=TEXT"),
        ("conv4,blocks=2,trained_on=ImageNet", (), "Add weights=FILE, or use trained_on=none"),
        ("conv4,blocks=2,weights=net.pt,trained_on=noise", (), "weights must fit the model"),
        ("conv4,blocks=2,weights=absent.pt,trained_on=noise", (), "absent.pt is not"),
        ("conv4,blocks=2,trained_on='a\\nb'", (), "a line of at most 200 characters"),
        ("conv5,trained_on=none", (), "unknown backbone 'conv5'"),
        ("conv4,depth=2,trained_on=none", (), "unknown setting of conv4 'depth'"),
        ("net.py:endless,trained_on=none", (), "are NaN or infinite at images"),
        (OWN, ("--norm", "metabn"), "the same in every task; under the norm metabn they are not"),
        (OWN, ("--norm", "transductive"), "Use one of running, layer, instance, own"),
        (OWN, ("--norm", "rnning"), "unknown norm 'rnning'"),
        (OWN, ("--bench", "toy5"), "toy5 has none"),
        (OWN, ("--bench", "context2"), "context2 has none"),
        (OWN, ("--bench", "nirds3w1s"), "unknown bench"),
        (OWN, ("--bench", "omni5w1s", "--data", "omni.rotations=separate"), "omni.rotations=separate shapes tasks"),
        (OWN, ("--data", "omni.split=random"), "--data names the bench's task family, birds; got 'omni'"),
        (OWN, ("--source", "reel"), "unknown source 'reel'"),
        (OWN, ("--as", "omni"), "the name of a data set must be new"),
        (OWN, ("--as", "No"), "lower-case letters"),
        (OWN, ("--as", "birds", "--to", "f.npz"), "got both"),
    ],
)
def test_features_that_mean_nothing_are_refused(backbone, more, says, root, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    target = () if "--as" in more else ("--to", "f.npz")
    result = features(root, backbone, *target, *more)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before


def test_where_features_go_is_one_place(root):
    for more, says in (
        ((), "got neither"),
        (("--to", "f.csv"), "ends in .npz"),
        (("--to", "net.py/f.npz"), "cannot write"),
    ):
        result = features(root, OWN, *more)
        assert result.exit_code == 2
        assert says in result.output
    done(features(root, OWN, "--as", "vectors"))
    again = features(root, "identity", "--to", "f.npz", bench="vectors3w1s")
    assert "vectors3w1s has vectors already" in again.output

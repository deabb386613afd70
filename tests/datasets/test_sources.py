import hashlib
import io
import logging
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlpip_bench import registry
from mlpip_bench.benches.family import DataRequest
from mlpip_bench.datasets import coil100, mnist, rendered, sources, tiny_imagenet
from mlpip_bench.datasets.base import ClassImages, ImageDataset
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.provenance import Source


def family(name: str, **options: str):
    plugin = registry.family(name)
    return plugin(plugin.Options(**options))


def load(name: str, *, source: str, data_root: Path | None, **options: str) -> ImageDataset:
    return family(name, **options).load(DataRequest(source, data_root))


def load_views(root: Path, choice: str, views: str) -> ImageDataset:
    return family("views", source=views).load(DataRequest(choice, root))


def verify(name: str, data_root: Path | None, **options: str) -> list[sources.Check]:
    return sources.verify(family(name, **options).source(), data_root)


def describe(data_root: Path | None) -> list[sources.SourceStatus]:
    return [sources.status(source, data_root) for source in registry.data_sources().values()]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small tiny-imagenet-32, and a cache of its own."""
    monkeypatch.setenv("MLPIP_BENCH_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "my data"
    write_tiny(root / "tiny-imagenet-32")
    return root


def write_tiny(folder: Path, value: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, split in enumerate(("train", "val", "test")):
        buffer = io.BytesIO()
        Image.new("RGB", (32, 32), (value, i, 0)).save(buffer, "PNG")
        with tarfile.open(folder / f"{split}.tar", "w") as archive:
            info = tarfile.TarInfo(f"n{i}/1.JPEG")
            info.size = len(buffer.getvalue())
            archive.addfile(info, io.BytesIO(buffer.getvalue()))


def write_mini(folder: Path) -> None:
    folder.mkdir(parents=True)
    for i, split in enumerate(("train", "val", "test")):
        np.save(folder / f"{split}.npy", np.full((1, 2, 84, 84, 3), i, np.uint8))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small stand-ins in place of the real ones, which take seconds."""

    def small(name: str, source: Source = "procedural") -> ImageDataset:
        data = {
            s: ClassImages(np.zeros((1, 1, 2, 2), np.uint8), np.array([1]), (s,))
            for s in ("train", "validation", "test")
        }
        return ImageDataset(name, source, data)

    for name in ("glyphs", "patches", "solids"):
        monkeypatch.setattr(f"mlpip_bench.datasets.procedural.{name}.build_{name}", lambda *_, name=name: small(name))
    monkeypatch.setattr(mnist, "build_digits", lambda: small("digits", "bundled"))


@pytest.mark.parametrize(
    ("dataset", "stand_in", "source"),
    [
        ("omni", "glyphs", "procedural"),
        ("mini", "patches", "procedural"),
        ("views", "solids", "procedural"),
        ("context", "digits", "bundled"),
    ],
)
@pytest.mark.usefixtures("stand_ins")
def test_auto_takes_the_stand_in_and_says_so(
    root: Path, dataset: str, stand_in: str, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    for data_root in (None, root):
        caplog.clear()
        data = load(dataset, source="auto", data_root=data_root)
        assert (data.name, data.source) == (stand_in, source)
        (record,) = (r for r in caplog.records if r.name == "mlpip_bench" and r.levelno == logging.WARNING)
        assert stand_in in record.getMessage()
        assert source in record.getMessage()
    assert load(dataset, source="procedural", data_root=root).name == stand_in


def test_auto_takes_the_real_one_where_it_is_there(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_mini(root / "miniImageNet")
    data = load("mini", source="auto", data_root=root)
    assert (data.name, data.source) == ("miniimagenet-partial", "real")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", ["miniimagenet", "mini-imagenet", "mini_imagenet", "miniImageNet"])
def test_names_of_the_folder(root: Path, name: str) -> None:
    write_mini(root / name)
    assert load("mini", source="real", data_root=root).source == "real"
    assert load("mini", source="real", data_root=root / name).source == "real"  # the folder itself


def test_a_folder_of_another_name_is_not_taken_for_the_data_set(root: Path) -> None:
    write_mini(root / "cifar-fs")
    with pytest.raises(UserError, match="miniImageNet is not in"):
        load("mini", source="real", data_root=root / "cifar-fs")


def test_tilde_and_spaces(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root.parent))
    for path in (Path("~/my data"), Path("~/my data/tiny-imagenet-32")):
        assert load("tiny", source="real", data_root=path).name == "tiny-imagenet-32-partial"
    assert verify("tiny", Path("~/my data"))[0].status == "ok"


def test_what_is_missing_is_said(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        UserError, match=r"(?s)miniImageNet is not in .*my data\..*mini-imagenet/.*mini-imagenet-cache.*images/"
    ):
        load("mini", source="real", data_root=root)
    with pytest.raises(UserError, match=r"(?s)no data folder is set.*images_background\.zip"):
        load("omni", source="real", data_root=None)
    for source in ("auto", "real"):
        with pytest.raises(UserError, match=r"(?s)Tiny-ImageNet-32 is not known to be anywhere.*train\.tar"):
            load("tiny", source=source, data_root=None)
    with pytest.raises(UserError, match=r"(?s)no stand-in.*train\.tar"):
        load("tiny", source="procedural", data_root=root)
    with pytest.raises(UserError, match="must exist"):
        load("omni", source="auto", data_root=root / "nowhere")
    with pytest.raises(UserError, match=r"unknown task family 'omin'\. Did you mean 'omni'"):
        load("omin", source="auto", data_root=root)


@pytest.mark.usefixtures("stand_ins")
def test_unknown_content_is_listed(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "miniimagenet").mkdir()
    (root / "miniimagenet" / "ravi_splits.csv").write_text("wnid,split\nn1,train\n")
    with pytest.raises(UserError, match=r"is not in .*my data\. Point"):
        load("mini", source="real", data_root=root)
    (root / "miniimagenet" / "mini-imagenet.zip").write_bytes(b"x")
    with pytest.raises(UserError, match=r"(?s)known layout: it holds mini-imagenet\.zip\. Point .*\.csv"):
        load("mini", source="real", data_root=root)
    assert load("mini", source="auto", data_root=root).name == "patches"
    assert r"it holds mini-imagenet.zip" in caplog.text


@pytest.mark.usefixtures("stand_ins")
def test_broken_data_never_makes_way_for_the_stand_in(root: Path) -> None:
    write_mini(root / "miniimagenet")
    (root / "miniimagenet" / "val.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"val\.npy.*empty"):
        load("mini", source="auto", data_root=root)
    (root / "miniimagenet" / "val.npy").unlink()
    with pytest.raises(UserError, match="for validation it has none"):
        load("mini", source="auto", data_root=root)
    (root / "miniimagenet" / "val.npy").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"must be readable; .*val\.npy"):
        load("mini", source="auto", data_root=root)


@pytest.mark.usefixtures("stand_ins")
def test_settings_of_omniglot_are_not_dropped_in_silence() -> None:
    for options in ({"split": "vinyals"}, {"resize": "antialias"}):
        (message,) = (f"omni.{name}={value} chooses among real data" for name, value in options.items())
        with pytest.raises(UserError, match=message):
            load("omni", source="auto", data_root=None, **options)


@pytest.mark.usefixtures("stand_ins")
def test_the_choice_of_views_is_not_dropped_in_silence(root: Path) -> None:
    for choice in ("auto", "procedural"):
        with pytest.raises(UserError, match=r"views.source=coil100 chooses among real data.* as coil100/"):
            load_views(root, choice, "coil100")


def write_views(root: Path, *, coil100: int | None = None, **rendered: int) -> None:
    for of, gray in rendered.items():
        for name in "abc":
            folder = root / of / {"shapenet": "03001627", "furniture": "kitchen"}[of] / name
            folder.mkdir(parents=True)
            for view in range(36):
                Image.new("L", (32, 32), gray).save(folder / f"{view:02d}.png")
    if coil100 is not None:
        (root / "coil100").mkdir()
        images = np.full((3, 36, 32, 32), coil100, np.uint8)
        np.savez(
            root / "coil100" / "coil100_32.npz", images=images, objects=[1, 2, 3], azimuth_degrees=np.arange(36) * 10
        )


def views_of(root: Path, views: str) -> tuple[str, int]:
    data = load_views(root, "real", views)
    return data.name, int(data.splits["test"].images[0, 0, 0, 0])


def test_shapenet_comes_before_coil100(root: Path) -> None:
    write_views(root, coil100=9)
    assert views_of(root, "auto") == views_of(root, "coil100") == ("coil100-partial", 9)
    with pytest.raises(UserError, match=r"(?s)ShapeNet is not in .*my data\. .* has shapenet/ with.*\{00\.\.35\}"):
        views_of(root, "shapenet")
    write_views(root, shapenet=5)
    assert views_of(root, "auto") == views_of(root, "shapenet") == ("shapenet-partial", 5)
    assert views_of(root, "coil100") == ("coil100-partial", 9)
    assert {row.what: row.status for row in verify("views", root)}["train"] == "incomplete"
    (root / "shapenet" / "03001627" / "b" / "07.png").unlink()
    with pytest.raises(UserError, match=r"b lacks 07\.png"):  # broken data does not make way for COIL-100 either
        views_of(root, "auto")
    assert views_of(root, "coil100") == ("coil100-partial", 9)


def test_furniture_comes_after_the_others(root: Path) -> None:
    write_views(root, furniture=7)
    assert views_of(root, "auto") == views_of(root, "furniture") == ("furniture-partial", 7)
    write_views(root, coil100=9)
    assert views_of(root, "auto") == ("coil100-partial", 9)
    assert views_of(root, "furniture") == ("furniture-partial", 7)


def test_each_data_set_of_views_is_decoded_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_views(root, shapenet=5, coil100=9)
    decoded = []
    for module in (rendered, coil100):
        read = module._read
        monkeypatch.setattr(module, "_read", lambda *args, read=read: decoded.append(1) or read(*args))
    for views in ("auto", "coil100", "shapenet", "coil100", "auto"):
        views_of(root, views)
    assert len(decoded) == 2


def test_absent_views_name_all_folders(root: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"(?s)ShapeNet, COIL-100 or furniture is not in .*my data\. "
        r".*has shapenet/ or coil100/ or coil-100/ or furniture/ with one of:.*\{00\.\.35\}\.png.*coil100_32\.npz",
    ):
        load("views", source="real", data_root=root)
    (root / "shapenet" / "03001627" / "a" / "models").mkdir(parents=True)
    with pytest.raises(UserError, match=r"is not in .*shapenet in a known layout: it holds 03001627\."):
        load("views", source="real", data_root=root)
    with pytest.raises(UserError, match=r"COIL-100 is not in .*my data\."):
        load_views(root, "real", "coil100")
    with pytest.raises(UserError, match=r"(?s)MNIST is not in .*my data\. .*has mnist/ with.*t10k-images"):
        load("context", source="real", data_root=root)


def test_the_stand_in_of_digits_needs_no_data_and_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("context", source="procedural", data_root=None)
    assert (first.name, first.source, first.image_shape) == ("digits", "bundled", (1, 28, 28))
    monkeypatch.setattr(mnist, "build_digits", lambda: pytest.fail("made again"))
    again = load("context", source="auto", data_root=root)
    assert (again.source, again.fingerprint) == ("bundled", first.fingerprint)


def test_cache_follows_the_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_pixel() -> int:
        return int(load("tiny", source="real", data_root=root).splits["train"].images[0, 0, 0, 0])

    decoded = []
    read = tiny_imagenet._read
    monkeypatch.setattr(tiny_imagenet, "_read", lambda paths: decoded.append(1) or read(paths))
    assert (first_pixel(), first_pixel(), len(decoded)) == (0, 0, 1)
    write_tiny(root / "tiny-imagenet-32", value=9)
    later = (root / "tiny-imagenet-32" / "train.tar").stat().st_mtime_ns + 1_000_000
    os.utime(root / "tiny-imagenet-32" / "train.tar", ns=(later, later))
    assert (first_pixel(), first_pixel(), len(decoded)) == (9, 9, 2)
    monkeypatch.setattr(sources.PIL, "__version__", "another")
    assert (first_pixel(), len(decoded)) == (9, 3)


def test_settings_have_caches_of_their_own(data_root: Path) -> None:
    nearest = load("omni", source="real", data_root=data_root)
    vinyals = load("omni", source="real", data_root=data_root, split="vinyals")
    again = load("omni", source="real", data_root=data_root)
    assert nearest.fingerprint == again.fingerprint != vinyals.fingerprint
    assert (nearest.options["split"], vinyals.options["split"]) == ("random", "vinyals")


def test_describe(root: Path) -> None:
    write_mini(root / "miniimagenet")
    rows = {row.source.key: row for row in describe(root)}
    found = {key: row.status == "found" for key, row in rows.items()}
    assert found == {"omni": False, "tiny": True, "mini": True, "views": False, "context": False} | {
        "icons": False,
        "kanji": False,
    }
    assert "tar archives in" in rows["tiny"].detail
    (root / "miniimagenet" / "val.npy").unlink()
    assert {row.source.key: row.status for row in describe(root)}["mini"] == "broken"
    assert {row.status for row in describe(None)} == {"not found"}
    write_views(root, coil100=1)
    for views, status in (("auto", "found"), ("shapenet", "not found")):
        assert sources.status(family("views", source=views).source(), root).status == status


def test_verify_reads_past_the_cache(root: Path) -> None:
    load("tiny", source="real", data_root=root)
    train = root / "tiny-imagenet-32" / "train.tar"
    sums = {
        name: hashlib.sha256((root / "tiny-imagenet-32" / f"{name}.tar").read_bytes()).hexdigest()
        for name in ("train", "val")
    }
    (root / "SHA256SUMS").write_text(
        f"{sums['train']}  ./tiny-imagenet-32/train.tar\n{'0' * 64} *tiny-imagenet-32/val.tar\n\n{'0' * 64}  other\n"
    )
    rows = {row.what: row for row in verify("tiny", root)}
    assert {name: row.status for name, row in rows.items()} == {
        "files": "ok",
        "tiny-imagenet-32/train.tar": "ok",
        "tiny-imagenet-32/val.tar": "failed",
        "train": "incomplete",
        "validation": "incomplete",
        "test": "incomplete",
        "fingerprint": "ok",
    }
    assert rows["train"].detail == (
        "1 classes, the complete set has 64; 1 classes without 300 images each, the first n0 with 1"
    )
    # Same size, same time, other bytes: a cache could not know.
    before = train.stat()
    content = bytearray(train.read_bytes())
    content[512] ^= 1  # the first byte of the picture
    train.write_bytes(content)
    os.utime(train, ns=(before.st_atime_ns, before.st_mtime_ns))
    broken = {row.what: row for row in verify("tiny", root)}
    assert broken["tiny-imagenet-32/train.tar"].status == "failed"
    assert broken["content"].status == "failed"
    assert "train.tar:n0/1.JPEG" in broken["content"].detail


def test_verify_of_what_is_not_whole_or_not_there(root: Path) -> None:
    (root / "tiny-imagenet-32" / "val.tar").unlink()
    (row,) = verify("tiny", root)
    assert (row.status, "val.tar is missing" in row.detail) == ("failed", True)
    for data_root in (root, None):
        with pytest.raises(UserError, match="Omniglot is not"):
            verify("omni", data_root)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [("omni", {}), ("omni", {"split": "vinyals"}), ("tiny", {}), ("views", {}), ("context", {})],
)
def test_the_real_sets_are_whole(data_root: Path, dataset: str, options: dict[str, str]) -> None:
    rows = verify(dataset, data_root, **options)
    assert [row for row in rows if row.status != "ok"] == []
    assert {row.what for row in rows} >= {"train", "validation", "test"}


def test_verify_without_a_checksum_list(root: Path) -> None:
    assert [row.status for row in verify("tiny", root) if row.what == "checksums"] == ["skipped"]

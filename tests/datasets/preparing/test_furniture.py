"""Furniture of catalogs that the tests write in the layout of the real ones."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from builders import invoke, skip_where_nothing_renders
from mlpip_bench.datasets import furniture as reader
from mlpip_bench.datasets.preparing import furniture
from mlpip_bench.utils.errors import UserError

QUADS = ((0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5))
PROPERTIES = """\
# A catalog
license=CC BY 3.0
version=1.8

id#1=A#chair
name#1=Si\\u00e8ge
category#1=Living room
model#1=/a/chair/chair.obj
creator#1=Ann
width#1=10

name#2=Tall
category#2=Kitchen
model#2=/a/tall/tall.obj
modelRotation#2=1 0 0  0 0 1  0 -1 0
creator#2=Bob

name#3=Lamp
category#3=Lights
model#3=/a/lamp/lamp.obj
"""


def box(x: float, y: float, z: float, material: str = "", left: float = 0, first: int = 1) -> str:
    """A box in OBJ's words from the origin to a corner, or from ``left`` on; its faces begin with vertex ``first``."""
    corners = [(i, j, k) for k in (0, 1) for j in (0, 1) for i in (0, 1)]
    vertices = "".join(f"v {x if i else left} {j * y} {k * z}\n" for i, j, k in corners)
    faces = "".join("f " + " ".join(str(first + i) for i in quad) + "\n" for quad in QUADS)
    return (f"mtllib chair.mtl\n{vertices}usemtl {material}\n{faces}") if material else vertices + faces


def catalog(path: Path, text: str = PROPERTIES, **members: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("PluginFurnitureCatalog.properties", text.encode("latin-1"))
        archive.writestr("a/chair/chair.obj", box(1, 1, 1, "dark"))
        archive.writestr("a/chair/chair.mtl", "newmtl dark\nKd 0.1 0.1 0.1\n")
        archive.writestr("a/tall/tall.obj", box(1, 1, 4))
        archive.writestr("a/lamp/lamp.obj", box(4, 1, 1) + box(4, 4, 1, left=3, first=9))  # high at +X
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_pieces_are_what_the_catalog_says(tmp_path):
    chair, tall, lamp = furniture.pieces_of(catalog(tmp_path / "a.sh3f"))
    assert (chair.name, chair.title, chair.creator, chair.license) == (
        "living-room/a-chair",
        "Siège",
        "Ann",
        "CC BY 3.0",
    )
    assert (chair.rotation, lamp.rotation) == ((), ())
    assert (tall.name, tall.rotation) == ("kitchen/a-tall", (1, 0, 0, 0, 0, 1, 0, -1, 0))
    assert (lamp.name, lamp.creator) == ("lights/a-lamp", "")


def test_vertices_are_turned_and_nothing_else_is():
    obj = b"mtllib x.mtl\nv 1 2 3\nv 4 5 6 1\nvn 0 0 1\nf 1 2 1\n"
    turned = furniture.turned(obj, (1, 0, 0, 0, 0, 1, 0, -1, 0))  # (x, y, z) -> (x, z, -y)
    assert turned == b"mtllib x.mtl\nv 1 3 -2\nv 4 6 -5\nvn 0 0 1\nf 1 2 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROPERTIES.replace("Kitchen", "Cellar"), "'Cellar' is no known category"),
        (PROPERTIES.replace("0 0 1  0 -1 0", "0"), "a rotation has 9 numbers, not 4"),
        (PROPERTIES.replace("name#3=Lamp\n", ""), "'name'"),
    ],
)
def test_a_catalog_that_says_something_else_is_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        furniture.pieces_of(catalog(tmp_path / "a.sh3f", text))


def test_bad_input_is_one_error_with_status_2(tmp_path):
    pytest.importorskip("pyvista", reason="needs pyvista: pip install 'mlpip_bench[render]'")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    with zipfile.ZipFile(tmp_path / "other" / "a.sh3f", "w") as archive:
        archive.writestr("readme.txt", "no catalog")
    for source, message in (
        ("none", "is not a folder"),
        ("empty", "holds nothing. Install Debian's package sweethome3d-furniture"),
        ("other", "must be a catalog with PluginFurnitureCatalog.properties"),
    ):
        result = invoke("data", "prepare", "furniture", "--from", tmp_path / source, "--to", tmp_path / "to")
        assert (result.exit_code, message in result.output) == (2, True), result.output
    assert not (tmp_path / "to").exists()


def test_a_catalog_becomes_views_with_its_front_first(tmp_path):
    skip_where_nothing_renders()
    text = PROPERTIES + "\nname#4=Gone\ncategory#4=Office\nmodel#4=/a/gone/gone.obj\n"
    catalog(tmp_path / "in" / "a.sh3f", text)
    target = tmp_path / "data" / "furniture"
    result = invoke("data", "prepare", "furniture", "--from", tmp_path / "in", "--to", target, "--jobs", 1)
    assert result.exit_code == 1, result.output
    assert "failed: office/a-gone: there is no a/gone/gone.obj in a.sh3f" in result.output
    chair, tall, lamp = (
        np.stack([np.asarray(Image.open(target / name / f"{i:02d}.png")) for i in range(36)])
        for name in ("living-room/a-chair", "kitchen/a-tall", "lights/a-lamp")
    )
    assert np.median(chair[chair < 250]) < np.median(lamp[lamp < 250]) / 2  # its material is next to it
    for views, ratio in ((tall, 2.0), (chair, 0.5)):  # four times as high as wide, once it stands; a cube
        rows, columns = np.nonzero(views[0] < 250)
        assert np.ptp(rows) / np.ptp(columns) > ratio
    rows, columns = np.nonzero(lamp[0] < 250)
    assert columns[rows == rows.min()].min() > 16  # seen from +Z, +X is on the right
    rows, columns = np.nonzero(lamp[18] < 250)
    assert columns[rows == rows.min()].max() < 16
    facts = yaml.safe_load((target / "facts.yaml").read_text())
    assert facts["counts"]["objects"] == 3
    assert facts["source"] == "Debian package sweethome3d-furniture: a.sh3f 1.8"
    assert "| living-room/a-chair | Siège | Ann | CC BY 3.0 |" in (target / "ATTRIBUTION.md").read_text()
    found = reader.find(target)
    assert found is not None
    assert found.read().name == "furniture-partial"


def test_the_categories_are_folders_that_are_read(tmp_path):
    for category in (*reader.CATEGORIES[:3], "others"):
        folder = tmp_path / category / "a"
        folder.mkdir(parents=True)
        for i in range(36):
            Image.new("L", (32, 32), i).save(folder / f"{i:02d}.png")
    found = reader.find(tmp_path)
    assert found is not None
    names = {name for data in found.read().splits.values() for name in data.class_names}
    assert names == {f"{category}/a" for category in reader.CATEGORIES[:3]}
    assert sum(reader.COMPLETE[split][0] for split in reader.COMPLETE) == 820

"""Icons of a package that the tests write in the layout of the real one."""

import json
from pathlib import Path

import numpy as np
import pytest

from builders import invoke
from mlpip_bench import registry
from mlpip_bench.datasets.preparing import icons
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet

pytest.importorskip("resvg_py", reason="needs resvg-py: pip install 'mlpip_bench[drawings]'")

SETS = 24
INFO = {"name": "A set", "author": {"name": "Ann"}, "license": {"title": "MIT", "spdx": "MIT"}, "palette": False}


def rectangle(x: float, y: float, width: float, height: float) -> str:
    return f'<path fill="currentColor" d="M{x} {y}h{width}v{height}h-{width}z"/>'


def package(root: Path, sets: dict[str, dict[str, str]], infos: dict[str, dict] | None = None) -> Path:
    """A package of sets, ``{set: {icon: body}}``, on squares of 28."""
    (root / "json").mkdir(parents=True)
    collections = {prefix: INFO | (infos or {}).get(prefix, {}) for prefix in sets}
    (root / "collections.json").write_text(json.dumps(collections))
    (root / "package.json").write_text(json.dumps({"name": "@iconify/json", "version": "1.2.3"}))
    for prefix, bodies in sets.items():
        found = {"prefix": prefix, "width": 28, "height": 28, "icons": {n: {"body": b} for n, b in bodies.items()}}
        (root / "json" / f"{prefix}.json").write_text(json.dumps(found))
    return root


def bars(offset: int) -> dict[str, str]:
    """Drawings of four things, not nearly those of another offset."""
    shapes = {"anchor": (offset, 2), "bed": (2, offset), "crown": (offset, offset), "tree": (27 - offset, 3)}
    return {
        name: rectangle(x, y, 3, 4) + rectangle((7 * x + y) % 26, (5 * y + 3) % 23, 2, 5)
        for name, (x, y) in shapes.items()
    }


def test_a_set_is_used_by_license_color_and_category():
    collections = {
        "mit": INFO,
        "sharealike": INFO | {"license": {"title": "CC BY-SA", "spdx": "CC-BY-SA-4.0"}},
        "unnamed": INFO | {"license": {"title": "my own"}},
        "colored": INFO | {"palette": True},
        "logos": INFO | {"category": "Logos"},
        "attribution": INFO | {"license": {"title": "CC BY", "spdx": "CC-BY-4.0"}, "category": "Material"},
    }
    assert list(icons.used_sets(collections)) == ["attribution", "mit"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["anchor"], {"anchor": "anchor"}),
        (["bin"], {"trash": "bin"}),  # one concept, whatever it is called
        (["bin", "trash"], {"trash": "trash"}),
        (["trash-can", "bin"], {"trash": "bin"}),
        (["anchor-fill", "anchor-outline"], {"anchor": "anchor-outline"}),
        (["anchor-fill", "anchor-24-regular", "anchor"], {"anchor": "anchor"}),
        (["gear-solid"], {"gear": "gear-solid"}),
        (["baseline-anchor", "anchor-stroke-16"], {"anchor": "anchor-stroke-16"}),
        (["anchor-1", "bed-outline-regular"], {"anchor": "anchor-1", "bed": "bed-outline-regular"}),
        (["chart-line"], {"chart-line": "chart-line"}),  # a line chart, no outline of a chart
        (["github", "facebook-fill", "more"], {}),
    ],
)
def test_a_concept_has_one_icon_a_set(names, expected):
    assert icons.icons_of({"icons": {name: {"body": ""} for name in names}}) == expected


def test_no_name_stands_for_two_concepts():
    names = [name for group in icons.CONCEPTS for name in group.split()]
    assert len(set(names)) == len(names)
    assert not icons.NO_CONCEPTS & set(names)


def test_a_drawing_is_where_the_body_says():
    icon_set = {"width": 14, "height": 14, "icons": {"a": {"body": rectangle(1, 2, 3, 4)}}}
    expected = np.zeros((28, 28), dtype=np.uint8)
    expected[4:12, 2:8] = 255  # 14 units are 28 pixels
    np.testing.assert_array_equal(icons.drawing(icons.svg_of(icon_set, "a")), expected)


def test_a_wide_icon_is_in_the_middle_of_a_square():
    icon_set = {"icons": {"a": {"body": rectangle(10, 0, 28, 14), "left": 10, "width": 28, "height": 14}}}
    expected = np.zeros((28, 28), dtype=np.uint8)
    expected[7:21] = 255
    np.testing.assert_array_equal(icons.drawing(icons.svg_of(icon_set, "a")), expected)


def test_the_command_makes_a_bench_and_says_whom_it_is_owed_to(tmp_path):
    sets = {f"set{i:02d}": bars(i) | {"github": rectangle(0, 0, 9, 9)} for i in range(SETS)}
    sets["colored"] = bars(3)
    infos = {f"set{i:02d}": {"author": {"name": f"Ann {i}", "url": "https://example.org"}} for i in range(SETS)}
    source = package(tmp_path / "package", sets, infos | {"colored": {"palette": True}})
    result = invoke("data", "prepare", "icons", "--from", tmp_path, "--to", tmp_path / "data" / "icons")
    assert result.exit_code == 0, result.output
    assert "4 classes by 24 drawers" in result.output
    attribution = (tmp_path / "data" / "icons" / "ATTRIBUTION.md").read_text()
    assert "npm package @iconify/json 1.2.3" in attribution
    assert "| set07 | A set | Ann 7 | MIT | https://example.org | 4 |" in attribution
    assert "colored" not in attribution
    result = invoke("data", "verify", "icons", "--data-root", tmp_path / "data")
    assert result.exit_code == 0, result.output
    again = invoke("data", "prepare", "icons", "--from", source, "--data-root", tmp_path / "data")
    assert "nothing to do" in again.output


def test_bad_input_is_one_error_with_status_2(tmp_path):
    source = package(tmp_path / "package", {"one": bars(1)})
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (("icons", "--to", tmp_path / "to"), "icons is made of the folder of the npm package @iconify/json; pass it"),
        (("icons", "--from", tmp_path / "empty", "--to", tmp_path / "to"), "npm pack @iconify/json"),
        (("icons", "--from", source, "--to", source / "to"), "--to must lie outside --from"),
        (("icons", "--from", source, "--to", tmp_path / "to"), "has 0 of them"),
        (("ikons", "--from", source), "unknown data set to prepare 'ikons'"),
    ):
        result = invoke("data", "prepare", *arguments)
        assert (result.exit_code, message in result.output) == (2, True), result.output
    (source / "json" / "one.json").write_text("{")
    with pytest.raises(UserError, match=r"one\.json must be a JSON file of @iconify/json; it is damaged"):
        icons.prepare(source, tmp_path / "to", Quiet())


def test_what_can_be_prepared_is_listed():
    result = invoke("data", "prepare", COLUMNS="200")
    assert result.exit_code == 0
    known = registry.preparers()
    assert {"icons", "kanji", "furniture", "shapenet"} <= known.keys()
    assert all(name in result.output and preparer.folder in result.output for name, preparer in known.items())

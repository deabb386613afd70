"""Pictures as a model takes them are what its data would be if they were made of these pictures."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders import invoke
from mlpip_bench import registry
from mlpip_bench.datasets import added, omniglot, pictures
from mlpip_bench.utils.errors import UserError
from pictures import FORMS, encoded, picture, write_classes


def form_of(family: str, shape: tuple[int, int, int], **options: str) -> pictures.PictureForm:
    plugin = registry.family(family)
    return plugin(plugin.Options()).picture_form(type("Data", (), {"options": options})(), shape)


def save(image: np.ndarray, path: Path) -> Path:
    Image.fromarray(image).save(path)
    return path


# -- as the data are made --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resize", ["nearest", "antialias"])
def test_an_original_drawing_is_what_the_reader_of_omniglot_makes_of_it(data_root, tmp_path, resize):
    paper = np.load(data_root / "omniglot" / "images_evaluation.npz")["images"][5]
    paths = [save(one.astype(np.uint8) * 255, tmp_path / f"{i}.png") for i, one in enumerate(paper)]
    read = form_of("omni", (1, 28, 28), resize=resize).read(paths)
    assert (read[:, 0] == omniglot.shrink(paper, resize)).all()
    inverted = [save(255 - np.asarray(Image.open(path)), tmp_path / f"dark-{path.name}") for path in paths]
    assert (form_of("omni", (1, 28, 28), resize=resize).read(inverted) == read).all()


def test_the_options_of_the_data_decide_how_characters_are_shrunk():
    drawing = Image.fromarray(np.where(np.random.default_rng(0).random((105, 105)) < 0.2, 0, 255).astype(np.uint8))
    near, smooth = (form_of("omni", (1, 28, 28), resize=r).convert(drawing) for r in ("nearest", "antialias"))
    assert set(np.unique(near)) == {0, 255}
    assert len(np.unique(smooth)) > 10
    assert (form_of("omni", (1, 28, 28)).convert(drawing) == near).all()


def test_pictures_of_added_data_are_what_data_add_makes_of_them(tmp_path):
    folder = tmp_path / "from"
    for number in range(6):
        (folder / f"kind {number}").mkdir(parents=True)
        for index, (mode, ending) in enumerate(FORMS[:3]):
            content = encoded(picture(number, index, (20, 30)), mode, ending)
            (folder / f"kind {number}" / f"{index}.{ending}").write_bytes(content)
    root = tmp_path / "root"
    done = invoke("data", "add", "kinds", "--from", folder, "--data-root", root, "--image-size", 16)
    assert done.exit_code == 0, done.output
    data = added.read(root / "kinds").splits["train"]
    family = registry.family("kinds", root)
    form = family(family.Options()).picture_form(added.read(root / "kinds"), data.image_shape)
    files = [path for name in data.class_names for path in sorted((folder / name).iterdir())]
    assert (form.read(files) == data.images).all()


def test_a_picture_of_the_models_size_and_mode_stays_as_it_is(tmp_path):
    rng = np.random.default_rng(0)
    gray, color = rng.integers(0, 256, (28, 28)).astype(np.uint8), rng.integers(0, 256, (84, 84, 3)).astype(np.uint8)
    gray[[0, -1]] = gray[:, [0, -1]] = 3  # dark paper
    for family in ("omni", "icons", "context"):
        assert (form_of(family, (1, 28, 28)).read([save(gray, tmp_path / "a.png")])[0, 0] == gray).all()
        assert (form_of(family, (1, 28, 28)).read([save(255 - gray, tmp_path / "b.png")])[0, 0] == gray).all()
    for family in ("mini", "tiny"):
        read = form_of(family, (3, 84, 84)).read([save(color, tmp_path / "c.png")])
        assert (read[0] == color.transpose(2, 0, 1)).all()


def test_no_ink_is_cut_off_a_drawing_and_the_sides_of_a_photograph_are(tmp_path):
    wide = np.zeros((10, 40, 3), dtype=np.uint8)
    wide[:, :4] = 255  # at the left
    drawing = form_of("icons", (1, 28, 28)).convert(Image.fromarray(wide))
    assert drawing[0, 12:16, 0].mean() > 200
    assert drawing[0, [0, -1]].max() == 0  # paper was added
    assert form_of("tiny", (3, 28, 28)).convert(Image.fromarray(wide)).max() == 0
    assert form_of("mini", (3, 28, 28)).convert(Image.fromarray(wide))[:, 5:20, 0].min() > 200  # as its reader does


def test_color_becomes_gray_for_a_model_of_gray_images():
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    assert (pictures.photographs((1, 4, 4)).convert(red) == round(0.299 * 255)).all()


# -- which files -----------------------------------------------------------------------------------------------------


def test_support_pictures_come_with_their_class_and_queries_from_all_folders(tmp_path):
    write_classes(tmp_path, ["b", "a"], lambda number: 2 + number)
    (tmp_path / "a" / "deeper").mkdir()
    picture(9, 9).save(tmp_path / "a" / "deeper" / "x.png")
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    files, labels = pictures.support_files(tmp_path)
    assert labels == ["a"] * 3 + ["b"] * 2
    assert [path.parent.name for path in files] == labels
    assert len(pictures.query_files(tmp_path)) == 6
    assert tmp_path / "a" / "deeper" / "x.png" in pictures.query_files(tmp_path)


def test_folders_that_give_no_task(tmp_path):
    with pytest.raises(UserError, match=r"pictures are given as a folder; .*none is not there"):
        pictures.support_files(tmp_path / "none")
    with pytest.raises(UserError, match=r"pictures are given as a folder; .*none is not there"):
        pictures.query_files(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"pictures are given as a folder; .*file is a file"):
        pictures.query_files(tmp_path / "file")
    with pytest.raises(UserError, match=r"a picture to classify in .*; it holds file"):
        pictures.query_files(tmp_path)
    write_classes(tmp_path / "one", ["only"])
    with pytest.raises(UserError, match=r"at least two classes.*; .*one has 1, it holds only"):
        pictures.support_files(tmp_path / "one")
    with pytest.raises(UserError, match=r"at least two classes.*only has 0, it holds 00.png"):
        pictures.support_files(tmp_path / "one" / "only")
    (tmp_path / "one" / "other").mkdir()
    with pytest.raises(UserError, match=r"a class needs at least one picture.*other has none, it holds nothing"):
        pictures.support_files(tmp_path / "one")
    with pytest.raises(UserError, match="read takes a list of files of pictures"):
        pictures.photographs((3, 8, 8)).read([])


def test_a_picture_of_two_classes_is_refused(tmp_path):
    write_classes(tmp_path, ["a", "b", "c"])
    (tmp_path / "a" / "again.png").write_bytes((tmp_path / "a" / "00.png").read_bytes())  # of one class it may be
    assert len(pictures.support_files(tmp_path)[0]) == len(list(tmp_path.rglob("*.png")))
    (tmp_path / "c" / "other name.png").write_bytes((tmp_path / "a" / "00.png").read_bytes())
    with pytest.raises(UserError, match=r"of one class; .*a/00\.png and .*c/other name\.png are the same file in two"):
        pictures.support_files(tmp_path)


def test_a_file_that_is_no_picture_is_named(tmp_path):
    write_classes(tmp_path, ["a", "b"])
    (tmp_path / "b" / "01.png").write_bytes(b"\x89PNG and no more")
    files, _ = pictures.support_files(tmp_path)
    with pytest.raises(UserError, match=r"a picture must be a whole .*b/01.png is not: it is cut short"):
        pictures.photographs((3, 8, 8)).read(files)


def test_a_folder_that_may_not_be_read(tmp_path, monkeypatch):
    write_classes(tmp_path, ["a", "b"])

    def refuse(place: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(place))

    monkeypatch.setattr(pictures, "pictures_in", refuse)
    monkeypatch.setattr(os, "scandir", refuse)  # of which os.walk is made
    for read in (pictures.support_files, pictures.query_files):
        with pytest.raises(UserError, match=r"folders of pictures must be readable; .* is not: Permission denied"):
            read(tmp_path)

"""A user's own data are a task family like any other, found below the data root."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mlpip_bench
from builders import budget, invoke
from mlpip_bench import registry
from mlpip_bench.benches.added import conv4_settings, first_run
from mlpip_bench.benches.family import DataRequest
from mlpip_bench.datasets import added
from mlpip_bench.datasets.procedural import solids
from mlpip_bench.records import store
from mlpip_bench.testing import assert_family_conforms
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.naming import family_of
from pictures import write_classes

METHODS = "maml,protonets,versa,amortized_vi,cnp"
CLASSES = [f"c{i:02d}" for i in range(15)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with ``birds``, ``set20`` of the same pictures, and ``vectors``."""
    folder = tmp_path_factory.mktemp("own")
    write_classes(folder / "pictures", CLASSES, lambda number: 8 + number % 4)
    for name in ("birds", "set20"):
        result = invoke(
            "data", "add", name, "--from", folder / "pictures", "--image-size", 12, "--data-root", folder / "data"
        )
        assert result.exit_code == 0, result.output
    rng, labels = np.random.default_rng(0), np.arange(150) % 15
    features = rng.normal(size=(15, 6))[labels] + rng.normal(size=(150, 6)) / 4
    np.savez(folder / "vectors.npz", features=features, labels=labels)
    given = ("--from", folder / "vectors.npz", "--pretrained-on", "nothing", "--data-root", folder / "data")
    assert invoke("data", "add", "vectors", *given).exit_code == 0
    return folder / "data"


def run(root: Path, results: Path, bench: str, *arguments: object, methods: str = METHODS):
    given = ("--methods", methods, "--bench", bench, "--data-root", root, "--results", results, "--queries", "3")
    return invoke("run", *given, *budget(train_queries=3), *arguments)


def test_the_name_of_a_bench_says_its_family() -> None:
    for name, family in {
        "omni5w1s": "omni",
        "fc100-5w1s": "fc100",
        "cub200-20w5s": "cub200",
        "my-birds5w1s": "my-birds",
        "a-5-b-5w1s": "a-5-b",
        "views1s": "views",
        "omni-5w1s": "omni-",
    }.items():
        assert family_of(name) == family, name


@pytest.mark.parametrize("name", ["birds", "set20", "vectors"])
def test_it_conforms(name: str, root: Path) -> None:
    assert_family_conforms(registry.family(name, root), DataRequest("real", root))


def test_the_backbone_is_the_papers_where_the_size_is_the_papers(root: Path) -> None:
    for family in ("omni", "mini", "tiny"):
        plugin = registry.family(family)
        assert plugin.image_shape is not None
        own = {"blocks": 4, "ceil_mode": False} | dict(plugin.backbone_settings)
        assert conv4_settings(plugin.image_shape[1]) == own
    for side in range(8, 300):
        settings = conv4_settings(side)
        halves = side
        for _ in range(settings["blocks"]):
            halves = -(-halves // 2) if settings["ceil_mode"] else halves // 2
        assert halves in (2, 3), side
    assert registry.family("vectors", root).backbone == "identity"


@pytest.mark.parametrize("bench", ["birds3w2s", "set20-3w2s", "vectors3w2s"])
def test_every_method_runs_on_it(bench: str, root: Path, tmp_path: Path) -> None:
    result = run(root, tmp_path, bench)
    assert result.exit_code == 0, result.output
    records = store.load_all(tmp_path)
    assert {(record.method, record.protocol) for record in records} == {
        (method, protocol) for method in METHODS.split(",") for protocol in ("accuracy", "nll")
    }
    (data,) = {record.data["fingerprint"] for record in records}
    folder = root / family_of(bench)
    assert data == added.describe(folder).fingerprint
    assert {(r.bench, r.data["name"], r.data["source"], r.data["test_classes"]) for r in records} == {
        (bench, family_of(bench), "real", 3)
    }
    shown = invoke("table", "--results", tmp_path).output
    assert bench in shown
    assert "stand-in" not in shown
    assert invoke("compare", tmp_path, tmp_path).exit_code == 0
    assert "nothing to do for" in run(root, tmp_path, bench).output


def test_other_processes_find_it(root: Path, tmp_path: Path) -> None:
    result = run(root, tmp_path, "birds3w1s", "--jobs", "2", methods="protonets,versa")
    assert result.exit_code == 0, result.output
    assert len(store.load_all(tmp_path)) == 4


def test_a_trained_model_is_loaded_and_adapted(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLPIP_BENCH_DATA", raising=False)
    assert run(root, tmp_path, "birds3w1s", methods="protonets").exit_code == 0
    record = next(tmp_path.glob("records/birds3w1s/protonets/accuracy-*.json"))
    bench = mlpip_bench.load_bench("birds3w1s", data_root=root)
    model = mlpip_bench.load(record)  # which needs no data
    scores = mlpip_bench.evaluate(model, "accuracy", bench=bench)
    measured = [score for score in store.load(record).scores if score.model == "best"]
    assert scores["mean"].tolist() == pytest.approx([np.mean(score.per_task) for score in measured])
    with pytest.raises(UserError, match="'birds' is installed, or was added to a data root"):
        mlpip_bench.load_bench("birds3w1s")


def test_lists_show_it(root: Path) -> None:
    shown = invoke("list", "benches", "--data-root", root).output
    assert "birds3w1s" in shown
    assert "set20-<way>w<shot>s" in shown
    assert "birds" not in invoke("list", "benches").output
    shown = invoke("list", "data", "--data-root", root).output
    assert f"found: {added.LAYOUT} in {root / 'birds'}" in shown


def test_an_unknown_bench_says_how_to_add_data(root: Path) -> None:
    result = invoke("run", "--bench", "fungi5w1s", "--methods", "versa", "--data-root", root)
    assert result.exit_code == 2
    assert f"no data set 'fungi' is installed, or was added to {root}" in result.output
    assert "data add" in result.output
    assert "Did you mean 'birds3w1s'" in invoke("run", "--bench", "bird3w1s", "--data-root", root).output


def test_it_is_verified_and_damage_is_found(root: Path, tmp_path: Path) -> None:
    data = shutil.copytree(root, tmp_path / "data")
    shown = invoke("data", "verify", "birds", "vectors", "--data-root", data)
    assert shown.exit_code == 0, shown.output
    assert added.describe(data / "birds").fingerprint in shown.output
    arrays = data / "birds" / "arrays.npz"
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    shown = invoke("data", "verify", "birds", "--data-root", data)
    assert shown.exit_code == 2
    assert "failed" in shown.output


@pytest.mark.parametrize("asked", [[], ["birds"]])
def test_a_damaged_description_is_no_data_set_that_is_not_there(asked: list[str], root: Path, tmp_path: Path) -> None:
    data = shutil.copytree(root, tmp_path / "data")
    (data / "birds" / "dataset.yaml").write_text("format: [", encoding="utf-8")
    shown = invoke("data", "verify", *asked, "--data-root", data)
    assert shown.exit_code == 2
    assert "failed" in shown.output
    assert "birds" in shown.output
    assert "birds  broken: " in invoke("list", "data", "--data-root", data).output


def test_methods_are_checked_in_its_shape(root: Path) -> None:
    for bench in ("birds3w1s", "vectors3w1s"):
        result = invoke("check", "protonets", "--bench", bench, "--data-root", root)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", ["omni", "linear", "omniglot", "mini-imagenet"])
def test_an_installed_name_is_not_shadowed(name: str, root: Path, tmp_path: Path) -> None:
    result = invoke("data", "add", name, "--from", root.parent / "pictures", "--data-root", tmp_path)
    assert result.exit_code == 2
    assert "must be new" in result.output
    assert not list(tmp_path.iterdir())


def test_a_folder_with_an_installed_name_stops_a_run(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "birds", tmp_path / "omni")
    result = run(tmp_path, tmp_path / "results", "omni5w1s", methods="protonets")
    assert result.exit_code == 2
    assert "must be unique; 'omni' is registered by mlpip_bench.benches" in result.output


def test_other_data_of_the_same_name_are_other_trials(root: Path, tmp_path: Path) -> None:
    assert run(root, tmp_path / "results", "birds3w1s", methods="protonets").exit_code == 0
    given = ("--from", root.parent / "pictures", "--image-size", 14, "--data-root", tmp_path / "other")
    assert invoke("data", "add", "birds", *given).exit_code == 0
    result = run(tmp_path / "other", tmp_path / "results", "birds3w1s", methods="protonets")
    assert result.exit_code == 0
    assert "nothing to do for" not in result.output
    assert len({record.data["fingerprint"] for record in store.load_all(tmp_path / "results")}) == 2


def test_classes_that_are_too_small_for_a_bench_are_named(root: Path, tmp_path: Path) -> None:
    result = invoke("run", "--bench", "birds3w2s", "--methods", "protonets", "--data-root", root)
    assert result.exit_code == 2
    assert "need 17 images in each class; test class 'c" in result.output
    shown = run(root, tmp_path, "birds10w1s").output
    assert "way 10 needs 10" in shown
    assert "data of your own are split otherwise by data add --replace --split" in shown


def test_the_command_that_is_suggested_works(root: Path) -> None:
    for name in ("birds", "set20", "vectors"):
        command = first_run(registry.added_family(root / name), root)
        words = shlex.split(command)[3:]
        result = invoke(*words, "--dry-run")
        assert result.exit_code == 0, result.output


def test_python_adds_what_the_command_line_adds(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPIP_BENCH_DATA", str(tmp_path))
    made = mlpip_bench.add_data("birds", root.parent / "pictures", image_size=12)
    assert made.fingerprint == added.describe(root / "birds").fingerprint
    assert added.describe(tmp_path / "birds") == made
    with pytest.raises(UserError, match="unknown option of add_data 'size'"):
        mlpip_bench.add_data("others", root.parent / "pictures", size=12)
    with pytest.raises(UserError, match="must be new; 'omni'"):
        mlpip_bench.add_data("omni", root.parent / "pictures")
    root_of_its_own = tmp_path / "not there yet"
    options = {"image_size": 12, "split": (50, 25, 25), "data_root": root_of_its_own}
    assert mlpip_bench.add_data("birds", root.parent / "pictures", **options).options["split"] == "50/25/25"
    monkeypatch.delenv("MLPIP_BENCH_DATA")
    with pytest.raises(UserError, match="pass data_root or set MLPIP_BENCH_DATA"):
        mlpip_bench.add_data("others", root.parent / "pictures")


def test_a_task_is_drawn(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("data", "show", "birds3w2s", "--split", "validation", "--data-root", root)
    assert result.output.strip() == "birds3w2s-validation-0.png"
    bench = mlpip_bench.load_bench("birds3w2s", data_root=root)
    figure = bench.figure(split="validation")
    assert figure.get_suptitle() == "birds3w2s on birds: validation task 0"
    batch = bench.sample(1, split="validation", queries=5)
    first = batch.support.x[0, batch.support.y[0] == 0][0].permute(1, 2, 0)
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array()[:12, :12], first)
    with Image.open("birds3w2s-validation-0.png") as written:
        assert written.format == "PNG"
    monkeypatch.setenv("MLPIP_BENCH_CACHE", str(tmp_path / "cache"))  # of few solids: all take a minute to draw
    monkeypatch.setattr(solids, "_OBJECTS_PER_CATEGORY", 1)
    of_views = mlpip_bench.load_bench("views3s", source="procedural").figure()  # of the views, not of the angles
    assert [axes.get_title() for axes in of_views.axes] == ["support", "queries"]
    assert "stand-in data" in of_views.get_suptitle()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["vectors3w2s"], "points of vectors3w2s have none"),
        (["sinusoid5s"], "points of sinusoid5s have none"),
        (["birds3w2s", "--queries", "0"], "at least one query"),
        (["birds3w2s", "--task", "-1"], "counted from 0"),
        (["birds3w2s", "--split", "novel"], "a split is one of train, validation, test"),
        (["birds3w2s", "--output", "task.jpg"], "ends in .png"),
        (["birds3w2s", "--source", "web"], "unknown source 'web'"),
        (["birds3w2s", "--data", "omni.split=random"], "--data names the bench's task family, birds"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    asked: list[str], message: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("data", "show", *asked, "--data-root", root)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())

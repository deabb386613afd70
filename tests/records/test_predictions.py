"""Predictions next to records: precise enough for scores, whole or not believed, and read in bounded memory."""

import dataclasses
import hashlib
import io
import json
import os
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from builders import budget, invoke, make_config, make_predictions, make_record, write_record
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.records import predictions as kept
from mlpip_bench.records import store
from mlpip_bench.records.record import PredictionsFile
from mlpip_bench.utils.errors import UserError

RUN = ["run", "--bench", "omni5w1s", "--source", "procedural", "--methods", "protonets"]


def run(folder: Path, *words: object, **settings: object):
    done = invoke(*RUN, *budget(**{"validate_every": 2} | settings), "--results", folder, *words)
    assert done.exit_code == 0, done.output
    return done


def files(folder: Path) -> list[Path]:
    return sorted((folder / "records").rglob("predictions-*.npz"))


def of_all(**more) -> dict:
    """The predictions of a trial."""
    return {("test", 3): make_predictions(6, **more), ("validation", 3): make_predictions(3, seed=1, **more)}


def with_classes(p: kept.Predictions) -> kept.Predictions:
    """Of some classes of a data set of 1,000."""
    classes = np.random.default_rng(0).integers(0, 1000, (len(p.of_target), 3)).astype("<u4")
    return dataclasses.replace(p, classes=classes)


def equal(a: kept.Predictions, b: kept.Predictions) -> bool:
    """Array by array."""
    return all(np.array_equal(x, vars(b)[name]) for name, x in vars(a).items() if x is not None)


# ------------------------------------------------------------------------------------------------------ precision


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("tasks", [2, 600])
def test_a_recomputed_mean_nll_agrees_to_1e_4(scale, tasks):
    chance = np.random.default_rng(0)
    exact = log_softmax(scale * chance.normal(size=(tasks, 75, 5)), -1)
    targets = chance.integers(5, size=(tasks, 75))
    found = kept.of_classes(targets, exact)
    nll = -np.take_along_axis(exact, targets[..., None], -1)[..., 0]
    error = np.abs(found.of_target.astype(float) + nll)
    assert error.mean() < 1e-5
    assert error.max() < 1e-4 * max(1, scale)
    assert np.array_equal(found.choices, exact.argmax(-1))  # also where half precision makes two equal
    # Half precision of the logarithm: 11 significant bits.
    assert (np.abs(found.log_probs.astype(float) - exact) <= 2.0**-11 * np.abs(exact) + 2.0**-25).all()


def test_a_probability_of_zero_is_kept():
    with np.errstate(divide="ignore"):
        found = kept.of_classes(np.array([[0, 1]]), np.log(np.array([[[1.0, 0.0], [0.5, 0.5]]])))
    (back,) = kept.from_bytes(kept.to_bytes({("test", 3): found})).values()
    assert back.log_probs[0, 0, 1] == -np.inf


# ---------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("large", [False, True])
def test_what_was_written_is_read(tmp_path, monkeypatch, large):
    monkeypatch.setattr(kept, "LARGE_BYTES", 0 if large else kept.LARGE_BYTES)
    of = {key: with_classes(predictions.reduced() if large else predictions) for key, predictions in of_all().items()}
    named = kept.save(of, tmp_path, kept.stem(3, "0123456789abcdef"))
    assert named.file == f"predictions-seed3-0123456789ab.{named.sha256[:12]}.npz"
    assert named.sha256 == hashlib.sha256((tmp_path / named.file).read_bytes()).hexdigest()
    back = kept.load(make_record(predictions=named), tmp_path)
    assert back.keys() == of.keys()
    assert all(equal(of[key], back[key]) for key in of)


def test_the_same_predictions_are_the_same_bytes_at_any_time(monkeypatch):
    first = kept.to_bytes(of_all())
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert kept.to_bytes(dict(reversed(of_all().items()))) == first


def test_numpy_reads_the_file_without_pickle(tmp_path):
    named = kept.save(of_all(), tmp_path, kept.stem(0, "0" * 12))
    with np.load(tmp_path / named.file, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["test.targets"], of_all()["test", 3].targets)
        assert arrays["test.3.log_probs"].shape == (6, 12, 3)


def test_regression_keeps_the_densities_of_targets():
    found = kept.Predictions(np.full((2, 3), 1.5, "<f4"))
    (back,) = kept.from_bytes(kept.to_bytes({("test", 4): found})).values()
    assert equal(found, back)
    assert back.targets is None


def test_a_large_file_keeps_the_true_class_and_the_most_probable_one(monkeypatch):
    whole = make_predictions(6)
    monkeypatch.setattr(kept, "LARGE_BYTES", 6 * 12 * (4 + 1 + 2 * 3))
    assert kept.from_bytes(kept.to_bytes({("test", 3): whole}))["test", 3].log_probs is not None
    monkeypatch.setattr(kept, "LARGE_BYTES", kept.LARGE_BYTES - 1)
    back = kept.from_bytes(kept.to_bytes({("test", 3): whole}))["test", 3]
    assert back.log_probs is None
    assert np.array_equal(back.of_target, whole.of_target)
    assert np.array_equal(back.choices, whole.choices)
    assert np.array_equal(back.of_choice, whole.log_probs.max(-1))


def test_too_many_predictions_are_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "LARGEST_BYTES", 100)
    with pytest.raises(ValueError, match="more than the 100 that are read"):
        kept.save(of_all(), tmp_path, kept.stem(0, "0" * 12))
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ what is believed


@pytest.mark.parametrize(
    ("file", "sha256"),
    [
        ("../../predictions-seed0-000000000000.000000000000.npz", "0" * 64),
        ("predictions-seed0-000000000000.000000000000.npz", "1" * 64),
        ("predictions-seed0-000000000000.000000000000.npz\n", "0" * 64),
        ("predictions-seed0-000000000000.000000000000.npz", "0" * 63),
        ("/etc/passwd", "0" * 64),
    ],
)
def test_a_record_names_a_file_of_its_own_folder(file, sha256):
    with pytest.raises(ValueError, match="has the name predictions-seedN-KEY"):
        PredictionsFile(file, sha256)


def test_a_record_with_such_a_name_is_refused(tmp_path):
    path = store.save(
        make_record(predictions=PredictionsFile(f"predictions-seed0-{'0' * 12}.{'0' * 12}.npz", "0" * 64)), tmp_path
    )
    raw = json.loads(path.read_text())
    del raw["checksum"]
    path.write_text(json.dumps(raw | {"predictions": {"file": "../x.npz", "sha256": "0" * 64}}))
    with pytest.raises(UserError, match=rf"{path.name} is not: predictions"):
        store.load(path)


def saved(folder: Path, content: bytes) -> object:
    """A record that names some bytes as its predictions."""
    digest = hashlib.sha256(content).hexdigest()
    file = f"predictions-seed0-{'0' * 12}.{digest[:12]}.npz"
    (folder / file).write_bytes(content)
    return make_record(predictions=PredictionsFile(file, digest))


def test_every_flipped_bit_is_found(tmp_path):
    record = saved(tmp_path, kept.to_bytes(of_all()))
    path = tmp_path / record.predictions.file
    content = path.read_bytes()
    chance = random.Random(0)
    for _ in range(200):
        at = chance.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :])
        with pytest.raises(UserError, match=f"{path.name} is not: its SHA-256"):
            kept.load(record, tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=f"{path.name} is not: No such file"):
        kept.load(record, tmp_path)


def test_random_bytes_under_a_right_digest_are_a_message(tmp_path):
    content, chance = kept.to_bytes(of_all()), random.Random(1)
    for number in range(400):
        at, many = chance.randrange(len(content)), chance.randrange(1, 40)
        damaged = content[:at] + chance.randbytes(many) + content[at + (many if number % 2 else 0) :]
        try:
            kept.load(saved(tmp_path, damaged), tmp_path)
        except UserError as error:
            assert "must be readable and whole" in str(error)  # noqa: PT017  # most are refused, none is a traceback


def archive(compression: int = zipfile.ZIP_STORED, **arrays: object) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asarray(array), (1, 0), allow_pickle=True)
            file.writestr(f"{name}.npy", content.getvalue())
    return out.getvalue()


GOOD = {f"test.3.{k}": v for k, v in vars(make_predictions()).items() if v is not None and k != "targets"}
GOOD["test.targets"] = make_predictions().targets


def changed(**changes: object) -> bytes:
    return archive(**(GOOD | {name.replace("__", "."): value for name, value in changes.items()}))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            archive(zipfile.ZIP_DEFLATED, **{"test.targets": np.zeros((10_000, 1000), "<u1")}),
            "in no file of predictions",
        ),
        (changed(test__3__of_target=np.array([[{}]], object)), "no array of numbers"),
        (changed(test__3__of_target=GOOD["test.3.of_target"].astype(">f4")), "no array of numbers"),
        (changed(test__3__choices=GOOD["test.3.of_target"]), "its choices are float32"),
        (changed(test__3__other=GOOD["test.targets"]), "in no file of predictions"),
        (changed(test__3__of_target=GOOD["test.3.of_target"] - 0.5), "of_target is not what log_probs have"),
        (changed(test__3__of_target=GOOD["test.3.of_target"][:5]), "targets must have the shape"),
        (changed(test__3__log_probs=GOOD["test.3.log_probs"] - 1), "must add up to 1"),
        (changed(test__3__log_probs=np.full_like(GOOD["test.3.log_probs"], np.nan)), "must add up to 1"),
        (changed(test__3__choices=(GOOD["test.3.choices"] + 1) % 3), "choices are not the most probable"),
        (changed(test__targets=GOOD["test.targets"] + 9), "beyond the 3"),
        (changed(test__classes=np.zeros((5, 3), "<u4")), "classes must be"),
        (changed(test__classes=np.zeros((6, 2), "<u4")), "classes must be"),
        (archive(**{"test.targets": GOOD["test.targets"]}), "no predictions of some targets"),
        (archive(**{"test.3.of_target": np.array([[np.nan]], "<f4")}), "not log-densities"),
        (archive(**{"test.3.choices": GOOD["test.targets"]}), "no log-densities"),
        (archive(**{n: a for n, a in GOOD.items() if n != "test.3.log_probs"}), "one of log_probs and of_choice"),
        (b"", "not a zip file"),
        (b"PK\x05\x06" + bytes(18), "none at all"),
    ],
)
def test_arrays_that_are_no_predictions(tmp_path, content, says):
    with pytest.raises(UserError, match=says):
        kept.load(saved(tmp_path, content), tmp_path)


def test_the_good_arrays_of_the_test_above_are_predictions(tmp_path):
    assert equal(kept.load(saved(tmp_path, changed()), tmp_path)["test", 3], make_predictions())


def test_a_pipe_a_folder_and_a_huge_file_are_messages(tmp_path):
    record = saved(tmp_path, b"x")
    path = tmp_path / record.predictions.file
    path.write_bytes(b"")
    os.truncate(path, kept.LARGEST_BYTES + 1)
    for make in (lambda: None, lambda: os.mkfifo(path), path.mkdir):
        make()
        with pytest.raises(UserError, match="must be readable and whole"):
            kept.load(record, tmp_path)
        path.rmdir() if path.is_dir() else path.unlink()


# ------------------------------------------------------------------------------------------------------------ runs


def test_a_run_keeps_one_file_a_trial_that_all_its_records_name(tmp_path):
    run(tmp_path, "--protocols", "accuracy,nll,calibration")
    (file,) = files(tmp_path)
    records = store.load_all(tmp_path)
    assert {record.predictions.file for record in records} == {file.name}
    found = kept.load(records[0], file.parent)
    assert {split for split, _ in found} == {"test", "validation"}
    training = records[0].training
    models = {*training["chosen"].values(), training["iterations"]}
    assert found.keys() == {(split, iteration) for split in ("test", "validation") for iteration in models}
    assert found["test", 4].log_probs.shape == (4, 75, 5)
    assert len(found["validation", 4].of_target) == 2
    stream = plan_trials(make_config(benches=(records[0].bench,)))[0].streams()["test"]
    assert np.array_equal(found["test", 4].classes, stream.indices(0, 4).classes)


def test_equal_runs_give_equal_files_and_the_numbers_of_a_run_without(tmp_path):
    names = []
    for folder, words in ((tmp_path / "a", ()), (tmp_path / "b", ()), (tmp_path / "c", ("--no-predictions",))):
        run(folder, *words)
        names.append([file.read_bytes() for file in files(folder)])
    assert names[0] == names[1]
    assert len(names[0]) == 1
    assert names[2] == []
    with_, without = (store.load_all(tmp_path / folder) for folder in "ac")
    assert [r.scores for r in with_] == [r.scores for r in without]
    assert all(record.predictions is None for record in without)


def test_keeping_predictions_is_no_part_of_a_key(tmp_path):
    run(tmp_path, "--no-predictions")
    assert "1 had nothing to do" in run(tmp_path).output
    assert not files(tmp_path)


def test_records_of_before_are_read(tmp_path):
    path = store.save(make_record(), tmp_path)
    raw = json.loads(path.read_text())
    del raw["predictions"]
    write_record(path, raw)
    assert store.load(path) == make_record()


def test_predictions_of_regression(tmp_path):
    small = budget(iterations=4, validate_every=2)
    done = invoke("run", "--bench", "linear5s", "--methods", "versa", *small, "--results", tmp_path)
    assert done.exit_code == 0, done.output
    (file,) = files(tmp_path)
    (record,) = (record for record in store.load_all(tmp_path) if record.protocol == "nll")
    best = next(score for score in record.scores if score.model == "best")
    found = kept.load(record, file.parent)["test", record.training["best_iteration"]]
    assert -found.of_target.mean(1) == pytest.approx(best.per_task, rel=1e-6)


def test_a_file_that_is_lost_takes_no_record_with_it(tmp_path):
    run(tmp_path)
    (file,) = files(tmp_path)
    file.unlink()
    assert invoke("table", "--results", tmp_path).exit_code == 0
    assert "1 had nothing to do" in run(tmp_path).output


def test_a_killed_writer_leaves_nothing_for_long(tmp_path):
    run(tmp_path)
    (file,) = files(tmp_path)
    left = file.with_name(f".{file.name}.abc")
    left.write_bytes(b"half")
    assert store.load_all(tmp_path)
    run(tmp_path, "--overwrite", "always")
    assert not left.exists()
    assert files(tmp_path) == [file]


def test_reduced_predictions_stay_as_they_are():
    once = make_predictions().reduced()
    assert equal(once.reduced(), once)

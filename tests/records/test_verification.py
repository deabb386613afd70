"""What ``verify`` believes of records that come from elsewhere."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from builders import invoke, make_record, random_queries, write_trial
from mlpip_bench.records import predictions, store
from mlpip_bench.records.verification import verify


def rewritten(path: Path, **changes) -> None:
    """A record with other contents and a right checksum, as a stranger can write it."""
    record = dataclasses.replace(store.load(path), **changes)
    path.unlink()
    store.save(record, path.parents[3])


def test_scores_that_torch_made_are_consistent(tmp_path):
    paths = write_trial(tmp_path)
    for path, metric in zip(paths, ("accuracy", "nll", "ece"), strict=True):
        found = verify(path)
        assert found.status == "consistent", found
        assert f"{metric} (best), {metric} (last)" in found.detail
    done = invoke("verify", tmp_path)
    assert done.exit_code == 0
    assert "3 consistent" in done.output


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("which", [0, 1])  # of the best model, and of the last one
def test_one_score_that_was_improved_is_found(tmp_path, number, which):
    path = write_trial(tmp_path)[number]
    record = store.load(path)
    score = record.scores[which]
    better = (score.per_task[0] + (0.02 if number == 0 else -0.05), *score.per_task[1:])
    scores = [*record.scores]
    scores[which] = dataclasses.replace(score, per_task=better)
    rewritten(path, scores=tuple(scores))
    done = invoke("verify", tmp_path)
    assert done.exit_code == 1
    assert "2 consistent" in done.output
    assert verify(path).status == "inconsistent"
    assert f"{score.metric} ({score.model}) is not that of its predictions" in verify(path).detail


def test_predictions_that_were_improved_with_their_scores_are_found(tmp_path):
    """All correct, with a right digest: then targets are not as many of each class."""
    path = write_trial(tmp_path)[0]
    record = store.load(path)
    _, log_probs = random_queries(6, 5, 15)
    of = {("test", 4): predictions.of_classes(log_probs.argmax(-1), log_probs)}
    named = predictions.save(of, path.parent, predictions.stem(0, "0" * 12))
    scores = tuple(dataclasses.replace(score, per_task=(1.0,) * 6) for score in record.scores)
    rewritten(path, predictions=named, scores=scores)
    found = verify(path)
    assert found.status == "inconsistent"
    assert "of 15 queries of each of 5 classes" in found.detail


def test_other_shapes_are_found(tmp_path):
    path = write_trial(tmp_path)[0]
    record = store.load(path)
    rewritten(path, scores=tuple(dataclasses.replace(s, per_task=s.per_task[:5]) for s in record.scores))
    assert "is of 5 tasks of 75 queries, and its predictions are of 6 tasks" in verify(path).detail


def test_a_damaged_file_is_named(tmp_path):
    path = write_trial(tmp_path)[0]
    file = path.parent / store.load(path).predictions.file
    content = file.read_bytes()
    file.write_bytes(content[:-100] + bytes(100))
    done = invoke("verify", path)
    assert done.exit_code == 1
    assert f"{file} is not: its SHA-256" in done.output
    file.unlink()
    assert verify(path).status == "inconsistent"


def test_a_damaged_record_is_named_and_others_are_verified(tmp_path):
    path = write_trial(tmp_path)[0]
    path.write_text("{}")
    done = invoke("verify", tmp_path)
    assert done.exit_code == 1
    assert "1 inconsistent" in done.output
    assert "2 consistent" in done.output
    assert verify(path).path == path


def test_a_record_without_predictions_is_not_called_consistent(tmp_path):
    path = store.save(make_record(), tmp_path)
    assert verify(path).status == "unverified"
    done = invoke("verify", path)
    assert done.exit_code == 0
    assert "1 unverified" in done.output


def test_rounding_is_not_taken_for_a_fault(tmp_path):
    """Probabilities so extreme that half precision rounds coarsely."""
    for seed in range(3):
        for path in write_trial(tmp_path, seed=seed, sharpness=40.0):
            assert verify(path).status == "consistent", verify(path).detail


def test_a_score_that_is_not_finite_in_the_predictions(tmp_path):
    path = write_trial(tmp_path)[1]
    targets, _ = random_queries(6, 5, 15)
    certain = np.where(np.arange(5) == (targets[..., None] + 1) % 5, 0.0, -np.inf)
    of = {("test", 4): predictions.of_classes(targets, certain)}
    rewritten(path, predictions=predictions.save(of, path.parent, predictions.stem(0, "0" * 12)))
    assert verify(path).status == "inconsistent"


def test_nothing_to_verify_is_one_message(tmp_path):
    done = invoke("verify", tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "nowhere is none, or has no record" in done.output


def test_every_changed_digit_of_an_accuracy_is_found(tmp_path):
    path = write_trial(tmp_path)[0]
    raw = json.loads(path.read_text())
    raw.pop("checksum")
    for task in range(6):
        changed = json.loads(json.dumps(raw))
        changed["scores"][0]["per_task"][task] = round(changed["scores"][0]["per_task"][task], 3) + 1e-4
        path.write_text(json.dumps(changed))
        assert verify(path).status == "inconsistent"

"""A method knows how many training classes there are: all that ``TaskBatch.classes`` names, and no more."""

from pathlib import Path

import numpy as np
import pytest
import torch

import mlpip_bench
from builders import CPU, budget, family_of, invoke, make_config, make_dataset
from mlpip_bench.benches.family import DataRequest
from mlpip_bench.datasets import added
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.records import store
from pictures import write_classes

METHOD = '''
import torch

import mlpip_bench as mb
from mlpip_bench.methods.protonets import ProtoNets


class OfAll(ProtoNets):
    """With a classifier of all training classes."""

    def __init__(self, problem, settings):
        super().__init__(problem, settings)
        self.classifier = torch.nn.Linear(self.backbone.features, problem.training_classes)

    def loss(self, batch):
        logits = self.classifier(self.backbone(batch.support.x)[0])
        classes = batch.classes.gather(1, batch.support.y)
        return super().loss(batch) + torch.nn.functional.cross_entropy(logits.flatten(0, 1), classes.flatten())
'''


def ids(bench: str, tasks: int = 300, **options: str) -> tuple[int | None, set[int]]:
    """How many training classes a family says there are, and those of the first training tasks."""
    spec, family = family_of(bench, **options)
    data = family.load(DataRequest("procedural"))
    plan = TrainingPlan(**{**family.budgets["quick"], "train_queries": 1})
    batch = family.streams(spec, data, plan, queries=1, seed=0, device=CPU)["train"].batch(0, tasks)
    return family.training_classes(data), set() if batch.classes is None else set(batch.classes.flatten().tolist())


@pytest.mark.parametrize("rotations", ["on", "separate", "off"])
def test_each_rotation_of_a_character_that_is_a_class_has_a_number_of_its_own(rotations):
    number, found = ids("omni20w1s", tasks=2000, rotations=rotations)
    characters = ids("omni5w1s", rotations="off")[0]
    assert number == characters * (1 if rotations == "off" else 4)
    assert found == set(range(number))


def test_the_classes_of_tasks_that_stay_the_same_are_those_of_the_digits():
    assert ids("context2", tasks=50) == (10, set(range(10)))


@pytest.mark.parametrize("bench", ["toy5", "sinusoid5s", "linear5s"])
def test_tasks_that_are_not_cut_out_of_classes_have_none(bench):
    assert ids(bench, tasks=2) == (None, set())


def test_objects_whose_views_are_reconstructed_are_no_classes():
    _, family = family_of("views1s")
    views = make_dataset(np.zeros((3, 36, 1, 32, 32), np.uint8))
    assert family.training_classes(views) is None


def test_a_classifier_of_all_training_classes_is_trained_and_loaded_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(METHOD, encoding="utf-8")
    write_classes(tmp_path / "pictures", [f"c{i:02d}" for i in range(15)], 8)
    given = ("--from", "pictures", "--image-size", "12", "--data-root", "data")
    assert invoke("data", "add", "birds", *given).exit_code == 0
    options = ("--data-root", "data", "--queries", "3", "--protocols", "accuracy", *budget(train_queries=3))
    result = invoke("run", "--methods", "own.py:OfAll", "--bench", "birds3w1s", *options)
    assert result.exit_code == 0, result.output
    (record,) = store.load_all(Path("runs"))
    expected = len(added.describe(Path("data/birds")).splits["train"])
    assert record.data["training_classes"] == expected
    model = mlpip_bench.load(Path("runs/records") / record.filename, trust_code=True)
    assert model.method.classifier.weight.shape == (expected, model.method.backbone.features)
    exported = mlpip_bench.export(Path("runs/records") / record.filename, "model.safetensors", trust_code=True)
    again = mlpip_bench.load(exported, trust_code=True).method
    torch.testing.assert_close(again.classifier.weight, model.method.classifier.weight, rtol=0, atol=0)


def test_the_number_is_no_part_of_what_tells_trials_from_others():
    (trial,) = plan_trials(make_config())
    assert trial.problem.training_classes == trial.data_facts["training_classes"] == trial.training_classes
    assert trial.training_classes == trial.data.splits["train"].num_classes

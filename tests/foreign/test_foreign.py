"""Models of other libraries under the suite's protocols, by the code of the pages; each with its library installed."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from builders import REPOSITORY, budget, invoke, make_config
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.records import store

METHODS = (REPOSITORY / "docs" / "my-method.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^\*\*(.*?)\*\*\n\n```python\n(.*?)^```", METHODS, re.M | re.S))
MODELS = (REPOSITORY / "docs" / "my-model.md").read_text(encoding="utf-8")
(TIMM,) = (block for block in re.findall(r"^```python\n(.*?)^```", MODELS, re.M | re.S) if "import timm" in block)

BEFORE = """
import torch
from torch import nn

import mlpip_bench as mb


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16)).eval()


network = build()
"""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16)).eval()


def scores(
    folder: Path, code: str, *methods: str, test_tasks: int = 6, more: tuple[str, ...] = ()
) -> dict[str, list[float]]:
    """Accuracy of each test task, by method."""
    folder.mkdir()
    (folder / "models.py").write_text(BEFORE + code, encoding="utf-8")
    places = ",".join(f"{folder / 'models.py'}:{name}" if name != "protonets" else name for name in methods)
    result = invoke(
        "run", "--methods", places, "--bench", "omni5w1s", "--source", "procedural", "--results", folder / "runs",
        "--protocols", "accuracy", *budget(test_tasks=test_tasks), *more,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = {}
    for record in store.load_all(folder / "runs"):
        (found[record.method],) = (list(s.per_task) for s in record.scores if s.model == "best")
    return found


def by_hand(classify) -> list[float]:
    """The same of a function of one task that gives classes, on the same tasks."""
    (trial,) = plan_trials(make_config())
    stream = trial.streams()["test"]
    found = []
    for number in range(6):
        batch = stream.batch(number, 1)
        answer = classify(batch.support.x[0], batch.support.y[0], batch.query.x[0])
        found.append(float(np.mean(np.asarray(answer) == batch.query.y[0].numpy())))
    return found


def test_easyfsl_has_the_accuracy_of_the_suites_own_prototypical_networks(tmp_path):
    pytest.importorskip("easyfsl")
    found = scores(tmp_path / "easyfsl", BLOCKS["easyfsl"], "easyfsl")
    place = f"{tmp_path / 'easyfsl' / 'models.py'}:build"
    own = scores(tmp_path / "own", "", "protonets", more=("--backbone", place, "--iterations", "0"))
    assert found["easyfsl"] == own["protonets"]


def test_scikit_learn_has_the_accuracy_that_it_has_by_hand(tmp_path):
    linear_model = pytest.importorskip("sklearn.linear_model")

    def classify(support_x, support_y, query_x):
        classifier = linear_model.LogisticRegression(max_iter=1000)
        return classifier.fit(support_x.flatten(1).numpy(), support_y.numpy()).predict(query_x.flatten(1).numpy())

    assert scores(tmp_path / "r", BLOCKS["scikit-learn"], "sklearn")["sklearn"] == by_hand(classify)


def test_higher_has_the_accuracy_of_gradient_steps_on_a_copy(tmp_path):
    pytest.importorskip("higher")

    def classify(support_x, support_y, query_x):
        adapted = copy.deepcopy(network())
        optimizer = torch.optim.SGD(adapted.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(adapted(support_x)[:, :5], support_y).backward()
            optimizer.step()
        return adapted(query_x)[:, :5].argmax(-1).numpy()

    assert scores(tmp_path / "r", BLOCKS["higher"], "of_steps")["of_steps"] == by_hand(classify)


def test_a_feature_extractor_of_hugging_face_from_a_local_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = transformers.ResNetConfig(num_channels=1, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    encoder = transformers.ResNetModel(settings).eval()
    encoder.save_pretrained(tmp_path / "model")

    def classify(support_x, support_y, query_x):
        with torch.no_grad():
            support, query = (encoder(x).pooler_output.flatten(1) for x in (support_x, query_x))
        means = torch.stack([support[support_y == label].mean(0) for label in range(5)])
        return torch.cdist(query, means).argmin(-1).numpy()

    code = BLOCKS["Hugging Face"].replace("folder/of/the/model", str(tmp_path / "model"))
    assert scores(tmp_path / "r", code, "features")["features"] == by_hand(classify)


def test_a_network_of_timm_is_a_backbone(tmp_path):
    pytest.importorskip("timm")
    (tmp_path / "network.py").write_text(TIMM, encoding="utf-8")
    for norm in ("metabn", "own"):
        result = invoke(
            "run", "--methods", "protonets", "--bench", "omni5w1s", "--source", "procedural",
            "--results", tmp_path / norm,
            "--backbone", f"{tmp_path / 'network.py'}:build,name=resnet10t", "--norm", norm, "--protocols", "accuracy",
            *budget(iterations=1),
        )  # fmt: skip
        assert result.exit_code == 0, result.output

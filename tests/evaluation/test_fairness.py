"""What a method could learn from the way in which it is asked: the order of the queries, and their labels."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from builders import CPU, backbone, family_of, make_dataset, make_method, make_pool
from mlpip_bench import registry
from mlpip_bench.benches.family import DataRequest, TaskFamily, TaskSource
from mlpip_bench.datasets.views import VIEWS, view_dataset
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.evaluation.metrics import ACCURACY
from mlpip_bench.evaluation.predict import predict
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.execution.measuring import scores_of
from mlpip_bench.inference.method import Method, Problem, TrainingPlan
from mlpip_bench.tasks.batch import Labeled, TaskBatch, TaskShape
from mlpip_bench.tasks.images import HeldOutStream, TaskStream
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.testing.conformance import check_method

WAY, QUERIES, TASKS = 20, 15, 100


class ReadsPositions(registry.method("protonets")):
    """Where queries may see each other, it gives query ``i`` of ``n`` the class ``i way // n``, and looks at none."""

    def predictive(self, q, query_x):
        if self.training or self.problem.norm != "transductive":
            return super().predictive(q, query_x)
        way, points = q.psi.mean.shape[1], query_x.shape[1]
        classes = (torch.arange(points) * way // points).expand(query_x.shape[:2])
        return Categorical(logits=100.0 * torch.nn.functional.one_hot(classes, way).to(query_x), validate_args=False)


def cheat(way: int = WAY) -> ReadsPositions:
    honest = make_method("protonets", "transductive", way)
    return ReadsPositions(Problem(honest.problem.backbone, "transductive", way), honest.settings)


@pytest.mark.parametrize("held_out", [False, True])
def test_a_method_that_reads_classes_off_positions_guesses(held_out):
    pool = make_pool(np.random.default_rng(0).integers(0, 256, (30, 20, 1, 8, 8)).astype(np.uint8))
    stream = TaskStream(pool, TaskShape(WAY, 1, QUERIES), "omni20w1s", "test")
    asked = HeldOutStream(stream, pool, QUERIES, "omni20w1s", "held out", split="test") if held_out else stream
    (found,) = Evaluation(cheat(), "best", asked, TASKS).scores([ACCURACY])
    # The variance of the number of points that a random order puts where their class is looked for (Hoeffding 1951).
    points = WAY * QUERIES
    variance = QUERIES**2 * (WAY - 1) / (points - 1)
    error = (variance / TASKS) ** 0.5 / points
    assert abs(float(np.mean(found.per_task)) - 1 / WAY) < 4 * error


def test_the_conformance_suite_finds_it_by_the_order_of_the_queries_alone():
    results = {result.name: result for result in check_method(ReadsPositions)}
    failed = {name: result.detail for name, result in results.items() if result.status == "failed"}
    assert set(failed) == {"query_order"}
    assert failed["query_order"].startswith("norm transductive, queries in another order: they differ by 1")


# -- the labels of queries -------------------------------------------------------------------------------------------


def made(family: TaskFamily) -> TaskSource:
    """Data of noise in the shape of a bench's."""
    rng = np.random.default_rng(7)
    if family.kind == "regression":
        return family.load(DataRequest())
    if family.kind == "reconstruction":
        images = rng.integers(0, 256, (20, VIEWS, 32, 32)).astype(np.uint8)
        return view_dataset("made", "procedural", images, [str(i) for i in range(20)], {})
    return make_dataset(rng.integers(0, 256, (10, 40, 1, 28, 28)).astype(np.uint8))


def evaluated(bench: str, method: str, wrapped: Callable[[type[Method]], type[Method]]) -> Evaluation:
    """A method of a wrapped class, before three test tasks of a bench."""
    spec, family = family_of(bench)
    data, plugin = made(family), wrapped(registry.method(method))
    plan = family.fitted(TrainingPlan(**family.budgets["quick"]), spec, data)
    queries = family.queries_at_test(4)
    stream = family.streams(spec, data, plan, queries=queries, seed=0, device=CPU)["test"]
    network = backbone(family.backbone, family.input_shape(data), **family.settings_of_backbone(spec))
    problem = Problem(network, "metabn", spec.way, family.kind, family.noise_std, family.inputs, family.kernel)
    torch.manual_seed(0)
    settings = plugin.Settings()
    cheap = {name: 1 for name in ("test_steps", "eval_samples") if hasattr(settings, name)}
    settings = dataclasses.replace(settings, **cheap)
    return Evaluation(plugin(problem, settings), "best", stream, 3)


def recording(plugin: type[Method]) -> type[Method]:
    """The same method, which keeps what it receives and what ``amortize`` returns."""

    class Recording(plugin):
        received: ClassVar[list[tuple[str, tuple, dict, object]]] = []

        def amortize(self, *args, **named):
            self.received.append(("amortize", args, named, q := super().amortize(*args, **named)))
            return q

        def predictive(self, *args, **named):
            self.received.append(("predictive", args, named, None))
            return super().predictive(*args, **named)

    return Recording


def alone_in_memory(tensor: torch.Tensor) -> bool:
    """Whether nothing else can be read through the tensor's memory, such as the labels that it was cut off."""
    return tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size()


BENCHES = (
    ("omni5w1s", "maml"),
    ("linear5s", "versa"),
    ("toy5", "versa"),
    ("sinusoid5s", "maml"),
    ("views1s", "versa"),
    ("context4", "versa"),
)


def measured_by(bench: str, evaluation: Evaluation) -> list[str]:
    """All protocols that measure one model of such a bench; those by default among them."""
    method, (_, family) = evaluation.method, family_of(bench)
    found = {name: registry.protocol(name) for name in registry.protocol_names()}
    return [
        name
        for name, p in found.items()
        if issubclass(p, EvalProtocol)
        and family.kind in p.handles
        and (not p.families or isinstance(family, p.families))
        and p().applies(type(method), method.settings)
        and name != "versatility"  # whose tasks need more classes; they are those of omni5w1s in another shape
    ]


@pytest.mark.parametrize(("bench", "method"), BENCHES)
def test_a_method_receives_support_sets_and_images_alone(bench, method):
    evaluation = evaluated(bench, method, recording)
    names = measured_by(bench, evaluation)
    assert {n for n in names if registry.protocol(n).default}
    for name in names:
        scores_of(registry.protocol(name)(), evaluation)
    is_inductive(evaluation.method, evaluation.stream.batch(0, 1))
    tasks = evaluation.stream.batch(0, evaluation.tasks)
    posteriors, asked = [], 0
    for function, args, named, returned in evaluation.method.received:
        assert not named
        if function == "amortize":
            (support,) = args
            assert type(support) is Labeled
            assert torch.equal(support.y, tasks.support.y[: support.tasks])
            assert torch.equal(support.x, tasks.support.x[: support.tasks])
            tensors = [value for value in vars(support).values() if isinstance(value, torch.Tensor)]
            posteriors.append(returned)
        else:
            q, x = args
            assert any(q is known for known in posteriors)
            assert x.shape[2:] == tasks.query.x.shape[2:]
            tensors = [x]
            asked += 1
        assert all(alone_in_memory(t) and t._base is None for t in tensors), function
    assert asked


def blind(stream: Stream) -> Stream:
    """The same tasks with other targets of the queries."""

    class Blind:
        shape, seed, device = stream.shape, stream.seed, stream.device

        def batch(self, first, tasks):
            batch = stream.batch(first, tasks)
            return TaskBatch(batch.support, Labeled(batch.query.x, torch.zeros_like(batch.query.y), batch.query.way))

    return Blind()


@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_predictions_do_not_depend_on_labels_of_queries(one_at_a_time):
    evaluation = evaluated("omni5w1s", "maml", lambda plugin: plugin)
    answers = [
        predict(evaluation.method, stream, 3, one_at_a_time=one_at_a_time)
        for stream in (evaluation.stream, blind(evaluation.stream))
    ]
    for (seen, y), (unseen, zeros) in zip(*answers, strict=True):
        assert torch.equal(seen.probs, unseen.probs)
        assert y.any()
        assert not zeros.any()

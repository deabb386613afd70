"""What tests of several packages build or call: one of each."""

import hashlib
import itertools
import json
import math
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from matplotlib.figure import Figure
from numpy.typing import NDArray
from typer.testing import CliRunner

from mlpip_bench import registry
from mlpip_bench.benches.family import TaskFamily
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.cli.app import app
from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.datasets.preparing import meshes
from mlpip_bench.evaluation.metrics import ACCURACY, BRIER, ECE, NLL
from mlpip_bench.evaluation.predict import score
from mlpip_bench.execution import scheduler
from mlpip_bench.execution.config import RunConfig
from mlpip_bench.execution.executors.base import Executor, Job, Outcome
from mlpip_bench.execution.executors.local import LocalProcesses
from mlpip_bench.execution.executors.ray_cluster import RayCluster
from mlpip_bench.inference.method import Method, Problem
from mlpip_bench.nn.backbone import BackboneSpec, InputShape
from mlpip_bench.records import store
from mlpip_bench.records.predictions import Predictions as Kept
from mlpip_bench.records.predictions import of_classes, save, stem
from mlpip_bench.records.record import PredictionsFile, Record, Scores
from mlpip_bench.tasks.batch import Labeled, TaskBatch, TaskShape
from mlpip_bench.tasks.images import ImagePool
from mlpip_bench.tasks.kernels import LinearKernel
from mlpip_bench.tasks.linear_gaussian import LinearGaussian
from mlpip_bench.tasks.regression import RegressionStream
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet, Reporter

REPOSITORY = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")

# -- the command line ------------------------------------------------------------------------------------------------

BUDGET: Mapping[str, object] = {"iterations": 4, "test_tasks": 4, "validation_tasks": 2, "tasks_per_batch": 1}
"""Settings of a run of about a second."""


def invoke(*arguments: object, **environment: str) -> Result:
    """The command line in this process, without real data unless the arguments or the environment name some.

    What goes wrong is a message, never a traceback. The terminal is wide, so that no message is wrapped in the middle
    of what a test looks for.
    """
    environment = {"COLUMNS": "200", "MLPIP_BENCH_DATA": ""} | environment
    result = CliRunner().invoke(app, [str(a) for a in arguments], env=environment, catch_exceptions=False)
    assert "Traceback" not in result.output
    return result


def assert_one_error(result: Result, message: str) -> None:
    """It ended with status 2 and one error, in which a pattern is found, whatever its line breaks."""
    assert result.exit_code == 2
    assert len([line for line in result.output.splitlines() if line.startswith("error")]) == 1
    assert re.search(message, " ".join(result.output.split())), result.output


def skip_where_nothing_renders() -> None:
    """Where pyvista is not installed or the machine has no OpenGL; tried out in another process."""
    pytest.importorskip("pyvista", reason="needs pyvista: pip install 'mlpip_bench[render]'")
    renderer = meshes._Renderer(60.0)
    try:
        meshes._check_machine(renderer)
    except UserError as error:
        pytest.skip(str(error))
    finally:
        renderer.close()


def budget(**settings: object) -> list[str]:
    """The options of ``run`` for a small budget, and further settings."""
    named = dict(BUDGET | settings)
    options = ["--iterations", str(named.pop("iterations")), "--test-tasks", str(named.pop("test_tasks"))]
    return [*options, "--no-check", *(f"--set={name}={value}" for name, value in named.items())]


def make_config(results: Path | None = None, settings: Mapping[str, object] | None = None, **fields: Any) -> RunConfig:
    """A run of prototypical networks on stand-in data with a small budget."""
    asked: dict[str, Any] = {"methods": ("protonets",), "benches": ("omni5w1s",), "source": "procedural"}
    asked |= {} if results is None else {"results": results}
    return RunConfig(**(asked | {"overrides": {"*": {**BUDGET, **(settings or {})}}} | fields))


def cpu_seconds(*arguments: str) -> float:
    """User and system time of a Python process that does what ``arguments`` say."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def times_pandas(*arguments: str, most: float) -> float:
    """The CPU time of what ``arguments`` say in that of importing pandas.

    Each is the least of several turns, since other work on the machine only ever adds to it; where that is above
    ``most``, there are more turns.
    """
    times: list[tuple[float, float]] = []
    found = math.inf
    while len(times) < 2 or (found > most and len(times) < 12):
        times.append((cpu_seconds(*arguments), cpu_seconds("-c", "import pandas")))
        ours, theirs = map(min, zip(*times, strict=True))
        found = ours / theirs
    return found


def report_once_unlocked(job: Job, reporter: Reporter) -> Outcome:
    """Work for a process of an executor, which finds it here by name: reports once the file of its lock is there."""
    while not job.lock.exists():
        time.sleep(0.02)
    reporter.say("still here")
    with reporter.stage("a stage", 1) as step:
        step(1)
    return Outcome("done")


# -- records ---------------------------------------------------------------------------------------------------------

SCORES = (0.9, 0.8, 1.0, 0.7)
_MEASURED = {
    "accuracy": ("fraction", "higher"),
    "nll": ("nats per query", "lower"),
    "ece": ("fraction", "lower"),
    "mse": ("squared error", "lower"),
}


def make_scores(
    per_task: Sequence[float] = SCORES, metric: str = "accuracy", *, bench: str = "omni5w1s", **changes: Any
) -> Scores:
    """Scores of a bench's own way and shot."""
    match = re.search(r"(?:(\d+)w)?(\d+)s?$", bench)
    assert match
    unit, better = _MEASURED.get(metric, ("unit", "neither"))
    values: dict[str, Any] = {
        "metric": metric, "unit": unit, "better": better, "way": int(match[1] or 1), "shot": int(match[2]),
        "queries": 15, "model": "best", "per_task": tuple(map(float, per_task)),
    }  # fmt: skip
    return Scores(**(values | changes))


def make_record(
    *scores: Scores,
    bench: str = "omni5w1s",
    method: str = "alpha",
    protocol: str = "accuracy",
    seed: int = 0,
    source: str = "real",
    data: str = "letters",
    options: Mapping[str, object] | None = None,
    fingerprint: str = "f" * 20,
    device: str = "cpu",
    test_classes: int | None = None,
    inductive: bool = True,
    parameters: int = 10,
    training: Mapping[str, object] | None = None,
    environment: Mapping[str, object] | None = None,
    key: str = "",
    predictions: PredictionsFile | None = None,
    **config: Any,
) -> Record:
    """A record; other names are of its configuration, and its key follows from all that decides its numbers."""
    scores = scores or (make_scores(bench=bench),)
    one = scores[0]
    decides = (bench, method, protocol, seed, source, data, options, fingerprint, device, one.condition, one.queries)
    return Record(
        key=key or hashlib.sha256(repr((decides, sorted(config.items()))).encode()).hexdigest()[:20],
        bench=bench,
        method=method,
        protocol=protocol,
        seed=seed,
        device=device,
        inductive=inductive,
        config={
            "way": one.way, "shot": one.shot, "queries": one.queries, "norm": "metabn", "preset": "quick",
            "iterations": 1500, "tasks_per_batch": 4, "settings": {},
        } | config,
        data={"name": data, "source": source, "fingerprint": fingerprint, "options": options or {}}
        | ({} if test_classes is None else {"test_classes": test_classes}),
        backbone={"name": "conv4", "spec": {}},
        scores=scores,
        parameters=parameters,
        training=training or {},
        seconds=1.0,
        environment=environment or {},
        predictions=predictions,
    )  # fmt: skip


def write_records(results: Path, number: int, test_tasks: int = 600) -> None:
    """Records of accuracy and NLL of five methods on five benches, with as many seeds as that takes."""
    chance = np.random.default_rng(0)
    benches = ("omni5w1s", "omni5w5s", "omni20w1s", "mini5w1s", "mini5w5s")
    methods = ("versa", "maml", "protonets", "amortized_vi", "nonamortized_vi")
    seeds = range(1 + number // (2 * len(benches) * len(methods)))
    each = itertools.product(seeds, benches, enumerate(methods), ("accuracy", "nll"))
    for count, (seed, bench, (place, method), metric) in enumerate(itertools.islice(each, number)):
        loss = math.log(2 + count // 2)  # the two records of a trial have one training
        history = [
            {"iteration": 150 * i, "accuracy": loss / 20, "loss": loss / i, "nll": loss + i} for i in range(1, 11)
        ]
        training = {"iterations": 1500, "tasks_seen": 6000, "seconds": loss, "best_iteration": 1500, "history": history}
        per_task = (
            np.round(chance.beta(9 - place / 10, 1, (2, test_tasks)) * 75) / 75
            if metric == "accuracy"
            else chance.gamma(2 + place / 10, 0.1, (2, test_tasks))
        )
        scores = [
            make_scores(own.tolist(), metric, bench=bench, model=model, chosen_by=metric)
            for own, model in zip(per_task, ("best", "last"), strict=True)
        ]
        store.save(
            make_record(
                *scores, bench=bench, method=method, protocol=metric, seed=seed, training=training,
                environment={"code": {"numbers": 2, "build": "x"}, "threads": 1},
            ),
            results,
        )  # fmt: skip


def write_record(path: Path, raw: Mapping[str, Any]) -> None:
    """A record's fields as they are, with the checksum that they have: what a stranger's record may be."""
    fields = {name: value for name, value in raw.items() if name != "checksum"}
    checksum = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**fields, "checksum": checksum}), encoding="utf-8")


def random_queries(
    tasks: int = 6, way: int = 3, queries: int = 4, *, sharpness: float = 2.0, seed: int = 0, classes: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Targets, as many of each class in a task, and log-probabilities that know something of them.

    Args:
        tasks, way, queries: of the tasks.
        sharpness: of the log-probabilities.
        seed: of the model.
        classes: seed of the targets.
    """
    chance = np.random.default_rng(seed + 1000)
    rows = [
        np.random.default_rng((classes, task)).permutation(np.repeat(np.arange(way), queries)) for task in range(tasks)
    ]
    targets = np.stack(rows)
    logits = sharpness * (chance.normal(size=(*targets.shape, way)) + np.eye(way)[targets])
    return targets, logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def make_predictions(*args: Any, **more: Any) -> Kept:
    """The same, as they are kept."""
    return of_classes(*random_queries(*args, **more))


def write_trial(
    results: Path, *, seed: int = 0, method: str = "alpha", sharpness: float = 2.0, **config: Any
) -> list[Path]:
    """The records of a trial on ``omni5w1s``, whose scores torch makes, and the predictions behind them."""
    shape = {"way": 5, "queries": 15, "sharpness": sharpness, "seed": seed}
    targets, log_probs = random_queries(6, **shape)
    validation = make_predictions(3, classes=1, **shape)
    of = {("test", 4): of_classes(targets, log_probs), ("validation", 4): validation}
    place = results / "records" / "omni5w1s" / method
    named = save(of, place, stem(seed, hashlib.sha256(repr((method, config)).encode()).hexdigest()))
    found = [(torch.distributions.Categorical(logits=torch.tensor(log_probs)), torch.tensor(targets))]
    paths = []
    for protocol, measured in (("accuracy", (ACCURACY,)), ("nll", (NLL,)), ("calibration", (ECE, BRIER))):
        scores = [
            make_scores(score(metric, found), metric.name, unit=metric.unit, better=metric.better, model=m)
            for metric in measured
            for m in ("best", "last")
        ]
        record = make_record(
            *scores, protocol=protocol, method=method, seed=seed, predictions=named,
            training={"iterations": 4, "best_iteration": 4}, **config,
        )  # fmt: skip
        paths.append(store.save(record, results))
    return paths


def drawn(figure: Figure | None) -> Figure:
    """A figure that has something to show."""
    assert figure is not None
    return figure


# -- executors --------------------------------------------------------------------------------------------------------


def do_nothing(job: Job, reporter: Reporter) -> Outcome:
    """A trial that takes no time."""
    return Outcome("done")


def seconds_of_empty_jobs(kind: str, number: int) -> float:
    """Wall-clock seconds in which trials that do nothing go through the scheduler's loop and an executor.

    Starting the executor and its processes is not counted.
    """
    if kind == "ray":
        executor: Executor = RayCluster(do_nothing, Quiet(), "local", 1, 0)
    else:
        executor = LocalProcesses(do_nothing, Quiet(), 2, 1)
    config = make_config()
    jobs = [Job(f"job {n}", config, (str(n),), ("accuracy",), False, {}, Path("no.lock")) for n in range(number)]

    def done(some: Sequence[Job]) -> int:
        ended = scheduler._until_ended(executor, some, Quiet(), wait=True)
        return sum(outcome.status == "done" for _, outcome in ended)

    with executor:
        done(jobs[:10])
        start = time.perf_counter()
        assert done(jobs) == number
        return time.perf_counter() - start


# -- data and tasks --------------------------------------------------------------------------------------------------


def make_classes(images: NDArray[np.uint8]) -> ClassImages:
    """``[class, image, channel, height, width]`` as the images of numbered classes."""
    classes, each = images.shape[:2]
    flat = np.ascontiguousarray(images.reshape(-1, *images.shape[2:]))
    return ClassImages(flat, np.full(classes, each), tuple(map(str, range(classes))))


def make_pool(images: NDArray[np.uint8]) -> ImagePool:
    """``[class, image, channel, height, width]`` as a pool of tasks' images."""
    return ImagePool(make_classes(images), CPU)


def make_dataset(images: NDArray[np.uint8], name: str = "numbered", source: Any = "real") -> ImageDataset:
    """``[class, image, channel, height, width]`` as a data set whose splits are the same."""
    return ImageDataset(name, source, dict.fromkeys(SPLITS, make_classes(images)))


def make_batch(
    tasks: int = 3,
    way: int = 3,
    shots: int = 2,
    queries: int = 4,
    *,
    shape: tuple[int, int, int] = (1, 8, 8),
    dtype: torch.dtype = torch.float64,
) -> TaskBatch:
    """Noise that is the brighter the higher its class; points are in the order of their classes."""

    def labeled(per_class: int) -> Labeled:
        y = torch.arange(way).repeat_interleave(per_class).expand(tasks, -1)
        return Labeled(torch.rand(*y.shape, *shape, dtype=dtype) + y[..., None, None, None] * 0.2, y, way)

    return TaskBatch(labeled(shots), labeled(queries))


def linear_stream(dimension: int, shots: int, queries: int, *names: object, noise_std: float = 0.5) -> RegressionStream:
    """Tasks of linear regression, with a known posterior; in dimension 0 the mean of a Gaussian is inferred."""
    return RegressionStream(LinearGaussian(dimension, noise_std), TaskShape(1, shots, queries), CPU, *names)


def in_float64(batch: TaskBatch) -> TaskBatch:
    """The same tasks in float64; labels stay whole numbers."""

    def double(data: Labeled) -> Labeled:
        return Labeled(*(t.double() if t.is_floating_point() else t for t in (data.x, data.y)), data.way)

    return TaskBatch(double(batch.support), double(batch.query), classes=batch.classes)


# -- benches ---------------------------------------------------------------------------------------------------------


def family_of(bench: str, **options: Any) -> tuple[BenchSpec, TaskFamily]:
    """What a bench's name says, and its task family with some options."""
    spec = registry.bench(bench)
    plugin = registry.family(spec.family)
    return spec, plugin(plugin.Options(**options))


LISTED = [example for plugin in registry.families().values() for example in plugin.examples]
"""The benches that are listed."""


# -- methods ---------------------------------------------------------------------------------------------------------


def backbone(name: str, input_shape: InputShape, **settings: Any) -> BackboneSpec:
    """A backbone with some settings, for inputs of a shape."""
    plugin = registry.backbone(name)
    return BackboneSpec(name, plugin, plugin.Settings(**settings), input_shape)


SMALL = backbone("conv4", (1, 8, 8), blocks=2, channels=4)


def linear_problem(dimension: int, noise_std: float = 0.5) -> Problem:
    """The problem of ``linear_stream``: the inputs are the features."""
    spec = backbone("identity", (dimension, 1, 1))
    return Problem(spec, "metabn", 1, "regression", noise_std, kernel=LinearKernel())


def trained_classifiers() -> list[str]:
    """Registered methods that classify, and that are trained."""
    plugins = {name: registry.method(name) for name in registry.method_names()}
    return [name for name, plugin in plugins.items() if plugin.trainable and "classification" in plugin.handles]


def make_method(
    name: str, norm: Any = "metabn", way: int = 3, *, spec: BackboneSpec = SMALL, **settings: object
) -> Method[Any]:
    """A registered method for small images, always with the same initialization."""
    torch.manual_seed(0)
    plugin = registry.method(name)
    return plugin(Problem(spec, norm, way), plugin.Settings(**settings))

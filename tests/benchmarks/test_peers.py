"""The suite against plain implementations of the same work, which are in ``sides.py``.

Either side has a process of its own, as its users run it, on one thread; they work by turns. The suite's process keeps
freed memory, as its runs do (``keep_freed_memory``). A peer has the allocator that Python gives it; with the suite's, a
step of higher would take about 0.87 times as long, and one of the flat batch 0.6.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from mlpip_bench import registry
from mlpip_bench.inference.method import Method, Problem
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.tasks.batch import Labeled, TaskBatch

SIDES = Path(__file__).with_name("sides.py")
BENCH = registry.bench("omni5w1s")
CONV4 = registry.backbone("conv4")
BACKBONE = BackboneSpec("conv4", CONV4, CONV4.Settings(ceil_mode=True), (1, 28, 28))


class Side:
    """A process that does a piece of work each time it is called.

    Attributes:
        parameters: of its model.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, str(SIDES), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.parameters = int(self._output.readline())

    def __call__(self) -> None:
        self._input.write("\n")
        self._input.flush()
        assert self._output.readline() == "done\n"

    def end(self) -> None:
        self._input.close()
        self._process.wait()
        self._output.close()


@pytest.fixture
def sides() -> Iterator[Callable[..., tuple[Side, Side]]]:
    """Starts the suite's side of some work, and its peer's."""
    started: list[Side] = []

    def start(work: str, *arguments: str) -> tuple[Side, Side]:
        started.extend(Side(work, side, *arguments) for side in ("mlpip_bench", "peer"))
        ours, theirs = started
        assert ours.parameters == theirs.parameters
        return ours, theirs

    yield start
    for side in started:
        side.end()


@pytest.mark.benchmark(group="training step, 16 tasks")
@pytest.mark.parametrize("steps", [1, 5])
def test_maml_step_beside_higher(faster, sides, steps):
    inner = f"{steps} inner step{'s' if steps > 1 else ''}"
    faster(*sides("maml", str(steps)), f"higher / mlpip_bench, MAML step, {inner}", bar=1.5, limit=1.3, turns=4)


@pytest.mark.benchmark(group="training step, 16 tasks")
def test_protonets_step_beside_a_flat_batch(faster, sides):
    faster(*sides("step"), "flat batch / mlpip_bench, ProtoNets step", bar=2, limit=1.75, turns=4)


@pytest.mark.benchmark(group="evaluation of 100 tasks")
def test_protonets_evaluation_beside_a_flat_batch(faster, sides):
    faster(*sides("evaluation"), "flat batch / mlpip_bench, ProtoNets evaluation of 100 tasks", bar=2, turns=3)


def one_task(per_class: int) -> Labeled:
    y = torch.arange(BENCH.way).repeat_interleave(per_class).unsqueeze(0)
    images = torch.rand(*y.shape, *BACKBONE.input_shape, generator=torch.Generator().manual_seed(0))
    return Labeled(images, y, BENCH.way)


def evaluation(name: str, batch: TaskBatch, **settings: int) -> Callable[[], None]:
    """Adapting to a task and predicting its queries."""
    plugin = registry.method(name)
    method: Method = plugin(Problem(BACKBONE, "metabn", BENCH.way), plugin.Settings(**settings)).eval()

    @torch.no_grad()
    def work() -> None:
        method.predictive(method.amortize(batch.support), batch.query.x).probs.argmax(-1)

    return work


@pytest.mark.benchmark(group="one task")
@pytest.mark.parametrize(("queries", "limit"), [(1, 5), (15, 2)])
def test_versa_adapts_and_predicts_faster_than_maml(faster, queries, limit):
    """Amortization is one forward pass, and MAML takes its steps; the more queries, the less is adaptation of the work.

    In images through the network, where a step is worth three passes: MAML takes 5 images * 5 steps * 3, 5 for the
    statistics, and the queries; Versa takes 5 and the queries. That is 85 to 10 with 5 queries, and 155 to 80 with 75:
    no faster Versa reaches the bar there.
    """
    batch = TaskBatch(one_task(1), one_task(queries))
    versa, maml = evaluation("versa", batch), evaluation("maml", batch, test_steps=5)
    of = f"MAML, 5 steps / Versa, adapting to one task and predicting {BENCH.way * queries} queries"
    faster(versa, maml, of, bar=5, limit=limit, turns=20)

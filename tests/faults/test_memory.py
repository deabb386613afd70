"""Memory is flat: what is held after many tasks and steps is what was held after half of them.

Bytes are those that glibc has given out and not got back. The resident size of a process would not do: it is no smaller
for memory that earlier tests have freed, in which a leak could hide.
"""

import ctypes
import dataclasses
import gc

import pytest
import torch

from mlpip_bench import registry
from mlpip_bench.evaluation.metrics import VALIDATION
from mlpip_bench.evaluation.predict import predict
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.tasks.batch import TaskBatch, TaskShape
from mlpip_bench.testing.cases import Case
from mlpip_bench.training.loop import train

TASKS, STEPS = 480, 120
PLAN = TrainingPlan(
    iterations=STEPS,
    tasks_per_batch=2,
    train_queries=2,
    learning_rate=1e-3,
    validate_every=STEPS // 4,
    validation_tasks=2,
)
SHAPE, CPU = TaskShape(3, 2, 2), torch.device("cpu")
LIMIT = 2**18
"""Bytes that may come on top in the second half: 1 kB a task or 4 kB a step, less than what a method adapts to one of
these tasks, or a step's graph."""


class Mallinfo2(ctypes.Structure):
    """What ``mallinfo2(3)`` returns."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
pytestmark = pytest.mark.skipif(mallinfo2 is None, reason="needs mallinfo2, which glibc 2.33 has")


def bytes_in_use() -> int:
    """Bytes that are allocated and not freed, tensors' among them."""
    mallinfo2.restype = Mallinfo2
    info = mallinfo2()
    return info.uordblks + info.hblkhd


@dataclasses.dataclass(frozen=True)
class TinyTasks:
    """The conformance suite's tasks, as a stream."""

    case: Case
    seed: tuple[str | int, ...] = ("memory",)
    shape: TaskShape = SHAPE
    device: torch.device = CPU

    def batch(self, first: int, tasks: int) -> TaskBatch:
        return self.case.batch(tasks=tasks, seed=first)


class Held:
    """Bytes and objects that this process holds, noted half-way and at the end."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._noted: list[tuple[int, int]] = []

    def __call__(self, completed: int, note: str = "") -> None:
        if completed in (self._total // 2, self._total):
            gc.collect()
            self._noted.append((bytes_in_use(), len(gc.get_objects())))

    @property
    def growth(self) -> tuple[int, int]:
        (bytes_half, objects_half), (bytes_all, objects_all) = self._noted
        return bytes_all - bytes_half, objects_all - objects_half


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SOON = ("cvae", "exact_linear", "maml", "nonamortized_vi", "protonets", "reptile", "versa")
"""Methods that are not left to the slow tests: one of each way to adapt and to train."""


@pytest.mark.parametrize(
    "name",
    [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in registry.method_names()],
)
def test_a_method_holds_no_more_after_many_tasks_and_steps(name, tmp_path, tell):
    plugin = registry.method(name)
    case = Case(plugin, plugin.handles[0])
    method, tasks = case.method(eval_samples=10, most_steps=2), TinyTasks(case)
    measured = [("tasks", Held(TASKS), TASKS)]
    predict(method, tasks, TASKS, measured[0][1])
    if plugin.trainable and method.state_dict():  # else there is nothing to train
        measured.append(("steps", Held(STEPS), STEPS))
        path, metrics = tmp_path / "checkpoint.pt", VALIDATION[case.kind]
        train(method, PLAN, tasks, tasks, metrics=metrics, seed=0, checkpoint=path, step=measured[1][1])
    lines = []
    for what, held, units in measured:
        grown, objects = held.growth
        lines.append(f"{grown / 2**20:+.2f} MB in the last {units // 2} of {units} {what}")
        kept = 2 * tasks.batch(0, TASKS // 2).query.y.nbytes if what == "tasks" else 0  # predictions, for the scores
        assert grown < LIMIT + kept, lines[-1]
        assert objects < units // 2, f"{objects} objects more in {units // 2} {what}"
    tell(f"growth of memory, {name}", ", ".join(lines))


def test_a_leak_is_seen():
    case, kept = Case(registry.method("protonets"), "classification"), []
    method, tasks, held = case.method(), TinyTasks(case), Held(TASKS)
    honest = method.amortize
    method.amortize = lambda support: (kept.append(support.x), honest(support))[1]  # 3 kB a task
    predict(method, tasks, TASKS, held)
    assert held.growth[0] > LIMIT

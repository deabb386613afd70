"""Where the time of a trial goes: its operations by their own time, and its share of the rate of a matrix product."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry

from mlpip_bench.evaluation.predict import predict
from mlpip_bench.execution.trial import Trial
from mlpip_bench.nn.fused import plain_operations
from mlpip_bench.tasks.stream import batches
from mlpip_bench.training.steps import descend, loss_of, optimizer_of
from mlpip_bench.utils.device import keep_freed_memory
from mlpip_bench.utils.errors import UserError, one_line
from mlpip_bench.utils.files import write_atomically
from mlpip_bench.utils.numerics import SCORED, backbone_autocast
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.seeding import seed_from
from mlpip_bench.utils.timers import Stopwatch

_SHOWN = 10
_PROFILED_STEPS = {"training": 3, "evaluation": 1}
_TEST_TASKS = 20
_REPEATS = 7
_SECONDS = 10.0  # of repeats, of which there is one at least
_MATRIX_SIZE = {"cpu": 1024, "mps": 4096, "cuda": 8192}  # large enough that a product runs at its full rate
_STEP = "step"


@dataclass(frozen=True)
class Cost:
    """What the calls of one operation cost, without the operations that they call.

    Attributes:
        operation: its name in torch.
        share: of the profiled time, a fraction.
        milliseconds: in each step, while the profiler watches.
        calls: in each step.
    """

    operation: str
    share: float
    milliseconds: float
    calls: float


@dataclass(frozen=True)
class Profile:
    """A trial's training or evaluation, profiled.

    Attributes:
        title: which it is, and what a step is.
        costs: all operations, the most costly first.
        flop: floating-point operations of the matrix products and convolutions of a step; the rest is not counted.
        seconds: median time of a step, without the profiler.
        peak: floating-point operations a second of a large matrix product on the same device.
        conditions: device, threads and type of number of that product.
        trace: the trace, a file for chrome://tracing or https://ui.perfetto.dev.
    """

    title: str
    costs: tuple[Cost, ...]
    flop: int
    seconds: float
    peak: float
    conditions: str
    trace: Path

    @property
    def rate(self) -> float:
        """Floating-point operations a second."""
        return self.flop / self.seconds

    @property
    def roofline(self) -> float:
        """Share of the rate of a matrix product that is reached, a fraction."""
        return self.rate / self.peak

    def print(self, console: Console) -> None:
        """A table of the most costly operations, and a line about the roofline."""
        table = Table(title=self.title, title_justify="left")
        table.add_column("operation", overflow="fold")
        for column in ("share, %", "ms a step", "calls a step"):
            table.add_column(column, justify="right")
        for cost in self.costs[:_SHOWN]:
            table.add_row(cost.operation, f"{100 * cost.share:.1f}", f"{cost.milliseconds:.2f}", f"{cost.calls:.0f}")
        console.print(table)
        console.print(
            f"{self.flop / 1e9:.3g} GFLOP a step in {self.seconds * 1e3:.3g} ms: {self.rate / 1e9:.3g} GFLOP/s, "
            f"{self.roofline:.1%} of the {self.peak / 1e9:.3g} GFLOP/s of a matrix product ({self.conditions}); "
            f"trace: {self.trace}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def profile_trials(trials: Sequence[Trial], folder: Path, reporter: Reporter, console: Console) -> None:
    """Profile and print each trial; one that cannot be profiled is named, and takes no other with it.

    Args:
        trials: what is profiled; nothing of it is changed.
        folder: of the results; traces go below its ``profiles``.
        reporter: shows a bar.
        console: where tables are printed.

    Raises:
        UserError: a trace cannot be written.
    """
    for trial in trials:
        try:
            done = profile_trial(trial, folder, reporter)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # a plugin's fault, whatever it is; the run itself then records it
            reporter.say(f"cannot profile {trial.title}: {one_line(error)}")
            continue
        for profiled in done:
            profiled.print(console)


def profile_trial(trial: Trial, folder: Path, reporter: Reporter) -> list[Profile]:
    """Profile a few steps of a trial's training, and then the prediction of a few test tasks.

    The model is built anew for this, and the global random generators are put back, so that a run that follows gives
    what it gives without it. Nothing is compiled: what compiled code does cannot be counted.

    Args:
        trial: what is profiled.
        folder: of the results; traces go below its ``profiles``.
        reporter: shows a bar.

    Raises:
        UserError: a trace cannot be written.
    """
    if trial.device.type == "cpu":
        keep_freed_memory()  # as a run does
    plan, streams, method = trial.plan, trial.streams(), trial.build_method()
    optimizer = optimizer_of(method, plan)
    firsts = itertools.count(0, plan.tasks_per_batch)
    test_tasks = min(plan.test_tasks, _TEST_TASKS)

    def train_step() -> None:
        """As the loop in ``train``, drawing of the tasks included."""
        method.train()
        tasks = list(batches(streams["train"], next(firsts), plan.tasks_per_batch))
        descend(loss_of(method, tasks), optimizer, plan.clip_norm)

    def test_step() -> None:
        predict(method, streams["test"], test_tasks)

    found = []
    with (
        torch.random.fork_rng(devices=[trial.device] if trial.device.type == "cuda" else []),
        reporter.stage(f"{trial.title}: profiling", 2) as step,
    ):
        torch.manual_seed(seed_from("profile", trial.seed))
        for phase, tasks, work, numerics in (
            ("training", plan.tasks_per_batch, train_step, trial.numerics),
            ("evaluation", test_tasks, test_step, SCORED),
        ):
            trace = trial.path(folder, "profiles", f"-{phase}.json.gz")
            with numerics.applied():
                flop = count_flop(work)  # which warms up, too
                seconds = _median_seconds(work, trial.device)
                peak, dtype = matmul_rate(trial.device)
                costs = _profile(work, _PROFILED_STEPS[phase], trial.device, trace)
            title = f"{trial.title}: {phase}, tasks a step: {tasks}"
            conditions = f"{trial.device}, threads: {torch.get_num_threads()}, {dtype}"
            found.append(Profile(title, costs, flop, seconds, peak, conditions, trace))
            step(len(found))
    return found


def count_flop(work: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products and convolutions of some work, of its backward pass as well.

    A multiplication and an addition are two. Convolutions are counted as direct ones, at the border as elsewhere, also
    those that are done within a larger operation.
    """
    counter = _Counter()  # type: ignore[no-untyped-call]  # torch gives its class no types
    with plain_operations(), counter:
        work()
    return counter.flop


def _convolution_backward_flop(gradient: Tensor, x: Tensor, filters: Tensor, *options: Any, **_: object) -> int:
    """Each of the gradients, that of the input and that of the filters, takes as many as the convolution itself.

    torch's own formula leaves the groups out of the gradient of the filters.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, wanted = options
    once: int = conv_flop_count(list(x.shape), list(filters.shape), list(gradient.shape), transposed=transposed)
    return once * (bool(wanted[0]) + bool(wanted[1]))


class _Counter(TorchDispatchMode):
    """torch's ``FlopCounterMode`` without its tracking of modules, whose hooks break gradients by leaf tensors."""

    formulas: ClassVar = {**flop_registry, torch.ops.aten.convolution_backward: _convolution_backward_flop}
    flop = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (formula := self.formulas.get(func.overloadpacket)) is not None:
            self.flop += formula(*args, **(kwargs or {}), out_val=result)
        return result


def matmul_rate(device: torch.device) -> tuple[float, str]:
    """Floating-point operations a second of a product of large square matrices, measured now, and its type of number.

    The product is one as a backbone's are.
    """
    size = _MATRIX_SIZE[device.type]
    a, b = torch.rand(2, size, size, device=device)
    with backbone_autocast(device):
        product = a @ b  # warms up
        seconds = _median_seconds(lambda: a @ b, device)
    return 2 * size**3 / seconds, str(product.dtype).removeprefix("torch.")


def _median_seconds(work: Callable[[], object], device: torch.device) -> float:
    laps: list[float] = []
    while len(laps) < _REPEATS and sum(laps) < _SECONDS:
        stopwatch = Stopwatch(device)
        stopwatch.wait()
        stopwatch.mark()
        work()
        stopwatch.mark()
        laps += stopwatch.laps()
    return statistics.median(laps)


def _profile(work: Callable[[], object], steps: int, device: torch.device, trace: Path) -> tuple[Cost, ...]:
    """Costs of some work by operation, on a GPU the GPU's time; writes the trace."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        for _ in range(steps):
            with record_function(_STEP):
                work()
        Stopwatch(device).wait()
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / trace.name
        profiler.export_chrome_trace(str(written))
        write_atomically(trace, written.read_bytes())
    operations = [event for event in profiler.key_averages() if event.device_type.name == "CPU"]  # not kernels
    # In microseconds.
    own = [event.self_device_time_total if on_gpu else event.self_cpu_time_total for event in operations]
    costs = [
        Cost(
            # A step's own time is what no operation takes.
            operation="outside operations (Python)" if event.key == _STEP else event.key,
            share=time / sum(own),
            milliseconds=time / 1e3 / steps,
            calls=event.count / steps,
        )
        for event, time in zip(operations, own, strict=True)
        if time > 0
    ]
    return tuple(sorted(costs, key=lambda cost: -cost.share))

"""Timing: seconds of adapting and predicting, tasks a second, memory, and the cost of training (paper, section 5.2).

All methods of a bench are timed by turns, in an order drawn anew for each repeat, on the same tasks, which
are on the device before the clock starts. Adapting is support set to q(psi | D), predicting is q and the
queries to class probabilities (or predicted means), once, after the last step; no score is computed.

The condition ``regime`` is ``latency`` (one task at a time, which is waited for), ``throughput`` (as many at
once as the method is fastest with) or ``training``; with ``tasks drawn too`` the rate includes the drawing of
tasks. Methods with ``test_steps`` or ``eval_samples`` are timed at several of them too, under the conditions
``steps`` and ``samples``.

- ``adapt_seconds``: time from D to q(psi | D), over the number of tasks.
- ``predict_seconds``: time from q and queries to probabilities, over the number of tasks.
- ``tasks_per_second``: tasks over the sum of both times.
- ``peak_memory_bytes``: most bytes of tensors alive at once, beyond model and tasks.
- ``train_seconds``: time of training steps, the drawing of tasks included, for 1000 tasks.

The paper times 1000 tasks, once, each method by its own code and loader; docs/timing.md says what that leaves
open.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributions import Distribution

from mlpip_bench.evaluation.metrics import Metric
from mlpip_bench.evaluation.protocol import Contender, SideBySideProtocol, scores_of
from mlpip_bench.records.record import Scores
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.tasks.stream import batches
from mlpip_bench.training.steps import descend, loss_of, optimizer_of
from mlpip_bench.utils.errors import TrialError, one_line
from mlpip_bench.utils.process_state import ProcessState
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.seeding import seed_from
from mlpip_bench.utils.timers import Stopwatch, peak_bytes

REPEATS = 5
MOST_TASKS = 1000
"""Tasks of all repeats together, as in the paper, where the bench has as many test tasks."""
VARIANTS = {"test_steps": (1, 3, 5, 10), "eval_samples": (1, 10, 100)}
"""Settings at whose values methods that have them are timed too, one task at a time and with a fifth of the tasks."""
WARM_UP_TASKS, WARM_UP_SECONDS = 50, 2.0
"""Before each kind of work is timed it is done for so many tasks, or so long, whichever is first."""
LARGEST_BATCH = 128
RESIDENT_BYTES = 2**30
"""Of the tasks that are kept on the device, and met again where more are timed."""

ADAPT = Metric("adapt_seconds", "seconds per task", "lower")
PREDICT = Metric("predict_seconds", "seconds per task", "lower")
RATE = Metric("tasks_per_second", "tasks per second", "higher")
PEAK = Metric("peak_memory_bytes", "bytes", "lower")
TRAIN = Metric("train_seconds", "seconds per 1000 tasks", "lower")


class Timing(SideBySideProtocol):
    """All methods of a bench by turns, over several repeats."""

    description = "seconds to adapt and to predict, tasks per second, peak memory and training cost, side by side"
    metrics = (ADAPT, PREDICT, RATE, PEAK, TRAIN)
    handles = ("classification", "regression", "reconstruction")

    def measure(self, contenders: Sequence[Contender], reporter: Reporter) -> list[list[Scores] | BaseException]:
        """Scores over repeats for each contender; those of one repeat were taken shortly after each other."""
        if not contenders:
            return []
        test = contenders[0].streams["test"]
        tasks = _Tasks(contenders[0])
        failed: dict[Contender, TrialError] = {}
        jobs: dict[Contender, list[_Job]] = {}
        state = ProcessState()
        for contender in contenders:
            with _failing_alone(contender, failed, state):
                jobs[contender] = _jobs(contender, tasks)
        everything = list(itertools.chain(*jobs.values()))
        shuffled = random.Random(seed_from("timing", *(contender.title for contender in contenders)))
        devices = [test.device] if test.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            with reporter.stage(f"{test.seed[0]}: warming up for timing", len(everything)) as step:
                for done, job in enumerate(everything, 1):
                    if job.contender not in failed:
                        with _failing_alone(job.contender, failed, state):
                            job.prepare()
                    step(done, job.contender.title)
            with reporter.stage(f"{test.seed[0]}: timing", len(everything) * REPEATS) as step:
                turns = (job for _ in range(REPEATS) for job in shuffled.sample(everything, len(everything)))
                for done, job in enumerate(turns, 1):
                    if job.contender not in failed:
                        with _failing_alone(job.contender, failed, state):
                            job.repeat()
                    step(done, "by turns" if len(contenders) > 1 else "")
        return [failed.get(c) or [scores for job in jobs[c] for scores in job.scores()] for c in contenders]


@contextlib.contextmanager
def _failing_alone(contender: Contender, failed: dict[Contender, TrialError], state: ProcessState) -> Iterator[None]:
    """What a contender raises within, or changes of the process, is kept as its failure, and hinders no other."""
    try:
        yield
        if changed := state.set_back():
            raise TrialError(f"it changes {'; '.join(changed)}, which others are timed under, too")
    except (Exception, SystemExit) as error:
        failed[contender] = TrialError(f"{contender.title} failed while it was timed: {one_line(error)}")
        failed[contender].__cause__ = error


class _Tasks:
    """Test tasks on the device, cut into batches without a copy."""

    def __init__(self, contender: Contender) -> None:
        self.stream = contender.streams["test"]
        total = min(contender.plan.test_tasks, MOST_TASKS)
        self.per_repeat = math.ceil(total / REPEATS)
        one = self.stream.batch(0, 1)
        size = sum(t.numel() * t.element_size() for part in (one.support, one.query) for t in (part.x, part.y))
        self._resident = list(batches(self.stream, 0, max(1, min(total, RESIDENT_BYTES // size))))
        self.most_at_once = min(LARGEST_BATCH, self._resident[0].support.tasks)

    def batches(self, size: int, number: int) -> Iterator[TaskBatch]:
        """So many batches of so many tasks each."""
        starts = [(b, i) for b in self._resident for i in range(0, b.support.tasks - size + 1, size)]
        for batch, start in itertools.islice(itertools.cycle(starts), number):
            parts = (batch.support, batch.query)
            yield TaskBatch(*(Labeled(p.x[start : start + size], p.y[start : start + size], p.way) for p in parts))

    def drawn(self, size: int, number: int) -> Iterator[TaskBatch]:
        """The same, drawn and brought to the device one by one."""
        return (self.stream.batch(i * size, size) for i in range(number))


def _jobs(contender: Contender, tasks: _Tasks) -> list[_Job]:
    """What is timed of a contender."""
    method = contender.method
    jobs: list[_Job] = [
        _TestJob(contender, tasks, {"regime": "latency"}, tasks.per_repeat),
        _ThroughputJob(contender, tasks, {"regime": "throughput"}, tasks.per_repeat),
    ]
    for name, values in VARIANTS.items():
        own = getattr(method.settings, name, 0)
        if own == 0 or (name == "eval_samples" and method.problem.kind != "classification"):
            continue  # nothing to vary: it is not there, a closed form, or a mean
        for value in values:
            condition: dict[str, str | int | float] = {"regime": "latency", name.partition("_")[2]: value}
            settings = dataclasses.replace(method.settings, **{name: value})
            jobs.append(_TestJob(contender, tasks, condition, math.ceil(tasks.per_repeat / 5), settings))
    if method.trainable and any(parameter.requires_grad for parameter in method.parameters()):
        jobs.append(_TrainingJob(contender, {"regime": "training"}, tasks.per_repeat))
    return jobs


def _answer(predictive: Distribution) -> torch.Tensor:
    """What a user asks of a predictive, which may not compute it before."""
    answer: torch.Tensor = predictive.probs if hasattr(predictive, "probs") else predictive.mean
    return answer


class _Job(abc.ABC):
    """One kind of work of one contender, and what was measured of it."""

    def __init__(
        self, contender: Contender, condition: Mapping[str, str | int | float], number: int, size: int = 1
    ) -> None:
        self.contender = contender
        self.device = contender.streams["test"].device
        self.condition = condition
        self.number, self.size = number, size  # batches of a repeat, and tasks of a batch
        self._measured: dict[tuple[Metric, str], list[float]] = defaultdict(list)

    @abc.abstractmethod
    def prepare(self) -> None:
        """Choose sizes, warm up, and measure memory."""

    @abc.abstractmethod
    def repeat(self) -> None:
        """Time it once."""

    def add(self, metric: Metric, value: float, tasks: str = "") -> None:
        """A value of this repeat; ``tasks`` says where its tasks were, if not on the device."""
        self._measured[metric, tasks].append(value)

    def scores(self) -> list[Scores]:
        """All values, one a repeat."""
        detail = {"tasks_at_once": (float(self.size),), "tasks": (float(self.number * self.size),)}
        return [
            scores_of(
                metric,
                self.contender.streams["test"],
                values,
                condition={**self.condition, **({"tasks": tasks} if tasks else {})},
                detail=detail,
                over="repeats",
            )
            for (metric, tasks), values in self._measured.items()
        ]


class _TestJob(_Job):
    """Tasks of the test stream, one at a time."""

    def __init__(
        self,
        contender: Contender,
        tasks: _Tasks,
        condition: Mapping[str, str | int | float],
        number: int,
        settings: Any = None,
    ) -> None:
        super().__init__(contender, condition, number)
        self.tasks = tasks
        method = contender.method
        self._method = method if settings is None else method.with_settings(settings)

    def _laps(self, batches: Iterable[TaskBatch]) -> tuple[float, float, float]:
        """Seconds of all batches together: of getting them, of adapting, and of predicting."""
        watch, method = Stopwatch(self.device), self._method
        with torch.no_grad():
            watch.wait()
            watch.mark()
            for batch in batches:
                watch.mark()
                q = method.amortize(batch.support)
                watch.mark()
                _answer(method.predictive(q, batch.query.x))
                watch.mark()
                watch.wait()
        laps = watch.laps()
        return sum(laps[0::3]), sum(laps[1::3]), sum(laps[2::3])

    def prepare(self) -> None:
        """Warm up, and measure the memory of a batch."""
        self._method.eval()
        began = time.monotonic()
        for batch in self.tasks.batches(self.size, math.ceil(WARM_UP_TASKS / self.size)):
            self._laps([batch])
            if time.monotonic() - began > WARM_UP_SECONDS:
                break
        self.add(PEAK, peak_bytes(lambda: self._laps(self.tasks.batches(self.size, 1)), self.device))

    def repeat(self) -> None:
        """Time the tasks; they are on the device."""
        self._method.eval()
        _, adapting, predicting = self._laps(self.tasks.batches(self.size, self.number))
        timed = self.size * self.number
        self.add(ADAPT, adapting / timed)
        self.add(PREDICT, predicting / timed)
        self.add(RATE, timed / (adapting + predicting))


class _ThroughputJob(_TestJob):
    """The same, as many tasks at once as it is fastest with; and once more with the drawing of the tasks."""

    def prepare(self) -> None:
        """Double the number of tasks at once until that gains nothing, twice."""
        rates: dict[int, float] = {}
        size = 1
        while size <= self.tasks.most_at_once and size < 4 * max(rates, key=rates.__getitem__, default=1):
            laps = [sum(self._laps(self.tasks.batches(size, 1))) for _ in range(4)]
            rates[size] = size / min(laps[2:])  # the first ones warm up, and compile what is compiled
            size *= 2
        self.size = max(rates, key=rates.__getitem__)
        self.number = math.ceil(self.number / self.size)
        super().prepare()

    def repeat(self) -> None:
        """Time the tasks on the device, and as many that are drawn meanwhile."""
        super().repeat()
        drawn = self._laps(self.tasks.drawn(self.size, self.number))
        self.add(RATE, self.size * self.number / sum(drawn), tasks="drawn too")


class _TrainingJob(_Job):
    """Training steps of a model of its own with the same state, with the drawing of their tasks."""

    def __init__(self, contender: Contender, condition: Mapping[str, str | int | float], tasks: int) -> None:
        size = contender.plan.tasks_per_batch
        super().__init__(contender, condition, math.ceil(tasks / size), size)
        self._method = contender.build()
        self._optimizer = optimizer_of(self._method, contender.plan)
        self._first = 0

    def _step(self) -> None:
        self._method.train()
        tasks = list(batches(self.contender.streams["train"], self._first, self.size))
        descend(loss_of(self._method, tasks), self._optimizer, self.contender.plan.clip_norm)
        self._first += self.size

    def prepare(self) -> None:
        """Warm up, and measure the memory of a step."""
        self._step()
        self.add(PEAK, peak_bytes(self._step, self.device))

    def repeat(self) -> None:
        """Time some steps."""
        watch = Stopwatch(self.device)
        watch.wait()
        watch.mark()
        for _ in range(self.number):
            self._step()
        watch.mark()
        self.add(TRAIN, sum(watch.laps()) / (self.size * self.number) * 1000)

"""Conformance suite: what every method must keep for its numbers to be comparable, as named checks.

``python -m mlpip_bench check NAME`` shows the results; a test suite calls :func:`assert_conforms`. Each
check runs on tiny made tasks of each kind that the method handles, in float64 and with parameters moved
off their initial values, where accidents such as a head of zeros hide nothing.
"""

from __future__ import annotations

import dataclasses
import io
import math
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from mlpip_bench.inference.distributions import Delta, to_float64
from mlpip_bench.inference.method import Method, Posterior, Problem, TaskKind
from mlpip_bench.nn.backbones import ExtractorSpec
from mlpip_bench.nn.normalization import NORM_MODES, NormMode
from mlpip_bench.registry import method_faults
from mlpip_bench.tasks.batch import Labelled, TaskBatch
from mlpip_bench.utils.errors import one_line, unknown_name

Status = Literal["passed", "failed", "expected failure", "not applicable", "not run"]

_KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
_BAD: tuple[Status, ...] = ("failed", "not run")
_WAY = 3
_NOISE_STD = 2.0
_ROUNDING = 1e-7
_QUADRATURE = 2e-2  # of a probability, which a few thousand samples at evaluation leave
_MANY_SAMPLES = 2048
_TARGETS = (-2.0, 0.0, 1.5)  # where densities over the reals are compared


@dataclass(frozen=True)
class CheckResult:
    """What came of one check of one method.

    Attributes:
        name: of the check.
        status: an expected failure is one that the method names in ``xfail_checks``; not run is what
            cannot be, since ``interface`` fails.
        protects: what the check protects, one sentence.
        detail: what went wrong, or why it does not apply; empty where there is nothing to say.
    """

    name: str
    status: Status
    protects: str
    detail: str


@dataclass(frozen=True)
class Check:
    """A named check.

    Attributes:
        name: as used in ``xfail_checks``.
        protects: one sentence.
        kinds: the kinds of task that it can be made on.
        run: raises where the method does not pass.
    """

    name: str
    protects: str
    kinds: tuple[TaskKind, ...]
    run: Callable[[Case], None]


class _FailedError(Exception):
    """The method does not pass; the message says how."""


class _NotApplicableError(Exception):
    """The check has nothing to say of this method; the message says why."""


@dataclass(frozen=True)
class Case:
    """A method before tiny tasks of one kind."""

    plugin: type[Method[Any]]
    kind: TaskKind

    @property
    def norms(self) -> tuple[NormMode, ...]:
        """Modes worth trying; without classes nothing is normalised."""
        return NORM_MODES if self.kind == "classification" else ("layer",)

    def method(self, norm: NormMode = "metabn", *, eval_samples: int | None = None, most_steps: int = 5) -> Method[Any]:
        """An instance, always the same one, in float64 and evaluation mode.

        Args:
            norm: normalisation mode.
            eval_samples: what to set where the method has a setting of that name.
            most_steps: cap of all settings whose name ends in ``steps``: a few show what many would.
        """
        extractor = ExtractorSpec((1, 8, 8), blocks=2, channels=4, dropout=0.2)
        if self.kind == "regression":
            extractor = ExtractorSpec((3, 1, 1), blocks=0)
        settings = self.plugin.Settings()
        changes: dict[str, int] = {}
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if field.name == "eval_samples" and eval_samples:
                changes[field.name] = eval_samples
            elif field.name.endswith("steps") and isinstance(value, int):
                changes[field.name] = min(value, most_steps)
        settings = dataclasses.replace(settings, **changes)
        torch.manual_seed(0)
        way, noise_std = (_WAY, None) if self.kind == "classification" else (1, _NOISE_STD)
        inputs = 2 if self.kind == "reconstruction" else 0
        method = self.plugin(Problem(extractor, norm, way, self.kind, noise_std, inputs), settings).double()
        with torch.no_grad():
            for parameter in _trained(method).values():
                parameter.add_(0.1 * torch.randn_like(parameter))
        if norm == "running" and self.kind == "classification":
            _loss(method, self.batch(seed=5))  # some training, so that averages differ from their initial values
        return method.eval()

    def batch(self, *, tasks: int = 3, way: int = _WAY, shots: int = 2, queries: int = 2, seed: int = 0) -> TaskBatch:
        """Tasks with ``way * shots`` support points and ``way * queries`` queries, in float64.

        Classes are images of noise that get brighter with the label; regression is linear with noise; views are
        images of noise at one of 36 angles.
        """
        generator = torch.Generator().manual_seed(seed)
        float64 = torch.float64
        weights = torch.randn(tasks, 3, 1, generator=generator, dtype=float64)

        def labelled(per_class: int) -> Labelled:
            points = way * per_class
            if self.kind == "classification":
                y = torch.arange(way).repeat_interleave(per_class).expand(tasks, -1)
                x = torch.rand(tasks, points, 1, 8, 8, generator=generator, dtype=float64)
                return Labelled(x + 0.2 * y[..., None, None, None], y, way)
            if self.kind == "reconstruction":
                turn = torch.randint(36, (tasks, points), generator=generator) * (2 * math.pi / 36)
                y = torch.rand(tasks, points, 1, 8, 8, generator=generator, dtype=float64)
                return Labelled(torch.stack([turn.sin(), turn.cos()], -1).to(float64), y, 1)
            x = torch.randn(tasks, points, 3, generator=generator, dtype=float64)
            noise = torch.randn(tasks, points, generator=generator, dtype=float64)
            return Labelled(x[..., None, None], (x @ weights).squeeze(-1) + _NOISE_STD * noise, 1)

        return TaskBatch(labelled(shots), labelled(queries))

    def densities(self, predictive: Distribution, query: Labelled, targets: Sequence[float] = _TARGETS) -> Tensor:
        """Log-densities ``[task, point, target]``: at every class, or at some real numbers, of all pixels alike."""
        values = range(query.way) if self.kind == "classification" else targets
        return torch.stack([predictive.log_prob(torch.full_like(query.y, value)) for value in values], -1)

    def predict(self, method: Method[Any], batch: TaskBatch) -> Tensor:
        """Evaluate: probabilities ``[task, point, way]``, or log-densities ``[task, point, target]``."""
        with torch.no_grad():
            return self.answer(method, method.amortize(batch.support), batch.query)

    def answer(self, method: Method[Any], q: Posterior[Any], query: Labelled) -> Tensor:
        """The same for a posterior that is at hand."""
        predictive = method.predictive(q, query.x)
        if not isinstance(predictive, Distribution):
            raise _FailedError(f"predictive must return a torch Distribution; got a {type(predictive).__name__}")
        if predictive.batch_shape != query.y.shape[:2]:
            raise _FailedError(
                f"predictive must have batch shape (task, point) = {tuple(query.y.shape[:2])}; "
                f"got {tuple(predictive.batch_shape)}"
            )
        log_density = self.densities(predictive, query)
        return log_density.exp() if self.kind == "classification" else log_density


_checks: dict[str, Check] = {}
CHECKS: Mapping[str, Check] = MappingProxyType(_checks)
"""The checks by name, in the order in which they are run."""


def _check(*kinds: TaskKind) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register a function as the check of its name; its docstring is the sentence that is shown."""

    def register(run: Callable[[Case], None]) -> Callable[[Case], None]:
        _checks[run.__name__] = Check(run.__name__, run.__doc__ or "", kinds or _KINDS, run)
        return run

    return register


def check_method(plugin: type[Method[Any]], checks: Sequence[str] | None = None) -> list[CheckResult]:
    """Run the conformance suite on a method; nothing that the method does raises here.

    Where a class fails ``interface``, no other check is run.

    Args:
        plugin: the class; it need not be registered.
        checks: names of :data:`CHECKS`; None for all.

    Raises:
        UserError: a name that is not a check's.
    """
    names = tuple(CHECKS) if checks is None else tuple(checks)
    for name in names:
        if name not in CHECKS:
            raise unknown_name("check", name, CHECKS)
    interface = _run(CHECKS["interface"], plugin, ("classification",) if _faults(plugin) else plugin.handles)
    results = []
    for name in names:
        if name == "interface":
            results.append(interface)
        elif interface.status == "failed":
            protects = CHECKS[name].protects
            results.append(CheckResult(name, "not run", protects, "not run, since interface fails"))
        else:
            results.append(_judged(_run(CHECKS[name], plugin, plugin.handles), plugin.xfail_checks.get(name)))
    return results


def assert_conforms(plugin: type[Method[Any]], checks: Sequence[str] | None = None) -> None:
    """For test suites: :func:`check_method`, and one AssertionError that lists all that failed."""
    names = None if checks is None else tuple(dict.fromkeys(("interface", *checks)))  # why others may not be run
    if lines := failure_lines(check_method(plugin, names)):
        raise AssertionError(f"{getattr(plugin, '__name__', plugin)} does not conform:\n" + "\n".join(lines))


def failure_lines(results: Sequence[CheckResult]) -> list[str]:
    """What failed or was not run, one line for each cause."""
    return [
        f"{result.name}: {result.detail}" + (f" (protects: {result.protects})" if result.protects else "")
        for result in merged(results)
        if result.status in _BAD
    ]


def merged(results: Sequence[CheckResult]) -> list[CheckResult]:
    """The same results, with those of one cause as one: an error in ``amortize`` fails nearly every check."""
    causes: dict[object, list[CheckResult]] = {}
    for result in results:
        causes.setdefault((result.status, result.detail) if result.status in _BAD else result.name, []).append(result)
    return [same[0] if len(same) == 1 else _as_one(same) for same in causes.values()]


def _as_one(same: Sequence[CheckResult]) -> CheckResult:
    name = ", ".join(result.name for result in same)
    if same[0].status == "not run":
        name = f"{len(same)} other checks"
    return dataclasses.replace(same[0], name=name, protects="")


def _run(check: Check, plugin: type[Method[Any]], handles: tuple[TaskKind, ...]) -> CheckResult:
    """The check on each kind of task that the method handles; the first failure is the result."""
    status: Status = "not applicable"
    notes = []
    for kind in handles:
        prefix = f"{kind}: " if len(handles) > 1 else ""
        if kind not in check.kinds:
            notes.append(f"{prefix}only for {', '.join(check.kinds)}")
            continue
        try:
            with torch.random.fork_rng(devices=[]):
                check.run(Case(plugin, kind))
            status = "passed"
        except _NotApplicableError as reason:
            notes.append(f"{prefix}{reason}")
        except _FailedError as failure:
            return CheckResult(check.name, "failed", check.protects, f"{prefix}{failure}")
        except (Exception, SystemExit) as error:  # whatever a plugin raises fails its check, and no other
            return CheckResult(check.name, "failed", check.protects, f"{prefix}{_located(error, plugin)}")
    return CheckResult(check.name, status, check.protects, "; ".join(notes))


def _located(error: BaseException, plugin: type) -> str:
    """The error in one line, with the plugin's own line that led to it."""
    file = getattr(sys.modules.get(plugin.__module__), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""
    return one_line(error) + where


def _judged(result: CheckResult, reason: str | None) -> CheckResult:
    """The result in the light of the method's ``xfail_checks``: what is named there must really fail."""
    if reason is None:
        return result
    if result.status == "failed":
        return dataclasses.replace(result, status="expected failure", detail=f"{reason} ({result.detail})")
    detail = f"xfail_checks names it ({reason}), but it is {result.status}; take it out of xfail_checks"
    return dataclasses.replace(result, status="failed", detail=detail)


def _faults(plugin: type[Method[Any]]) -> list[str]:
    faults = method_faults(plugin)
    if not faults:
        known = set(CHECKS) - {"interface"}
        faults = [str(unknown_name("check in xfail_checks", n, known)) for n in plugin.xfail_checks if n not in known]
    return faults


# -- what checks are made of -----------------------------------------------------------------------------------------


def _same(got: Tensor, expected: Tensor, what: str, tolerance: float = _ROUNDING) -> None:
    """Equal up to a tolerance, absolute for small numbers and relative for large ones; NaN never is."""
    if got.shape != expected.shape:
        raise _FailedError(f"{what}: shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    worst = float(((got - expected).abs() / expected.abs().clamp(min=1)).max())
    if not worst <= tolerance:
        raise _FailedError(f"{what}: they differ by {worst:.2g}, where {tolerance:.1g} can be explained")


def _trained(method: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in method.named_parameters() if p.requires_grad}


def _parameters(method: nn.Module) -> dict[str, nn.Parameter]:
    if not (found := _trained(method)):
        raise _NotApplicableError("no parameters")
    return found


def _loss(method: Method[Any], batch: TaskBatch, seed: int = 0) -> Tensor:
    """The training loss under seeded noise."""
    method.train()
    torch.manual_seed(seed)
    return method.loss(batch)


def _mean_loss(method: Method[Any], batch: TaskBatch, draws: int = 16) -> tuple[float, float]:
    """Mean of the loss over its noise, with the variance of that mean; 0 for a loss without noise."""
    losses = [_loss(method, batch, seed).item() for seed in range(2)]
    if losses[0] != losses[1]:
        losses += [_loss(method, batch, seed).item() for seed in range(2, draws)]
    if not all(map(math.isfinite, losses)):
        raise _FailedError("the loss is not finite")
    return float(np.mean(losses)), float(np.var(losses, ddof=1)) / len(losses)


def _same_loss(got: tuple[float, float], expected: tuple[float, float], what: str) -> None:
    explained = 5 * math.sqrt(got[1] + expected[1]) + _ROUNDING * max(1.0, abs(expected[0]))
    if not abs(got[0] - expected[0]) <= explained:
        raise _FailedError(
            f"{what}: the loss is {got[0]:.4g} instead of {expected[0]:.4g}, where {explained:.1g} can be explained"
        )


def _finite(answer: Tensor, what: str) -> None:
    if not answer.isfinite().all():
        raise _FailedError(f"{what}: a density is not finite")


def _replaced(batch: TaskBatch, other: TaskBatch, task: int) -> TaskBatch:
    """The batch with one task of another one."""
    rows = [task if t == task else t + batch.support.tasks for t in range(batch.support.tasks)]
    return TaskBatch(
        *(
            Labelled(torch.cat([new.x, old.x])[rows], torch.cat([new.y, old.y])[rows], old.way)
            for old, new in ((batch.support, other.support), (batch.query, other.query))
        )
    )


def _select(points: Labelled, index: Any) -> Labelled:
    return Labelled(points.x[:, index], points.y[:, index], points.way)


def _moves_psi(parameter: nn.Parameter, method: Method[Any], support: Labelled) -> bool:
    with torch.no_grad():
        before = method.amortize(support).psi
        parameter.add_(0.1)
        after = method.amortize(support).psi
        parameter.sub_(0.1)
    return not (torch.equal(before.mean, after.mean) and torch.equal(before.variance, after.variance))


def _spread(psi: Distribution, mean: Tensor, factor: float) -> Distribution:
    """The same Gaussian around another mean and with standard deviations times a factor."""
    if isinstance(psi, Independent):
        return Independent(_spread(psi.base_dist, mean, factor), psi.reinterpreted_batch_ndims, validate_args=False)
    if isinstance(psi, MultivariateNormal):
        return MultivariateNormal(mean, scale_tril=factor * psi.scale_tril, validate_args=False)
    if isinstance(psi, Normal):
        return Normal(mean, factor * psi.scale, validate_args=False)
    if isinstance(psi, Delta):
        raise _NotApplicableError("q is a point mass")
    raise _NotApplicableError(f"the suite cannot change the spread of a {type(psi).__name__}")


def _attributes(method: nn.Module) -> Iterator[tuple[str, object]]:
    """All that the module and its parts hold, and what is in their containers."""
    for path, module in method.named_modules():
        for name, value in vars(module).items():
            where = f"{path}.{name}".lstrip(".")
            if isinstance(value, Mapping):
                yield from ((f"{where}[{key!r}]", item) for key, item in value.items())
            elif isinstance(value, list | tuple | set):
                yield from ((f"{where}[{index}]", item) for index, item in enumerate(value))
            else:
                yield where, value


def _global_state() -> dict[str, object]:
    return {
        "default dtype": torch.get_default_dtype(),
        "autograd's mode": torch.is_grad_enabled(),
        "number of threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch's generator": torch.get_rng_state().tolist(),
    }


# -- the checks ------------------------------------------------------------------------------------------------------


@_check()
def interface(case: Case) -> None:
    """The class is complete: abstract parts, reference, psi, task kinds, frozen settings, and usable presets."""
    if faults := _faults(case.plugin):
        raise _FailedError("; ".join(faults))
    case.method()


@_check()
def inputs_unchanged(case: Case) -> None:
    """Amortisation, prediction and loss leave the tasks as they are, which other protocols and methods use too."""
    method, batch = case.method(), case.batch()
    tensors = {
        "support.x": batch.support.x,
        "support.y": batch.support.y,
        "query.x": batch.query.x,
        "query.y": batch.query.y,
    }
    before = {name: tensor.clone() for name, tensor in tensors.items()}

    def compare(function: str) -> None:
        for name, tensor in tensors.items():
            if not torch.equal(tensor, before[name]):
                raise _FailedError(f"{function} changes {name} in place; let it work on a copy")

    with torch.no_grad():
        q = method.amortize(batch.support)
        compare("amortize")
        method.predictive(q, batch.query.x)
        compare("predictive")
    _loss(method, batch)
    compare("loss")


@_check()
def shapes(case: Case) -> None:
    """Predictive and loss have the shape (task, point) and the dtype of their input, float32 or float64."""
    batch = case.batch()
    for dtype in (torch.float64, torch.float32):
        method = case.method().to(dtype)
        support, query = (
            Labelled(p.x.to(dtype), p.y.to(dtype) if p.y.is_floating_point() else p.y, p.way)
            for p in (batch.support, batch.query)
        )
        answer = case.predict(method, TaskBatch(support, query))
        loss = _loss(method, TaskBatch(support, query))
        for what, value in (("densities", answer), ("the loss", loss)):
            if value.dtype != dtype:
                raise _FailedError(f"{what} of {dtype} input must be {dtype}; got {value.dtype}")
        _finite(answer, f"with {dtype} input")
    with torch.no_grad():
        to_float64(method.predictive(method.amortize(support), query.x))


@_check("classification", "regression")
def probabilities(case: Case) -> None:
    """The predictive is normalised: class probabilities sum to one, a density over the reals integrates to one."""
    method, batch = case.method(), case.batch()
    with torch.no_grad():
        predictive = method.predictive(method.amortize(batch.support), batch.query.x)
        if case.kind == "classification":
            total = case.densities(predictive, batch.query).exp().sum(-1)
            return _same(total, torch.ones_like(total), "sum of the class probabilities")
        grid = torch.linspace(-8, 8, 1601, dtype=torch.float64)  # of arsinh y, so that tails are reached
        density = case.densities(predictive, batch.query, grid.sinh().tolist()).exp()
        total = torch.trapezoid(density * grid.cosh(), grid)
        # A narrow density far from zero falls between the points of the grid.
        return _same(total, torch.ones_like(total), "integral of the density", 2e-2)


@_check()
def posterior(case: Case) -> None:
    """Amortisation gives a finite torch Distribution over psi, whose first batch dimension is the task."""
    method, batch = case.method(), case.batch()
    with torch.no_grad():
        q = method.amortize(batch.support)
    if not isinstance(q, Posterior):
        raise _FailedError(f"amortize must return a Posterior; got a {type(q).__name__}")
    if not isinstance(q.psi, Distribution):
        raise _FailedError(f"psi must be a torch Distribution; got a {type(q.psi).__name__}")
    if q.psi.batch_shape[:1] != (batch.support.tasks,):
        raise _FailedError(
            f"the batch shape of psi must begin with the {batch.support.tasks} tasks; got {tuple(q.psi.batch_shape)}"
        )
    if not q.psi.mean.isfinite().all():
        raise _FailedError("the mean of psi is not finite")


@_check()
def batch_of_tasks(case: Case) -> None:
    """A task's predictions do not depend on the tasks that share its batch."""
    for norm in case.norms:
        method, batch = case.method(norm), case.batch()
        together = case.predict(method, batch)
        for t in range(batch.support.tasks):
            alone = case.predict(method, TaskBatch(batch.support.task(t), batch.query.task(t)))
            _same(alone[0], together[t], f"norm {norm}, a task alone and in a batch")


@_check()
def queries_independent(case: Case) -> None:
    """A query's prediction does not depend on the other queries, unless the norm is transductive."""
    for norm in case.norms:
        if norm == "transductive":
            continue
        method, batch = case.method(norm), case.batch()
        with torch.no_grad():
            q = method.amortize(batch.support)
            together = case.answer(method, q, batch.query)
            alone = [case.answer(method, q, _select(batch.query, [i])) for i in range(batch.query.y.shape[1])]
        _same(torch.cat(alone, 1), together, f"norm {norm}, queries one at a time and together")


@_check()
def support_order(case: Case) -> None:
    """The order of the support points is irrelevant."""
    method, batch = case.method(), case.batch()
    order = torch.tensor([4, 0, 3, 5, 1, 2])
    shuffled = TaskBatch(_select(batch.support, order), batch.query)
    _same(case.predict(method, shuffled), case.predict(method, batch), "support points in another order")


@_check()
def support_counts(case: Case) -> None:
    """Every support point counts: q, and with it the predictions, change with each of them."""
    method, batch, other = case.method("layer"), case.batch(), case.batch(seed=1)  # "layer" lets no point leak
    before = case.predict(method, batch)
    for i in range(batch.support.y.shape[1]):
        x, y = batch.support.x.clone(), batch.support.y.clone()
        x[:, i], y[:, i] = other.support.x[:, i], other.support.y[:, i]
        after = case.predict(method, TaskBatch(Labelled(x, y, batch.support.way), batch.query))
        if float((after - before).abs().amax((1, 2)).min()) < _ROUNDING:
            raise _FailedError(f"another support point {i} changes no prediction")


@_check("classification")
def class_relabelling(case: Case) -> None:
    """Classes have no order: relabelling them relabels the predictions."""
    # Fixed quadrature points are not symmetric between classes; many of them nearly are. Steps are not cut
    # short either: the first ones of an optimiser such as Adam blow up a small asymmetry.
    method, batch = case.method(eval_samples=_MANY_SAMPLES, most_steps=100), case.batch(tasks=1)
    new = torch.tensor([2, 0, 1])
    renamed = Labelled(batch.support.x, new[batch.support.y], _WAY)
    with torch.no_grad():
        exact = isinstance(method.amortize(batch.support).psi, Delta)
    relabelled = case.predict(method, TaskBatch(renamed, batch.query))[..., new]
    _same(relabelled, case.predict(method, batch), "relabelled classes", _ROUNDING if exact else _QUADRATURE)


@_check()
def way_and_shot(case: Case) -> None:
    """Way and shots at test may differ from training."""
    method = case.method()
    for way, shots in ((2, 1), (3, 3), (6, 2)):
        batch = case.batch(way=way, shots=shots)
        answer = case.predict(method, batch)
        _finite(answer, f"way {way}, {shots} shots")
        if case.kind == "classification":
            total = answer.sum(-1)
            _same(total, torch.ones_like(total), f"way {way}, {shots} shots, sum of the class probabilities")


@_check("classification")
def unequal_shots(case: Case) -> None:
    """Classes of one task may have different numbers of shots, in any order."""
    method, batch = case.method(), case.batch(shots=3)
    answers = []
    for keep in ([0, 3, 4, 6, 7, 8], [4, 8, 0, 7, 3, 6]):
        answer = case.predict(method, TaskBatch(_select(batch.support, keep), batch.query))
        _finite(answer, "1, 2 and 3 shots")
        answers.append(answer)
    _same(answers[0].sum(-1), torch.ones_like(answers[0][..., 0]), "1, 2 and 3 shots, sum of the class probabilities")
    _same(answers[1], answers[0], "1, 2 and 3 shots in another order")


@_check()
def predictive_integrates(case: Case) -> None:
    """The predictive averages the likelihood over all of q, its spread included, and is no plug-in of its mean."""
    method, batch = case.method("layer", eval_samples=_MANY_SAMPLES), case.batch(tasks=1)
    plain = case.method("layer")
    with torch.no_grad():
        q = method.amortize(batch.support)
        # Wide, so that the spread matters, and so that a variance is not taken for a standard deviation.
        q = dataclasses.replace(q, psi=_spread(q.psi, 4 * q.psi.mean, 4.0))

        def seen(of: Method[Any], q: Posterior[Any]) -> Tensor:
            """Densities; images where those underflow."""
            predictive = of.predictive(q, batch.query.x)
            if case.kind == "reconstruction":
                return predictive.mean.flatten(2)
            return case.densities(predictive, batch.query).exp()

        got = seen(method, q)
        draws = []
        for _ in range(400):
            at_a_draw = dataclasses.replace(q, psi=_spread(q.psi, q.psi.sample(), 1e-9))
            draws.append(seen(plain, at_a_draw))
    std, expected = torch.std_mean(torch.stack(draws), 0)
    explained = 5 * std / math.sqrt(len(draws)) + _QUADRATURE
    worst = int(((got - expected).abs() / explained).argmax())
    difference, allowed = float((got - expected).abs().flatten()[worst]), float(explained.flatten()[worst])
    if not difference <= allowed:
        raise _FailedError(
            f"it differs from the average over {len(draws)} draws of psi by {difference:.2g}, "
            f"where {allowed:.1g} can be explained"
        )


@_check()
def loss_scalar(case: Case) -> None:
    """The loss is a finite scalar tensor, with a gradient if there is anything to train."""
    method = case.method()
    loss = _loss(method, case.batch())
    if not isinstance(loss, Tensor) or loss.shape:
        came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise _FailedError(f"loss must return a scalar tensor; got {came}")
    if not loss.isfinite():
        raise _FailedError(f"the loss is {loss.item()}")
    if _trained(method) and not loss.requires_grad:
        raise _FailedError("the loss has no gradient")


@_check()
def loss_mean_over_tasks(case: Case) -> None:
    """The loss of a batch is the mean of its tasks' losses, so that the batch size does not change the step."""
    method, batch = case.method(), case.batch()
    tasks = range(batch.support.tasks)
    alone = [_mean_loss(method, TaskBatch(batch.support.task(t), batch.query.task(t))) for t in tasks]
    mean = sum(m for m, _ in alone) / len(alone)
    variance = sum(v for _, v in alone) / len(alone) ** 2
    _same_loss(_mean_loss(method, batch), (mean, variance), "tasks together and alone")
    for t in tasks:  # under the same noise, so that even a small share shows
        if _loss(method, _replaced(batch, case.batch(seed=1), t)).equal(_loss(method, batch)):
            raise _FailedError(f"another task {t} does not change the loss")


@_check()
def loss_mean_over_points(case: Case) -> None:
    """The loss is a mean over queries, in nats per query: to have each of them twice changes nothing."""
    method, batch = case.method(), case.batch()
    twice = TaskBatch(batch.support, _select(batch.query, list(range(batch.query.y.shape[1])) * 2))
    _same_loss(_mean_loss(method, twice), _mean_loss(method, batch), "each query twice")


@_check()
def every_parameter(case: Case) -> None:
    """Every parameter gets a finite gradient that is not zero, unless it moves psi where no prediction can see it."""
    for norm in case.norms:
        method, batch = case.method(norm), case.batch(shots=2 if norm == "running" else 1)
        parameters = _parameters(method)
        _loss(method, batch).backward()
        for name, parameter in parameters.items():
            where = f"norm {norm}, gradient of {name}"
            if parameter.grad is None:
                raise _FailedError(f"{where}: there is none")
            if not parameter.grad.isfinite().all():
                raise _FailedError(f"{where}: not finite")
            # A softmax does not see what moves the logits of all classes alike; rounding leaves it 0 or 1e-17.
            if not parameter.grad.any() and not _moves_psi(parameter, method.eval(), batch.support):
                raise _FailedError(f"{where}: zero")


@_check()
def gradient(case: Case) -> None:
    """The gradient is that of the loss, by central differences in a random direction of each parameter."""
    method, batch, step = case.method(), case.batch(), 1e-6
    parameters = _parameters(method)
    _loss(method, batch).backward()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in parameters.items():
        direction = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        values = []
        for move in (step, -2 * step):
            with torch.no_grad():
                parameter.add_(move * direction)
            values.append(_loss(method, batch).item())
        with torch.no_grad():
            parameter.add_(step * direction)
        differences = (values[0] - values[1]) / (2 * step)
        slope = 0.0 if parameter.grad is None else float((parameter.grad * direction).sum())
        if not abs(slope - differences) <= 1e-3 * max(abs(slope), abs(differences)) + 1e-7:
            raise _FailedError(f"slope along {name}: {slope:.6g} by autograd, {differences:.6g} by finite differences")


@_check()
def training_noise(case: Case) -> None:
    """Training noise comes from torch's generator alone: the same seed gives the same loss and gradients."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002  # the global generator is what must not be used
    runs = []
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            method = case.method()
            states = random.getstate(), str(np.random.get_state())  # noqa: NPY002
            loss = _loss(method, case.batch())
            if loss.requires_grad:
                loss.backward()
            if states != (random.getstate(), str(np.random.get_state())):  # noqa: NPY002
                raise _FailedError("the global generator of random or numpy is used")
            runs.append([loss.detach(), *(p.grad for p in _trained(method).values() if p.grad is not None)])
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
    if len(runs[0]) != len(runs[1]) or not all(map(torch.equal, *runs)):
        raise _FailedError("two runs from the same torch seed differ")


@_check()
def evaluation_fixed(case: Case) -> None:
    """Evaluation has no noise of its own: predictions do not depend on any seed."""
    method, batch = case.method(), case.batch()
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        answers.append(case.predict(method, batch))
    if not torch.equal(*answers):
        raise _FailedError("predictions differ between two seeds")


@_check()
def evaluation_keeps_state(case: Case) -> None:
    """Evaluation leaves nothing behind: no task on the module, no changed parameter, buffer or global setting."""
    method, batch, other = case.method("running"), case.batch(), case.batch(seed=7)
    state = {name: value.clone() for name, value in method.state_dict().items()}
    outside = _global_state()
    with torch.no_grad():
        q = method.amortize(batch.support)
        first = case.answer(method, q, batch.query)
    held = dict(_attributes(method))  # what is made once, at the first use, may stay
    try:
        case.predict(method, other)
        for name, value in _global_state().items():
            if value != outside[name]:
                raise _FailedError(f"evaluation changes {name}")
    finally:
        torch.set_default_dtype(outside["default dtype"])  # type: ignore[arg-type]
        torch.set_grad_enabled(bool(outside["autograd's mode"]))
    now = dict(_attributes(method))
    changed = sorted(n for n in held.keys() | now.keys() if n not in held or n not in now or held[n] is not now[n])
    if changed:
        raise _FailedError(f"evaluation changes what the module holds: {', '.join(changed)}")
    for name, value in method.state_dict().items():
        if not torch.equal(value, state[name]):
            raise _FailedError(f"evaluation changes {name}")
    with torch.no_grad():
        if not torch.equal(case.answer(method, q, batch.query), first):
            raise _FailedError("a task's predictions change after another task")


@_check()
def evaluation_without_graph(case: Case) -> None:
    """Evaluation works without autograd and leaves no graph behind, whose memory would grow."""
    method, batch = case.method(), case.batch()
    with torch.no_grad():
        q = method.amortize(batch.support)
        predictive = method.predictive(q, batch.query.x)
    for what, value in (("q(psi | D)", q.psi.mean), ("the predictive", case.densities(predictive, batch.query))):
        if value.requires_grad:
            raise _FailedError(f"under torch.no_grad, {what} still has a graph")


@_check()
def state_round_trip(case: Case) -> None:
    """A checkpoint holds all that a trained method is: loaded into a fresh instance, it predicts the same."""
    method, batch = case.method("running"), case.batch()
    file = io.BytesIO()
    torch.save(method.state_dict(), file)
    file.seek(0)
    fresh = type(method)(method.problem, method.settings).double()
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    _same(case.predict(fresh.eval(), batch), case.predict(method, batch), "a fresh instance with the same state")


@_check("regression")
def evidence_bound(case: Case) -> None:
    """An evidence bound stays below the exact log-evidence of D, also where training has pushed it up."""
    if not case.plugin.bounds_evidence:
        raise _NotApplicableError("its loss does not claim to bound the evidence (bounds_evidence)")
    method, batch = case.method(most_steps=100), case.batch(shots=3)
    if parameters := _trained(method):
        adam = torch.optim.Adam(parameters.values(), lr=0.05)
        for step in range(200):
            adam.zero_grad()
            _loss(method, batch, step).backward()
            adam.step()
    mean, variance = _mean_loss(method, batch)
    x, y = batch.support.x.flatten(2), batch.support.y
    with torch.no_grad():
        dimension = method.amortize(batch.support).psi.mean.shape[-1]
    x = torch.cat([x, torch.ones_like(x[..., : dimension - x.shape[-1]])], -1)  # psi may have a bias
    covariance = x @ x.mT + _NOISE_STD**2 * torch.eye(y.shape[1], dtype=y.dtype)
    evidence = MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y).mean().item()
    bound, error = -mean * y.shape[1], math.sqrt(variance) * y.shape[1]
    if not bound - 5 * error <= evidence:
        raise _FailedError(f"the bound is {bound:.4g} nats, above the log-evidence {evidence:.4g}")

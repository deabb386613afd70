"""One training step: loss, gradient and update; on a GPU as one CUDA graph, which starts all its kernels at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from mlpip_bench.inference.method import Method, TrainingPlan
from mlpip_bench.nn.backbone import features_in_one_pass
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.choices import Graph
from mlpip_bench.utils.errors import TrialError, message_in_one_line

Replay = Callable[[], Float[Tensor, ""]]
"""Does again, on what is then in the tensors of a step, what the step did; and returns its loss."""

_STEPS_BEFORE = 3
"""Steps before a graph is captured, in which libraries choose their kernels and the optimizer makes its state."""
_LARGEST_DIFFERENCE = 0.05
"""Of the parameters after a replay from those after the step itself, as a share of how far the step goes."""


class Step(Protocol):
    """Takes tasks and a learning rate, moves the parameters once, and returns the loss before that."""

    def __call__(self, batches: Sequence[TaskBatch], rate: float) -> Float[Tensor, ""]:
        """One step on tasks, those of one shape together; its loss has no gradient, and stays on its device."""


def loss_of(method: Method[Any], batches: Sequence[TaskBatch]) -> Float[Tensor, ""]:
    """The loss of a training step, the mean over all its tasks.

    Args:
        method: in training mode.
        batches: the tasks, those of one shape together.

    Raises:
        TrialError: it is no scalar with a gradient.
    """
    first, *others = [_loss_of_batch(method, batch) for batch in batches]
    if not others:
        return first
    tasks = first.new_tensor([batch.support.tasks for batch in batches])
    return torch.stack([first, *others]) @ (tasks / tasks.sum())


def _loss_of_batch(method: Method[Any], batch: TaskBatch) -> Float[Tensor, ""]:
    """A GPU takes support sets and queries through the backbone at once."""
    with features_in_one_pass(method, batch):
        loss = method.loss(batch)
    trainable = any(p.requires_grad for p in method.parameters())
    if not (isinstance(loss, Tensor) and loss.dim() == 0 and (loss.requires_grad or not trainable)):
        came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise TrialError(f"loss must return a scalar tensor with a gradient; {type(method).__name__}'s is {came}.")
    return loss


def optimizer_of(method: Method[Any], plan: TrainingPlan) -> torch.optim.Optimizer:
    """The optimizer of a training run, also of a method that has nothing to train."""
    parameters: list[Tensor] = list(method.parameters()) or [torch.zeros(0)]
    more: dict[str, Any] = {"momentum": plan.momentum} if plan.optimizer == "SGD" else {}
    if parameters[0].device.type == "cuda":  # the update of all parameters by one kernel, without waiting for the GPU
        more |= {"fused": True} if plan.optimizer == "SGD" else {"fused": True, "capturable": True}
    plugin: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, plan.optimizer)
    return plugin(parameters, lr=plan.rate(0), weight_decay=plan.weight_decay, **more)


def descend(loss: Float[Tensor, ""], optimizer: torch.optim.Optimizer, clip_norm: float = 0.0) -> None:
    """One step; none where the loss has no gradient. A ``clip_norm`` above 0 is the gradient's largest length."""
    if loss.requires_grad:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], clip_norm)
        optimizer.step()


class EagerStep:
    """A step whose operations are started one by one.

    Args:
        method: on its device.
        optimizer: of its parameters.
        clip_norm: as of :func:`descend`.
    """

    def __init__(self, method: Method[Any], optimizer: torch.optim.Optimizer, clip_norm: float) -> None:
        self.method, self.optimizer, self.clip_norm = method, optimizer, clip_norm

    def __call__(self, batches: Sequence[TaskBatch], rate: float | Tensor) -> Tensor:
        """One step; the rate of a graph is a tensor."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(self.method, batches)
        descend(loss, self.optimizer, self.clip_norm)
        return loss.detach()


class GraphedStep:
    """A step that is captured once and then replayed, the same numbers out of one call.

    What a method does in Python alone, as counting, a graph does not repeat. So the first replay is compared with the
    step itself, from the same state, on other tasks and other noise than those of the capture. Where they differ, or
    nothing can be captured, each step goes on as before.

    Args:
        eager: the step.
        say: called with the reason, once, where there is no graph.
        capture: gives the replay of some work, without doing it.
        warm_up: where steps are done before the capture.
    """

    def __init__(
        self,
        eager: EagerStep,
        say: Callable[[str], object],
        *,
        capture: Callable[[Callable[[], Tensor]], Replay],
        warm_up: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self.eager, self.say, self.capture, self.warm_up = eager, say, capture, warm_up
        self.done = 0
        self.graphed = True
        self._static: tuple[TaskBatch, Tensor, Replay] | None = None

    def __call__(self, batches: Sequence[TaskBatch], rate: float) -> Tensor:
        """One step."""
        if len(batches) > 1:  # of shapes that no later step has again
            return self.eager(batches, rate)
        (batch,) = batches
        self.done += 1
        if self.graphed and self.done <= _STEPS_BEFORE:
            with self.warm_up():
                return self.eager([batch], rate)
        if self.graphed and self._static is None:
            self._capture(batch, rate)
        elif self._static is not None and _shapes(batch) == _shapes(self._static[0]):
            static, static_rate, replay = self._static
            for ours, given in zip(_tensors(static), _tensors(batch), strict=True):
                ours.copy_(given)
            static_rate.fill_(rate)
            return self._compared(replay, batch, rate) if self.done == _STEPS_BEFORE + 2 else replay().clone()
        return self.eager([batch], rate)

    def _capture(self, batch: TaskBatch, rate: float) -> None:
        parts = [Labeled(part.x.clone(), part.y.clone(), part.way) for part in (batch.support, batch.query)]
        classes = None if batch.classes is None else batch.classes.clone()
        static, static_rate = TaskBatch(*parts, classes=classes), torch.full((), rate, device=batch.support.x.device)

        def work() -> Tensor:
            # Of views, so that what a batch keeps of itself is made within.
            return self.eager([TaskBatch(*(Labeled(p.x, p.y, p.way) for p in parts), classes=classes)], static_rate)

        try:
            self._static = static, static_rate, self.capture(work)
        except Exception as error:  # whatever torch, or a method, raises for what cannot be captured
            self._refuse(f"cannot be captured ({message_in_one_line(error)})")

    def _compared(self, replay: Replay, batch: TaskBatch, rate: float) -> Tensor:
        """The step itself, after its replay from the same state was looked at and taken back."""
        seed, state = torch.initial_seed(), self._state()
        before = [tensor.clone() for tensor in state]
        loss_of_graph = replay().clone()
        of_graph = [tensor.clone() for tensor in state]
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        torch.manual_seed(seed)
        loss = self.eager([batch], rate)
        # Of the parameters, which come first; the optimizer's counts of its steps would outweigh what these move by.
        parameters = len(list(self.eager.method.parameters()))
        moves = [
            torch.stack([now - then, now - other]).double().flatten(1).square().sum(1)
            for now, then, other in zip(state[:parameters], before[:parameters], of_graph[:parameters], strict=True)
        ]
        moved, wrong = torch.stack(moves).sum(0)
        if not (wrong <= _LARGEST_DIFFERENCE**2 * moved and torch.isclose(loss_of_graph, loss, rtol=1e-3, atol=1e-5)):
            self._refuse("gives other numbers as one")
        return loss

    def _state(self) -> list[Tensor]:
        """All that a step changes."""
        moments = (m for kept in self.eager.optimizer.state.values() for m in kept.values() if isinstance(m, Tensor))
        method = self.eager.method
        return [*(p.detach() for p in method.parameters()), *method.buffers(), *moments]

    def _refuse(self, reason: str) -> None:
        self.graphed, self._static = False, None
        self.say(f"the training step is not a CUDA graph: it {reason}; numbers are right, and take longer")


def step_of(
    method: Method[Any],
    optimizer: torch.optim.Optimizer,
    plan: TrainingPlan,
    *,
    graph: Graph,
    device: torch.device,
    say: Callable[[str], object],
) -> Step:
    """The step of a training run.

    Args:
        method: on its device.
        optimizer: of its parameters.
        plan: says to which length gradients are cut.
        graph: whether the step is a CUDA graph; ``auto`` is yes on CUDA.
        device: where training runs.
        say: called with the reason, once, where there is no graph though there was to be one.
    """
    eager = EagerStep(method, optimizer, plan.clip_norm)
    if not uses_graph(graph, device) or not any(True for _ in method.parameters()):
        return eager
    return GraphedStep(eager, say, capture=_captured, warm_up=_on_a_stream_of_its_own)


def uses_graph(graph: Graph, device: torch.device) -> bool:
    """Whether a step is to be a CUDA graph."""
    return graph != "off" and device.type == "cuda"


def _captured(work: Callable[[], Tensor]) -> Replay:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = work()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


@contextlib.contextmanager
def _on_a_stream_of_its_own() -> Iterator[None]:
    """As torch wants it of what comes before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def _tensors(batch: TaskBatch) -> list[Tensor]:
    parts = [batch.support.x, batch.support.y, batch.query.x, batch.query.y]
    return parts if batch.classes is None else [*parts, batch.classes]


def _shapes(batch: TaskBatch) -> list[torch.Size]:
    return [tensor.shape for tensor in _tensors(batch)]

"""A learned optimizer of networks: an LSTM that all coordinates share, and gates that are the rates of its steps.

Its inputs are taken as constants unless a caller keeps their graph. Then no coordinate sees another, neither forward
nor backward, and :func:`replayed` has all steps of a few thousand coordinates in the caches of a CPU at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_aten = torch.ops.aten

P = 10.0
"""Of the preprocessing: magnitudes from e^-10 on are given by their logarithm."""

_COORDINATES_AT_ONCE = {"cpu": 2_048, "cuda": 262_144}
"""On a CPU what all steps keep of them, about 500 numbers a step, still fits its caches."""


class State(NamedTuple):
    """What coordinates carry from a step to the next.

    Attributes:
        hidden, cell: of the LSTM that they share, ``[hidden, coordinate]``.
        gates: of the input and the forget gate before the sigmoid, ``[2, coordinate]``.
    """

    hidden: Tensor
    cell: Tensor
    gates: Tensor


Weights: TypeAlias = tuple[Tensor, ...]


class CoordinateLSTM(nn.Module):
    """c_t = f * c_(t-1) - i * gradient, where c are coordinates of psi, each with gates i and f of its own.

    Gates are sigmoids of a linear function of the output of an LSTM, of c_(t-1), and of the gate's own value before
    the sigmoid in the step before. The LSTM sees gradient and loss, preprocessed. Coordinates differ in what they see
    and carry, not in weights.

    Args:
        hidden: units of the LSTM.
        rate: where the input gate starts, between 0 and 1.
        kept: where the forget gate starts.
    """

    def __init__(self, hidden: int, rate: float, kept: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4 * hidden, 1 + 4 + hidden).uniform_(-0.01, 0.01))
        self.gate_weight = nn.Parameter(torch.empty(2, hidden + 2).uniform_(-0.01, 0.01))
        self.gate_bias = nn.Parameter(torch.tensor([math.log(p / (1 - p)) for p in (rate, kept)]))

    @property
    def weights(self) -> Weights:
        """All parameters, in the order in which :func:`step` takes them."""
        return self.weight, self.gate_weight, self.gate_bias

    def forward(
        self,
        start: Float[Tensor, "task coordinate"],
        loss: Callable[[Tensor], Tensor],
        steps: int,
        *,
        create_graph: bool,
        second_order: bool = False,
    ) -> Float[Tensor, "task coordinate"]:
        """psi after so many steps.

        Args:
            start: psi_0 of each task.
            loss: of each task, ``[task]``, from psi.
            steps: how many.
            create_graph: keep what is differentiable in psi_0 and the weights.
            second_order: also through the gradients and losses of the steps.
        """
        if create_graph and second_order:
            return self._with_graph(start, loss, steps)
        seen: list[tuple[Tensor, Tensor]] = []
        psi = start.detach()
        states: list[State | None] = [None] * len(split(psi.flatten()))
        for _ in range(steps):
            with torch.enable_grad():
                gradient, losses = _inputs(psi.requires_grad_(), loss)
            with torch.no_grad():
                parts = zip(*map(split, (psi.flatten(), gradient, losses)), states, strict=True)
                stepped = [step(self.weights, *part) for part in parts]
                states = [state for _, state in stepped]
                psi = torch.cat([own for own, _ in stepped]).view_as(start)
            if create_graph:
                seen.append((gradient, losses))
        if not create_graph or not seen:
            return start if create_graph else psi.detach()
        gradients, of_losses = (torch.stack(values) for values in zip(*seen, strict=True))
        return replayed(psi.flatten(), start.flatten(), gradients, of_losses, self.weights).view_as(start)

    def _with_graph(self, start: Tensor, loss: Callable[[Tensor], Tensor], steps: int) -> Tensor:
        psi, state = start, None
        for _ in range(steps):
            gradient, losses = _inputs(psi, loss, create_graph=True)
            moved, state = step(self.weights, psi.flatten(), gradient, losses, state)
            psi = moved.view_as(start)
        return psi


def _inputs(psi: Tensor, loss: Callable[[Tensor], Tensor], *, create_graph: bool = False) -> tuple[Tensor, Tensor]:
    """Of each coordinate of all tasks: the gradient of its task's loss, and that loss."""
    losses = loss(psi)
    (gradient,) = torch.autograd.grad(losses.sum(), psi, create_graph=create_graph)
    losses = losses if create_graph else losses.detach()
    return gradient.flatten(), losses.unsqueeze(-1).expand_as(psi).flatten()


def preprocessed(values: Tensor) -> tuple[Tensor, Tensor]:
    """(ln|v| / p, sign v) where |v| >= e^-p, and (-1, e^p v) elsewhere."""
    return values.abs().clamp_min(math.exp(-P)).log() / P, (values * math.exp(P)).clamp(-1, 1)


def step(
    weights: Weights,
    psi: Float[Tensor, " coordinate"],
    gradient: Float[Tensor, " coordinate"],
    loss: Float[Tensor, " coordinate"],
    state: State | None,
) -> tuple[Tensor, State]:
    """Coordinates after one step, with what they carry; without a state it is the first one.

    Tensors have coordinates in their last dimension, so that gates are rows, which follow each other in memory.
    """
    weight, gate_weight, gate_bias = weights
    inputs = torch.stack([torch.ones_like(psi), *preprocessed(gradient), *preprocessed(loss)])
    if state is None:
        hidden, cell = _Cell.apply(weight[:, : len(inputs)] @ inputs, None)
    else:
        hidden, cell = _Cell.apply(weight @ torch.cat([inputs, state.hidden]), state.cell)
    of_hidden, of_psi, of_last = gate_weight.split([len(hidden), 1, 1], 1)
    gates = of_hidden @ hidden + torch.addcmul(gate_bias.unsqueeze(-1), of_psi, psi)
    if state is not None:
        gates = torch.addcmul(gates, of_last, state.gates)
    rate, forget = gates.sigmoid()
    return forget * psi - rate * gradient, State(hidden, cell, gates)


class _Cell(torch.autograd.Function):
    """What an LSTM does to the values before its gates, in the order input, forget, output and new value."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        units = len(before) // 4
        after = torch.empty_like(before)
        torch.sigmoid(before[:-units], out=after[:-units])
        _tanh_(torch.mul(before[-units:], 1, out=after[-units:]))
        taken, kept, shown, new = after.chunk(4)
        cells = taken * new
        if cell is not None:
            cells.addcmul_(kept, cell)
        squashed = _tanh_(cells.clone())
        ctx.save_for_backward(after, squashed, cell)
        return shown * squashed, cells

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_hidden: Tensor, of_cells: Tensor | None) -> tuple[Tensor, Tensor | None]:
        after, squashed, cell = ctx.saved_tensors
        taken, kept, shown, new = after.chunk(4)
        result = torch.empty_like(after)
        of_taken, of_kept, of_shown, of_new = result.chunk(4)
        torch.mul(of_hidden, squashed, out=of_shown)
        own = _aten.tanh_backward(of_hidden * shown, squashed)
        own = own if of_cells is None else own.add_(of_cells)
        torch.mul(own, new, out=of_taken)
        if cell is None:
            of_kept.zero_()
        else:
            torch.mul(own, cell, out=of_kept)
        torch.mul(own, taken, out=of_new)
        units = len(own)
        _aten.sigmoid_backward.grad_input(result[:-units], after[:-units], grad_input=result[:-units])
        _aten.tanh_backward.grad_input(of_new, new, grad_input=of_new)
        return result, None if cell is None else own.mul_(kept)


def _tanh_(x: Tensor) -> Tensor:
    """In place, to rounding of its greatest values; torch's own takes six times as long as its sigmoid on a CPU."""
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


def split(values: Tensor) -> list[Tensor]:
    """``[..., coordinate]`` in parts, of which one at a time fits the caches of its device."""
    return list(values.split(_COORDINATES_AT_ONCE.get(values.device.type, 1), -1))


def replayed(
    end: Float[Tensor, " coordinate"],
    start: Float[Tensor, " coordinate"],
    gradients: Float[Tensor, "step coordinate"],
    losses: Float[Tensor, "step coordinate"],
    weights: Weights,
) -> Tensor:
    """``end``, differentiable in start and weights.

    Args:
        end: what :func:`step` has made of ``start``, without a graph.
        start: psi_0.
        gradients: of each step, constants.
        losses: likewise.
        weights: of all steps.
    """
    result: Tensor = _Replayed.apply(end, start, gradients, losses, *weights)  # type: ignore[no-untyped-call]
    return result


class _Replayed(torch.autograd.Function):
    """Nothing is kept of the steps: they are taken again, some coordinates at a time, and derived in the caches."""

    @staticmethod
    def forward(ctx: Any, end: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return end.view_as(end)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_end: Tensor) -> tuple[Tensor | None, ...]:
        start, gradients, losses, *weights = ctx.saved_tensors
        of_start, totals = [], [torch.zeros_like(w) for w in weights]
        for part in zip(*map(split, (start, gradients, losses, of_end)), strict=True):
            psi = first = part[0].detach().requires_grad_()
            own = [w.detach().requires_grad_() for w in weights]
            state: State | None = None
            with torch.enable_grad():
                for gradient, loss in zip(part[1], part[2], strict=True):
                    psi, state = step(tuple(own), psi, gradient, loss, state)
            found = torch.autograd.grad(psi, (first, *own), part[3], materialize_grads=True)
            of_start.append(found[0])
            for total, more in zip(totals, found[1:], strict=True):
                total += more
        return None, torch.cat(of_start), None, None, *totals

"""A learned optimizer of networks: an LSTM that all coordinates share, and gates that are the rates of its steps.

:func:`step` says what a step is. An LSTM over 10^5 coordinates takes longer than the network, so where gradients and
losses are constants to it, all that follows is the same once more in few passes: no coordinate then sees another, and
the steps of a few thousand of them are taken, and derived, within the caches of a CPU.
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

_COORDINATES_AT_ONCE = {"cpu": 8_192, "cuda": 262_144}
"""A CPU starts an operation on fewer of them no faster."""
_INPUTS = 5
"""Rows of what the LSTM sees that are no hidden state: one, gradient and loss."""

Weights: TypeAlias = tuple[Tensor, Tensor, Tensor]


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
        """Take so many steps.

        Args:
            start: psi_0 of each task.
            loss: of each task, ``[task]``, from psi.
            steps: how many.
            create_graph: keep what is differentiable in psi_0 and the weights.
            second_order: also through the gradients and losses of the steps.

        Returns:
            psi after them.
        """
        if create_graph and second_order:
            return self._with_graph(start, loss, steps)
        psi, seen = start.detach(), []
        weights: Weights = (self.weight.detach(), self.gate_weight.detach(), self.gate_bias.detach())
        kept = _states(len(weights[0]) // 4, psi.flatten())
        for n in range(steps):
            with torch.enable_grad():
                inputs = _inputs(psi.detach().requires_grad_(), loss)
            with torch.no_grad():
                parts = zip(*map(_split, (psi.flatten(), *inputs)), kept, strict=True)
                moved = [_advance(weights, p, g, seen_loss, own, own if n else None) for p, g, seen_loss, own in parts]
                psi = torch.cat(moved).view_as(start)
            if create_graph:
                seen.append(inputs)
        if not seen:
            return start if create_graph else psi
        gradients, losses = (torch.stack(values) for values in zip(*seen, strict=True))
        return _replayed(psi.flatten(), start.flatten(), gradients, losses, self.weights).view_as(start)

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


class State(NamedTuple):
    """What coordinates carry from a step to the next.

    Attributes:
        hidden, cell: of the LSTM that they share, ``[unit, coordinate]``.
        gates: of the input and the forget gate before the sigmoid, ``[2, coordinate]``.
    """

    hidden: Tensor
    cell: Tensor
    gates: Tensor


def step(
    weights: Weights,
    psi: Float[Tensor, " coordinate"],
    gradient: Float[Tensor, " coordinate"],
    loss: Float[Tensor, " coordinate"],
    state: State | None,
) -> tuple[Tensor, State]:
    """Coordinates after one step, with what they carry; without a state it is the first one."""
    weight, gate_weight, gate_bias = weights
    if state is None:
        units = len(weight) // 4
        state = State(*(psi.new_zeros(rows, len(psi)) for rows in (units, units, 2)))
    one = torch.ones_like(psi).unsqueeze(0)
    inputs = torch.cat([one, torch.stack([*preprocessed(gradient), *preprocessed(loss)]), state.hidden])
    taken, kept, shown, new = (weight @ inputs).chunk(4)
    cell = kept.sigmoid() * state.cell + taken.sigmoid() * new.tanh()
    hidden = shown.sigmoid() * cell.tanh()
    gates = gate_weight[:, :-1] @ torch.cat([hidden, psi.unsqueeze(0)])
    gates = gates + gate_weight[:, -1:] * state.gates + gate_bias.unsqueeze(-1)
    rate, forget = gates.sigmoid()
    return forget * psi - rate * gradient, State(hidden, cell, gates)


# -- the same in few passes ------------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    """What a step leaves for its derivatives and for the next step; coordinates are last, so that rows are whole.

    Attributes:
        inputs: of the LSTM: one, preprocessed gradient and loss, and the hidden state of the step before.
        after: input, forget and output gate of the LSTM, and the new values.
        cell: of the LSTM.
        squashed: tanh of the cell.
        hidden: of the LSTM.
        gates: of the coordinates, before the sigmoid.
        rates: and after it.
    """

    inputs: Tensor
    after: Tensor
    cell: Tensor
    squashed: Tensor
    hidden: Tensor
    gates: Tensor
    rates: Tensor

    @classmethod
    def empty(cls, units: int, psi: Tensor) -> _Kept:
        rows = (_INPUTS + units, 4 * units, units, units, units, 2, 2)
        return cls(*(psi.new_empty(r, len(psi)) for r in rows))


def _advance(weights: Weights, psi: Tensor, gradient: Tensor, loss: Tensor, kept: _Kept, last: _Kept | None) -> Tensor:
    """:func:`step`, into ``kept``, whose state may be that of ``last``; tanh is to rounding of its greatest values."""
    weight, gate_weight, gate_bias = weights
    units = len(kept.cell)
    kept.inputs[0] = 1
    for row, values in ((1, gradient), (3, loss)):
        torch.abs(values, out=kept.inputs[row]).clamp_min_(math.exp(-P)).log_().div_(P)
        torch.mul(values, math.exp(P), out=kept.inputs[row + 1]).clamp_(-1, 1)
    taken, forget, shown, new = kept.after.chunk(4)
    if last is None:
        torch.mm(weight[:, :_INPUTS], kept.inputs[:_INPUTS], out=kept.after)
    else:
        kept.inputs[_INPUTS:] = last.hidden
        torch.mm(weight, kept.inputs, out=kept.after)
    new.mul_(2)
    kept.after.sigmoid_()  # torch's tanh takes six times as long
    new.mul_(2).sub_(1)
    if last is None:
        torch.mul(taken, new, out=kept.cell)
        torch.mul(gate_weight[:, units, None], psi, out=kept.gates)
    else:
        torch.mul(forget, last.cell, out=kept.cell).addcmul_(taken, new)
        torch.mul(gate_weight[:, -1:], last.gates, out=kept.gates).addcmul_(gate_weight[:, units, None], psi)
    torch.mul(kept.cell, 2, out=kept.squashed).sigmoid_().mul_(2).sub_(1)
    torch.mul(shown, kept.squashed, out=kept.hidden)
    kept.gates.addmm_(gate_weight[:, :units], kept.hidden).add_(gate_bias.unsqueeze(-1))
    rate, share = torch.sigmoid(kept.gates, out=kept.rates)
    return torch.mul(share, psi).addcmul_(rate, gradient, value=-1)


def _derive(
    weights: Weights,
    psi: Tensor,
    gradient: Tensor,
    kept: _Kept,
    last: _Kept | None,
    of_end: Tensor,
    of_state: State | None,
    totals: Weights,
) -> tuple[Tensor, State | None]:
    """Derivatives of a step in psi and the state before it; those in the weights are added to ``totals``."""
    weight, gate_weight, _ = weights
    units = len(kept.cell)
    of_gates = torch.stack([gradient.neg(), psi]).mul_(of_end)
    _aten.sigmoid_backward.grad_input(of_gates, kept.rates, grad_input=of_gates)
    if of_state is not None:
        of_gates += of_state.gates
    totals[1][:, :units].addmm_(of_gates, kept.hidden.T)
    totals[1][:, units] += of_gates @ psi
    totals[2].add_(of_gates.sum(1))
    of_psi = torch.addcmul(gate_weight[:, units] @ of_gates, of_end, kept.rates[1])

    of_hidden = gate_weight[:, :units].T @ of_gates if of_state is None else of_state.hidden
    if of_state is not None:
        of_hidden.addmm_(gate_weight[:, :units].T, of_gates)
    taken, forget, shown, new = kept.after.chunk(4)
    of_after = torch.empty_like(kept.after)
    of_taken, of_forget, of_shown, of_new = of_after.chunk(4)
    torch.mul(of_hidden, kept.squashed, out=of_shown)
    of_cell = of_hidden.mul_(shown)
    _aten.tanh_backward.grad_input(of_cell, kept.squashed, grad_input=of_cell)
    if of_state is not None:
        of_cell += of_state.cell
    torch.mul(of_cell, new, out=of_taken)
    torch.mul(of_cell, taken, out=of_new)
    if last is None:
        of_forget.zero_()
    else:
        torch.mul(of_cell, last.cell, out=of_forget)
    _aten.sigmoid_backward.grad_input(of_after[:-units], kept.after[:-units], grad_input=of_after[:-units])
    _aten.tanh_backward.grad_input(of_new, new, grad_input=of_new)
    if last is None:
        totals[0][:, :_INPUTS].addmm_(of_after, kept.inputs[:_INPUTS].T)
        return of_psi, None
    totals[0].addmm_(of_after, kept.inputs.T)
    totals[1][:, -1] += (of_gates * last.gates).sum(1)
    return of_psi, State(weight[:, _INPUTS:].T @ of_after, of_cell.mul_(forget), of_gates.mul_(gate_weight[:, -1:]))


def _split(values: Tensor) -> tuple[Tensor, ...]:
    """``[..., coordinate]`` in parts that are computed one after the other."""
    parts: tuple[Tensor, ...] = values.split(_COORDINATES_AT_ONCE.get(values.device.type, 8_192), -1)
    return parts


def _states(units: int, psi: Tensor) -> list[_Kept]:
    """Of each part of the coordinates, room for its state alone; the rest of a step is overwritten by the next part."""
    found: list[_Kept] = []
    for part in _split(psi):
        own = _Kept.empty(units, part)
        first = found[0] if found and len(part) == found[0].cell.shape[1] else own
        found.append(first._replace(cell=own.cell, hidden=own.hidden, gates=own.gates))
    return found


def _replayed(
    end: Float[Tensor, " coordinate"],
    start: Float[Tensor, " coordinate"],
    gradients: Float[Tensor, "step coordinate"],
    losses: Float[Tensor, "step coordinate"],
    weights: Weights,
) -> Tensor:
    """``end``, which the steps have made of ``start``, differentiable in start and weights."""
    result: Tensor = _Replayed.apply(end, start, gradients, losses, *weights)  # type: ignore[no-untyped-call]
    return result


class _Replayed(torch.autograd.Function):
    """Nothing is kept of the steps: they are taken again, some coordinates at a time, and derived."""

    @staticmethod
    def forward(ctx: Any, end: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return end.view_as(end)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_end: Tensor) -> tuple[Tensor | None, ...]:
        start, gradients, losses, weight, gate_weight, gate_bias = ctx.saved_tensors
        weights = (weight, gate_weight, gate_bias)
        totals = (torch.zeros_like(weight), torch.zeros_like(gate_weight), torch.zeros_like(gate_bias))
        units, steps, of_start = len(weight) // 4, range(len(gradients)), []
        kept: list[_Kept] = []
        for psi, seen, of_losses, of_psi in zip(*map(_split, (start, gradients, losses, of_end)), strict=True):
            if not kept or len(psi) != kept[0].cell.shape[1]:
                kept = [_Kept.empty(units, psi) for _ in steps]
            path = [psi]
            for t in steps:
                path.append(_advance(weights, path[t], seen[t], of_losses[t], kept[t], kept[t - 1] if t else None))
            of_state: State | None = None
            for t in reversed(steps):
                last = kept[t - 1] if t else None
                of_psi, of_state = _derive(weights, path[t], seen[t], kept[t], last, of_psi, of_state, totals)
            of_start.append(of_psi)
        return None, torch.cat(of_start), None, None, *totals

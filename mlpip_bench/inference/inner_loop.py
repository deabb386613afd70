"""Differentiable gradient steps: the semi-amortized inference of the paper's Eq. 6."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mlpip_bench.nn import accelerator
from mlpip_bench.utils.errors import TrialError

Parameters = Mapping[str, Tensor]
Rate = float | Tensor | Parameters
"""Rate of a step: one number, a tensor where it is learned, or one for each parameter."""
InnerEngine = Literal["native", "higher"]


def adapt(
    module: nn.Module,
    parameters: Parameters,
    loss: Callable[[Callable[..., object]], Tensor],
    learning_rates: Sequence[Rate],
    *,
    first_order: bool = False,
    create_graph: bool = True,
    engine: InnerEngine = "native",
) -> dict[str, Tensor]:
    """Plain gradient descent on a task's loss, differentiable in the initial parameters.

    Args:
        module: gives the computation; its own parameters are not changed.
        parameters: psi_0, where descent starts.
        loss: takes a function with the module's signature and returns the loss, in nats, under the
            parameters of that step.
        learning_rates: one rate a step, for a loss that is a mean; a number, a tensor, or tensors named as in
            ``parameters`` (learned rates for each, which ``higher`` does not take).
        first_order: drop the second derivatives (first-order MAML): d psi / d psi_0 is the identity.
        create_graph: keep the graph back to ``parameters``; without it the result is detached and the
            memory of a step is freed at once (test time).
        engine: ``native``, or the library ``higher``, which must and does give the same numbers.

    Returns:
        The adapted parameters, named as in ``parameters``; those that are frozen in the module are as they were.

    Raises:
        TrialError: the loss does not depend on a parameter that is not frozen.
    """
    descend = _descend_higher if engine == "higher" else _descend
    with torch.enable_grad():
        if not create_graph:
            parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        adapted = descend(module, parameters, loss, learning_rates, create_graph and not first_order)
    return adapted if create_graph else {name: p.detach() for name, p in adapted.items()}


def _descend(
    module: nn.Module,
    parameters: Parameters,
    loss: Callable[[Callable[..., object]], Tensor],
    learning_rates: Sequence[Rate],
    second_order: bool,
) -> dict[str, Tensor]:
    current = dict(parameters)
    frozen = {name for name, own in module.named_parameters() if not own.requires_grad}
    for rate in learning_rates:

        def forward(*args: object, **kwargs: object) -> object:
            return functional_call(module, current, args, kwargs)  # called within this step only

        moving = {name: value for name, value in current.items() if name not in frozen}
        gradients = torch.autograd.grad(
            loss(forward), tuple(moving.values()), create_graph=second_order, allow_unused=True
        )
        known = {name: gradient for name, gradient in zip(moving, gradients, strict=True) if gradient is not None}
        if missing := [name for name in moving if name not in known]:
            raise TrialError(
                "the inner loss must depend on every parameter that is adapted; it does not on "
                f"{missing[0]}. Use it in the network, or freeze it with requires_grad_(False)."
            )
        current.update(_stepped(moving, known, rate))
    return current


def _stepped(parameters: Parameters, gradients: Parameters, rate: Rate) -> dict[str, Tensor]:
    """Parameters after one step; as one vector where starting an operation takes longer than the operation."""
    if not parameters or not accelerator.usable(next(iter(parameters.values()))):
        return {
            name: value - (rate[name] if isinstance(rate, Mapping) else rate) * gradients[name]
            for name, value in parameters.items()
        }
    flat_rate = _flat({n: rate[n].expand_as(p) for n, p in parameters.items()}) if isinstance(rate, Mapping) else rate
    flat = _flat(parameters) - flat_rate * _flat(gradients)
    parts = flat.split([value.numel() for value in parameters.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(parameters.items(), parts, strict=True)}


def _flat(tensors: Parameters) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def _descend_higher(
    module: nn.Module,
    parameters: Parameters,
    loss: Callable[[Callable[..., object]], Tensor],
    learning_rates: Sequence[Rate],
    second_order: bool,
) -> dict[str, Tensor]:
    import higher  # needed by this engine only

    # higher's own first-order mode detaches every step, and psi_0 would get no gradient at all; so the
    # graph is always kept, and first order detaches the gradients alone.
    names = [name for name, _ in module.named_parameters()]
    functional = higher.patch.monkeypatch(module, copy_initial_weights=False)
    functional.update_params([parameters[name] for name in names])
    optimizer = higher.optim.get_diff_optim(
        torch.optim.SGD(module.parameters(), lr=1.0), module.parameters(), fmodel=functional
    )
    for rate in learning_rates:
        optimizer.step(loss(functional), override={"lr": [rate]}, grad_callback=None if second_order else _detach_all)
    return dict(zip(names, functional.parameters(), strict=True))


def _detach_all(gradients: list[Tensor]) -> list[Tensor]:
    return [gradient.detach() for gradient in gradients]

"""Curvature of a log-loss at adapted parameters, as log-determinants that stay finite in many dimensions.

The curvature of a point is its generalized Gauss-Newton matrix J' G J, with J the Jacobian of the outputs, and G the
Hessian of -log p(y | outputs), which does not depend on y. For a linear layer it is the exact Hessian; for a whole
network it is the Fisher information, of which K-FAC keeps a block for each layer, as a Kronecker product of two small
matrices (Martens & Grosse 2015; for convolutions Grosse & Martens 2016).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Categorical, Distribution, Normal
from torch.nn import functional as F

from mlpip_bench.inference.distributions import where_float64_is
from mlpip_bench.inference.gradient_steps import AdaptedNetwork
from mlpip_bench.inference.method import Problem
from mlpip_bench.nn import fused
from mlpip_bench.nn.layers import Convolution, Linear
from mlpip_bench.nn.normalization import Normalization


def output_root(predictive: Distribution) -> Float[Tensor, "task point way way"]:
    """R with R R' = G, the Hessian of -log p(y | outputs) in the outputs of a softmax, or of a Gaussian's mean."""
    if isinstance(predictive, Normal):
        return (1 / predictive.stddev)[..., None, None]
    assert isinstance(predictive, Categorical)
    # (I - p 1') diag(sqrt p), with the root taken of the logarithm: that of a probability of 0 has no derivative.
    log_p: Tensor = predictive.logits.log_softmax(-1)
    p = log_p.exp().unsqueeze(-1)
    return (torch.eye(p.shape[-2]).to(p) - p) * (log_p / 2).exp().unsqueeze(-2)


def log_det(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, " *batch"]:
    """Log-determinant of positive definite matrices; in float64, since their eigenvalues span many magnitudes."""
    found: Tensor = _LogDet.apply(where_float64_is(matrix))  # type: ignore[no-untyped-call]
    return found.to(matrix.device)


class _LogDet(torch.autograd.Function):
    """Its derivative is the inverse, which takes a sixth of the time of a derivative through a Cholesky factor."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        factor = torch.linalg.cholesky(matrix.double())
        ctx.save_for_backward(factor)
        ctx.dtype = matrix.dtype
        found: Tensor = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return found.to(matrix.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        by_matrix: Tensor = gradient[..., None, None] * torch.cholesky_inverse(factor).to(ctx.dtype)
        return by_matrix


def head_log_det(
    features: Float[Tensor, "task point feature"], root: Float[Tensor, "task point way way"], points: int, tau: float
) -> Float[Tensor, " task"]:
    """Log-determinant of ``points`` times the mean curvature of a linear layer with bias, plus ``tau`` I.

    By the determinant lemma: ``points * way`` rows, in place of ``way * (feature + 1)``. In float64, since next to
    long features tau is lost in float32.

    Args:
        features: of the points that the mean is over.
        root: of :func:`output_root` at them.
        points: how many the curvature is to be of.
        tau: precision of a Gaussian prior.
    """
    (number, way), dtype, device = root.shape[1:3], features.dtype, features.device
    features, root = (where_float64_is(x).double() for x in (features, root))
    columns = root.transpose(-1, -2).flatten(1, 2)  # [task, point and way, way]
    pairs = (features @ features.mT + 1).repeat_interleave(way, 1).repeat_interleave(way, 2)
    gram = columns @ columns.mT * pairs * (points / (number * tau))
    dimension = way * (features.shape[-1] + 1)
    return (dimension * math.log(tau) + log_det(gram + torch.eye(number * way).to(gram))).to(device, dtype)


# -- K-FAC -----------------------------------------------------------------------------------------------------------


def has_kronecker_factors(problem: Problem) -> bool:
    """Whether :func:`watched` sees all layers of its backbone with parameters, those of normalization left out."""
    with torch.random.fork_rng():  # it is built to be looked at
        backbone = problem.build_backbone()
    layers = [module for module in backbone.modules() if any(True for _ in module.parameters(recurse=False))]
    return all(isinstance(layer, (Convolution, Linear, Normalization)) for layer in layers)


@dataclass(frozen=True, eq=False)
class Layer:
    """What passed through a layer with filters, or rows, of each task.

    Attributes:
        inputs: of each point at each location; of a convolution its windows, of a layer with bias with a 1.
        outputs: before normalization and activation, as they were returned.
        points: how many there are.
    """

    inputs: Float[Tensor, "task input point_and_location"]
    outputs: Tensor
    points: int

    def factors(
        self, gradients: Tensor
    ) -> tuple[Float[Tensor, "task input input"], Float[Tensor, "task output output"]]:
        """The second moments of inputs, summed over locations, and of gradients, a mean over them.

        Args:
            gradients: in the outputs; all points are in one graph, so a point's are those of its own loss.
        """
        if gradients.dim() == 4:  # [point, task and channel, height, width]
            gradients = gradients.unflatten(1, (len(self.inputs), -1)).permute(1, 2, 0, 3, 4).flatten(2)
        else:
            gradients = gradients.mT
        return (
            self.inputs @ self.inputs.mT / self.points,
            gradients @ gradients.mT / gradients.shape[-1],
        )


@contextlib.contextmanager
def watched(network: AdaptedNetwork) -> Iterator[dict[str, list[Layer]]]:
    """Within, what passes through each layer that adapts is kept by its name; a group of tasks at a time.

    Scale and shift of normalization are left out.
    """
    found: dict[str, list[Layer]] = {}

    def of_convolution(name: str, _: Convolution, arguments: tuple[Tensor, Tensor, int], outputs: Tensor) -> None:
        images, tasks = arguments[0], arguments[2]
        windows = F.unfold(images, 3, padding=1).unflatten(1, (tasks, -1))
        layer = Layer(windows.permute(1, 2, 0, 3).flatten(2), outputs, len(images))
        found.setdefault(name, []).append(layer)

    def of_linear(name: str, module: Linear, arguments: tuple[Tensor], outputs: Tensor) -> None:
        inputs = arguments[0] if module.bias is None else F.pad(arguments[0], (0, 1), value=1.0)
        found.setdefault(name, []).append(Layer(inputs.mT, outputs, inputs.shape[1]))

    hooks: list[Any] = []
    for name, module in network.named_modules():
        if isinstance(module, Convolution | Linear) and module.weight.requires_grad:
            hook = of_convolution if isinstance(module, Convolution) else of_linear
            hooks.append(module.register_forward_hook(functools.partial(hook, name)))
    try:
        with fused.plain_operations():  # others pass by the layers
            yield found
    finally:
        for hook in hooks:
            hook.remove()


def network_log_det(
    layers: dict[str, list[Layer]],
    outputs: Float[Tensor, "task point way"],
    root: Float[Tensor, "task point way way"],
    points: int,
    tau: float,
) -> Float[Tensor, " task"]:
    """Log-determinant of ``points`` times the mean curvature of a network by K-FAC, damped by ``tau``.

    Labels are those that the network expects, not those of the queries. One pass back has them: R z, with random signs
    z, has R R' for its second moment. The signs are the same for all tasks.

    Args:
        layers: of :func:`watched` around the pass that gave the outputs.
        outputs: of the network.
        root: of :func:`output_root` at them.
        points: how many the curvature is to be of.
        tau: precision of a Gaussian prior.
    """
    signs = (torch.randint(2, root.shape[1:3], device=root.device) * 2 - 1).to(root)
    passed = [layer for groups in layers.values() for layer in groups]
    gradients = torch.autograd.grad(
        outputs, [layer.outputs for layer in passed], (root @ signs.unsqueeze(-1)).squeeze(-1), create_graph=True
    )
    of_layer = dict(zip(passed, gradients, strict=True))
    total = outputs.new_zeros(len(outputs))
    for groups in layers.values():
        total = total + torch.cat([kronecker_log_det(*g.factors(of_layer[g]), points, tau) for g in groups])
    return total


def kronecker_log_det(
    inputs: Float[Tensor, "task n n"], outputs: Float[Tensor, "task m m"], points: int, tau: float
) -> Float[Tensor, " task"]:
    """Log-determinant of ``points`` times the Kronecker product of two positive semidefinite matrices, damped.

    It is (A + c sqrt(tau) I) x (B + sqrt(tau) / c I), with c^2 the ratio of their mean eigenvalues (Martens & Grosse
    2015, section 6.3): then it does not matter which of the two has a factor that either could have.
    """
    (n, m), a = (inputs.shape[-1], outputs.shape[-1]), points * inputs
    tiny = torch.finfo(a.dtype).tiny ** 0.5  # a network whose head is zero has no gradients
    means = [x.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(tiny) for x in (a, outputs)]
    ratio = (means[0] / means[1]).sqrt()[..., None, None]
    a = a + math.sqrt(tau) * ratio * torch.eye(n).to(a)
    b = outputs + math.sqrt(tau) / ratio * torch.eye(m).to(a)
    return m * log_det(a) + n * log_det(b)

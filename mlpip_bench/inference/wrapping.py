"""Models that the suite did not build and does not train, under its interface."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.nn.backbone import InputShape
from mlpip_bench.nn.weights import Outside
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.errors import TrialError, UserError, one_line
from mlpip_bench.utils.files import given_path

Outputs = Literal["probabilities", "logits"]
_LARGEST_DEFECT = 1e-3
"""What a sum of probabilities in half precision may lack to 1."""


def wrap(
    function: Callable[..., Any],
    *,
    outputs: Outputs,
    trained_on: str,
    backbone: str = "",
    network: nn.Module | None = None,
    weights: str | Path | None = None,
    input_shape: InputShape | None = None,
) -> type[Wrapped]:
    """A method out of a function that classifies the queries of one task.

    It is measured as all others are, and never trained. ``--methods my_file.py:my_model`` runs what a file has as
    ``my_model = wrap(...)``.

    Args:
        function: called with a task's ``support_x`` ``[point, channel, height, width]`` in [0, 1], ``support_y``
            ``[point]``, ``query_x`` and the number of classes ``way``; gives ``[point, way]``, a tensor or an array.
            Images are in float32, and autograd is on.
        outputs: what it gives.
        trained_on: the data that it was trained on, for tables; ``nothing`` if none.
        backbone: what its network is, for tables; left out, the class of ``network``.
        network: whose parameters are counted, and must stay as they are.
        input_shape: ``(channel, height, width)`` of the images that it takes, which ``predict`` makes of pictures; None
            where it takes any.
        weights: their file, which then is part of keys, and whose SHA-256 is in records.

    Raises:
        UserError: an argument that cannot be used.
    """
    if not callable(function):
        raise UserError(f"wrap takes a function of a task's points and classes; got a {type(function).__name__}.")
    if outputs not in get_args(Outputs):
        raise UserError(
            f"wrap must know what a function gives, outputs='probabilities' or outputs='logits'; got {outputs!r}. It "
            "is not guessed."
        )
    for name, value, kinds, words in (
        ("trained_on", trained_on, (str,), "a text"),
        ("backbone", backbone, (str,), "a text"),
        ("network", network, (nn.Module, type(None)), "a torch.nn.Module"),
        ("weights", weights, (str, Path, type(None)), "a path"),
    ):
        if not isinstance(value, kinds):
            raise UserError(f"wrap takes {name} as {words}; got a value of type {type(value).__name__}.")
    if not trained_on.strip():
        raise UserError(
            "wrap must know what a model was trained on: trained_on='ImageNet-1k', for example, or 'nothing'."
        )
    outside = {} if trained_on == "nothing" else {"what": "wrapped model", "saw": trained_on}
    if weights is not None and not outside:
        raise UserError(f"weights were trained on something; {weights} are given, and trained_on='nothing'.")
    if weights is not None:
        outside |= {**Outside.of(given_path(weights), trained_on).facts, "what": "wrapped model"}
    title = _title_of(function)
    members: dict[str, Any] = {
        "__doc__": f"The function {title}, as it is.",
        "__module__": getattr(function, "__module__", __name__),
        "function": staticmethod(function),
        "title": title,
        "outputs": outputs,
        "outside": outside,
        "network_name": backbone or (type(network).__name__ if network is not None else "its own"),
        "network": network,
        "takes": input_shape,
        "_tried": set(),
    }
    return type(title if title.isidentifier() else "Wrapped", (Wrapped,), members)


def _title_of(function: Callable[..., Any]) -> str:
    """What messages call a function: its name; of a lambda, which has none, where it is; else the class's name."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.LambdaType) and function.__name__ == "<lambda>":
        code = function.__code__
        return f"the lambda in line {code.co_firstlineno} of {Path(code.co_filename).name}"
    return getattr(function, "__name__", type(function).__name__)


class SupportSet(Delta):
    """A point mass at a support set itself, which is all that a wrapped function infers from one."""

    def __init__(self, support: Labeled) -> None:
        super().__init__(support.x, event_dim=support.x.dim() - 1)
        self.labeled = support


class Wrapped(Method[SupportSet]):
    """A function of support set and queries; :func:`wrap` makes the class of each.

    Attributes:
        function: what is asked.
        title: what messages call it.
        outputs: what it gives.
        takes: the shape of its images; None for any.
        network: its network, if it is known.
    """

    reference = "none: a model of its user's own"
    psi = "the support set itself; the function infers what it needs with each question"
    trainable = False
    in_float32 = True
    function: ClassVar[Callable[..., Any]]
    title: ClassVar[str]
    outputs: ClassVar[Outputs]
    network: ClassVar[nn.Module | None]
    takes: ClassVar[InputShape | None]
    _tried: ClassVar[set[tuple[object, ...]]]

    @property
    def parameter_count(self) -> int:
        """Those of its network."""
        return 0 if self.network is None else sum(p.numel() for p in self.network.parameters())

    @classmethod
    def check(cls, problem: Problem, settings: Any) -> None:  # noqa: ARG003  # there are none
        """Ask the function about a small task of random images, and refuse what it must not give or do."""
        if cls.takes not in (None, problem.input_shape):
            shapes = ["x".join(map(str, shape)) for shape in (cls.takes, problem.input_shape) if shape]
            raise UserError(
                f"a wrapped model takes images of the shape that it says, {shapes[0]} (channels, height, width); those "
                f"of the bench are {shapes[1]}."
            )
        tried = problem.input_shape, problem.way
        if tried in cls._tried:
            return
        images = torch.rand(2 * problem.way + 1, *problem.input_shape, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(problem.way)
        state = {} if cls.network is None else cls.network.state_dict()
        before = {name: tensor.clone() for name, tensor in state.items()}
        try:
            cls._asked(images[: problem.way], labels, images[problem.way :], problem.way)
        except TrialError as error:  # nothing is being tried yet
            raise UserError(str(error)) from error
        if any(not torch.equal(tensor, before[name]) for name, tensor in state.items()):
            raise UserError(
                f"a wrapped model stays as it is; the parameters or running averages of {cls.network_name} change when "
                "it is asked. Call its eval(), and adapt a copy."
            )
        cls._tried.add(tried)

    def amortize(self, support: Labeled) -> Posterior[SupportSet]:
        """The support set."""
        return Posterior(SupportSet(support))

    def predictive(self, q: Posterior[SupportSet], query_x: Tensor) -> Distribution:
        """What the function gives, task by task."""
        support = q.psi.labeled
        tasks = zip(support.x, support.y, query_x, strict=True)
        logits = torch.stack([self._asked(*task, support.way) for task in tasks])
        return Categorical(logits=logits.to(query_x.dtype), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries; nothing is trained by it."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)

    @classmethod
    def _asked(cls, support_x: Tensor, support_y: Tensor, query_x: Tensor, way: int) -> Tensor:
        """Logits ``[point, way]``, checked."""
        name, shape = cls.title, (len(query_x), way)
        rule = f"a wrapped function gives a row for each query with a number for each class, {shape}"
        try:
            with torch.enable_grad():
                given = cls.function(support_x.float(), support_y, query_x.float(), way)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever somebody's code raises
            raise TrialError(f"wrapped {name} fails: {one_line(error)}.") from error
        try:
            if isinstance(given, tuple):  # two arrays of one shape would be stacked
                raise TypeError
            found = torch.as_tensor(given, device=query_x.device).detach().double()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TrialError(
                f"{rule}, as one tensor or array; {name} gives {_described(given)}. Return the {cls.outputs} alone."
            ) from error
        if found.shape != shape:
            raise TrialError(f"{rule}; {name} gives {tuple(found.shape)}.")
        if not found.amax(-1).isfinite().all():  # one class of probability 0, a logit of minus infinity, is a number
            raise TrialError(f"a wrapped function gives numbers; {name} gives NaN or infinity.")
        if cls.outputs == "logits":
            return found
        sums = found.sum(-1)
        if found.min() < 0 or (sums - 1).abs().max() > _LARGEST_DEFECT:
            raise TrialError(
                f"rows of probabilities are at least 0 and sum to 1; those of {name} begin at {float(found.min()):.4g} "
                f"and sum to {float(sums.min()):.4g} to {float(sums.max()):.4g}. If they are logits, say "
                "outputs='logits'."
            )
        return (found / sums.unsqueeze(-1)).log()


def _described(given: object) -> str:
    """What a function gave in place of an array."""
    if isinstance(given, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in given) or 'nothing'}"
    return "None" if given is None else f"a {type(given).__name__}"

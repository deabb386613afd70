"""How numbers are computed, the same for all methods of a run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from mlpip_bench.utils.choices import Compile, Graph, Precision
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.settings import NO_KEY

if TYPE_CHECKING:
    import torch


class _InThread(threading.local):
    """What holds in a thread; not a ``ContextVar``, which torch's compiler cannot read within a function."""

    precision: Precision = "float32"
    """Of backbones."""


_in_thread = _InThread()


def backbone_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Within, torch computes as the run's :class:`Numerics` have it of backbones."""
    import torch

    # Without autocast's cache: it would keep the bfloat16 copy of a parameter that a training step then changes.
    enabled = _in_thread.precision == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)


@dataclass(frozen=True)
class Numerics:
    """How numbers are computed, the same for all methods of a run.

    Attributes:
        precision: ``float32`` throughout; ``tf32`` for matrix products and convolutions of a GPU; ``bf16`` for those of
            the backbone, on any device. Parameters, statistics of normalization, features, and all that is made of
            features (heads, posteriors, likelihoods) are float32 or float64 in any case. It is of training and of
            timings: predictions that are scored are made in float32.
        compile: mode of ``torch.compile`` for what is done to a test task; ``reduce-overhead`` is CUDA graphs on a GPU.
            Training is never compiled, since torch does not compile second derivatives.
        graph: whether a training step is a CUDA graph; ``auto`` is yes on a GPU. Its numbers are the same, so it is no
            part of a key.
    """

    precision: Precision = "float32"
    compile: Compile = "off"
    graph: Graph = field(default="auto", metadata={NO_KEY: True})

    def check(self, device: torch.device) -> None:
        """Make sure that a device can do it.

        Raises:
            UserError: an unknown word, or something that takes a GPU.
        """
        for name, value, known in (
            ("precision", self.precision, get_args(Precision)),
            ("compile", self.compile, get_args(Compile)),
            ("graph", self.graph, get_args(Graph)),
        ):
            if value not in known:
                raise unknown_name(name, value, known)
        for option in (self.precision, self.compile, f"graph {self.graph}"):
            if option in ("tf32", "reduce-overhead", "graph on") and device.type != "cuda":
                raise UserError(f"{option} is a matter of CUDA GPUs; the device of this run is {device}. Leave it out.")

    def warning(self, device: torch.device) -> str | None:
        """What a user should know of a device that can do it, but not well."""
        if self.precision != "bf16" or _has_bf16_units(device):
            return None
        return f"{device} has no units for bfloat16: numbers are right, and take longer than in float32"

    def prepare(self) -> None:
        """Use torch's compiler once, if it is to be used: what it changes in the process then is no plugin's doing."""
        if self.compile != "off":
            import torch

            torch.compile(torch.sin, mode=self.compile)(torch.zeros(2))
            sys.setrecursionlimit(max(sys.getrecursionlimit(), 2000))  # as it does where it keeps no earlier result

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within, torch computes so; afterward as before."""
        import torch

        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn  # by default torch's convolutions are TF32
        before = matmul.allow_tf32, cudnn.allow_tf32
        in_backbones, _in_thread.precision = _in_thread.precision, self.precision
        try:
            matmul.allow_tf32 = cudnn.allow_tf32 = self.precision == "tf32"
            yield
        finally:
            _in_thread.precision = in_backbones
            matmul.allow_tf32, cudnn.allow_tf32 = before


SCORED = Numerics()
"""How predictions are computed that are scored, whatever their model was trained in."""


def _has_bf16_units(device: torch.device) -> bool:
    import torch

    if device.type == "cuda":
        native: bool = torch.cuda.is_bf16_supported(including_emulation=False)
        return native
    capabilities = getattr(torch.cpu, "get_capabilities", None)  # torch 2.10 has none, and then nothing is said
    if device.type == "mps" or capabilities is None:
        return True
    return any(there for name, there in capabilities().items() if "bf16" in name)

"""How numbers are computed, the same for all methods of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from mlpip_bench.utils.choices import Compile, Precision
from mlpip_bench.utils.errors import UserError, unknown_name

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Numerics:
    """How numbers are computed, the same for all methods of a run.

    Attributes:
        precision: ``float32`` throughout; ``tf32`` for matrix products and convolutions of a GPU; ``bf16`` for them
            on any device, with parameters and log-densities at evaluation as they are otherwise.
        compile: mode of ``torch.compile`` for what is done to a test task; ``reduce-overhead`` is CUDA graphs on a GPU.
            Training is never compiled, since torch does not compile second derivatives.
    """

    precision: Precision = "float32"
    compile: Compile = "off"

    def check(self, device: torch.device) -> None:
        """Make sure that a device can do it.

        Raises:
            UserError: an unknown word, or something that takes a GPU.
        """
        for name, value, known in (
            ("precision", self.precision, get_args(Precision)),
            ("compile", self.compile, get_args(Compile)),
        ):
            if value not in known:
                raise unknown_name(name, value, known)
        for option in (self.precision, self.compile):
            if option in ("tf32", "reduce-overhead") and device.type != "cuda":
                raise UserError(f"{option} is a matter of CUDA GPUs; the device of this run is {device}. Leave it out.")

    @contextlib.contextmanager
    def applied(self, device: torch.device) -> Iterator[None]:
        """Within, torch computes so; afterward as before."""
        import torch

        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn  # by default torch's convolutions are TF32
        before = matmul.allow_tf32, cudnn.allow_tf32
        try:
            matmul.allow_tf32 = cudnn.allow_tf32 = self.precision == "tf32"
            with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = before

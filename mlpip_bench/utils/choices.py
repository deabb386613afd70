"""Words that a user chooses from; here, where nothing imports torch."""

from __future__ import annotations

from typing import Literal, get_args

NormMode = Literal["transductive", "metabn", "tasknorm", "running", "layer", "instance", "own"]
"""Normalization modes; :mod:`mlpip_bench.nn.normalization` says what each is."""

OWN_NORM: NormMode = "own"
"""Ordinary batch norm of a network: over a batch in training, by running averages at test."""
NORM_MODES: tuple[NormMode, ...] = tuple(mode for mode in get_args(NormMode) if mode != OWN_NORM)
"""The suite's own."""
DEFAULT_NORM: NormMode = "metabn"

Precision = Literal["float32", "tf32", "bf16"]
Compile = Literal["off", "default", "reduce-overhead"]
Graph = Literal["auto", "on", "off"]

Log = Literal["tensorboard", "wandb", "mlflow"]
"""Where a training can be watched: each the name of a library, and of the extra that installs it."""

SourceChoice = Literal["auto", "real", "procedural"]
"""Real data where it is found, else the stand-in; or one of the two."""

"""Small trained models that ship with the suite: each an export of a committed record, with its model card."""

from __future__ import annotations

from pathlib import Path


def exports() -> dict[str, Path]:
    """The file of each model, by its name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.safetensors"))}

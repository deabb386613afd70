"""Tasks whose classes have unequal numbers of queries.

Reference: Veilleux, Boudiaf, Piantanida & Ben Ayed, Realistic Evaluation of Transductive Few-Shot Learning, NeurIPS
2021: the shares of a task's classes are from a Dirichlet distribution with one concentration for all classes, 2 there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def queries_per_class(available: Counts, total: int, concentration: float, rng: np.random.Generator) -> Counts:
    """Numbers of queries with random shares, ``[task, way]``, each task's ``total`` together.

    A class without enough images gives all that it has, and the others share the rest in their proportions.

    Args:
        available: images that a class has for queries, ``[task, way]``; ``total`` or more of a task.
        total: queries of a task.
        concentration: of the symmetric Dirichlet distribution; larger is more equal.
        rng: draws the shares.
    """
    tasks, way = available.shape
    shares = rng.dirichlet(np.full(way, concentration), size=tasks)
    return np.stack([_dealt(total, share, most) for share, most in zip(shares, available, strict=True)])


def _dealt(total: int, shares: NDArray[np.float64], available: Counts) -> Counts:
    full = np.zeros(len(shares), bool)
    while True:
        wanted = _in_proportion(total - available[full].sum(), np.where(full, 0.0, shares), ~full)
        over = ~full & (wanted > available)
        if not over.any():
            dealt: Counts = np.where(full, available, wanted)
            return dealt
        full |= over


def _in_proportion(total: int, weights: NDArray[np.float64], among: NDArray[np.bool_]) -> Counts:
    """Whole numbers with this sum: rounded down, and one more where most was cut off."""
    if weights.sum() <= 0:  # shares so small that they are 0
        weights = among.astype(float)
    exact = total * weights / weights.sum()
    found: Counts = np.floor(exact).astype(np.int64)
    missing = total - int(found.sum())
    found[np.argsort(found - exact, kind="stable")[:missing]] += 1
    return found

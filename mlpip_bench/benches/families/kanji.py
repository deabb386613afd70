"""Kanji: characters as many typefaces draw them, enough of them for tasks of 1,000 classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlpip_bench.benches.drawings import Drawings

if TYPE_CHECKING:
    from mlpip_bench.datasets.preparing.preparer import Preparer


class Kanji(Drawings):
    """Thousands of characters, each as 20 typefaces or more draw it."""

    key = "kanji"
    described = "Kanji: the characters of JIS X 0208 as many typefaces draw them, 28x28"
    title = "Kanji"
    needs = "kanji/ as `data prepare kanji` makes it; no stand-in"
    examples = ("kanji5w1s", "kanji20w1s", "kanji100w1s", "kanji1000w1s")
    default_methods = ("maml", "protonets", "versa")

    def preparer(self) -> Preparer:
        """What makes them of the installed fonts."""
        from mlpip_bench.datasets.preparing.kanji import PREPARER

        return PREPARER

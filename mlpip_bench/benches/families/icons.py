"""Icons: what many icon sets draw of the same thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlpip_bench.benches.drawings import Drawings

if TYPE_CHECKING:
    from mlpip_bench.datasets.preparing.preparer import Preparer


class Icons(Drawings):
    """Concepts such as an anchor, each as 20 icon sets or more draw it."""

    key = "icons"
    described = "Icons: things as many icon sets draw them, 28x28"
    title = "Icons"
    needs = "icons/ as `data prepare icons` makes it; no stand-in"
    examples = ("icons5w1s", "icons5w5s", "icons20w1s")
    default_methods = ("maml", "protonets", "versa")

    def preparer(self) -> Preparer:
        """What makes them of an npm package."""
        from mlpip_bench.datasets.preparing.icons import PREPARER

        return PREPARER

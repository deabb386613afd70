"""Meta-learners as approximate probabilistic inference (ML-PIP), compared fairly."""

from __future__ import annotations

import importlib
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlpip_bench import nn as nn
    from mlpip_bench import testing as testing
    from mlpip_bench.api.benches import add_data as add_data
    from mlpip_bench.api.benches import load_bench as load_bench
    from mlpip_bench.api.exporting import export as export
    from mlpip_bench.api.models import evaluate as evaluate
    from mlpip_bench.api.models import fit as fit
    from mlpip_bench.api.models import load as load
    from mlpip_bench.api.runs import read_records as read_records
    from mlpip_bench.api.runs import rescore as rescore
    from mlpip_bench.api.runs import run as run
    from mlpip_bench.evaluation.metrics import Metric as Metric
    from mlpip_bench.evaluation.protocol import EvalProtocol as EvalProtocol
    from mlpip_bench.inference import distributions as distributions
    from mlpip_bench.inference.method import Method as Method
    from mlpip_bench.inference.method import Posterior as Posterior
    from mlpip_bench.inference.method import Problem as Problem
    from mlpip_bench.inference.wrapping import wrap as wrap

__version__ = "0.2.0.dev0"

# In a checkout the plugins lie next to this package; a wheel has them in it. Either way they are imported from here.
_folder = _Path(__file__).resolve().parent
if not (_folder / "methods").is_dir():
    __path__.append(str(_folder.parent))

_PUBLIC = {
    **dict.fromkeys(("add_data", "load_bench"), "mlpip_bench.api.benches"),
    **dict.fromkeys(("evaluate", "fit", "load"), "mlpip_bench.api.models"),
    **dict.fromkeys(("read_records", "rescore", "run"), "mlpip_bench.api.runs"),
    **dict.fromkeys(("Method", "Posterior", "Problem"), "mlpip_bench.inference.method"),
    "export": "mlpip_bench.api.exporting",
    "EvalProtocol": "mlpip_bench.evaluation.protocol",
    "wrap": "mlpip_bench.inference.wrapping",
    "Metric": "mlpip_bench.evaluation.metrics",
}
"""Where the names of the public API are; they are imported when they are asked for, since torch takes a second."""

_MODULES = {
    "distributions": "mlpip_bench.inference.distributions",
    "nn": "mlpip_bench.nn",
    "testing": "mlpip_bench.testing",
}

__all__ = ["__version__", *sorted(_PUBLIC), *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_MODULES})

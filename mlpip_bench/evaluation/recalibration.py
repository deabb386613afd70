"""Temperature scaling: class probabilities of a trained model, made sharper or flatter by one number.

Reference: Guo, Pleiss, Sun & Weinberger, On Calibration of Modern Neural Networks, ICML 2017, section 4.2.
The temperature is the one with the least NLL on the validation tasks, by the rule that ``rescore`` has for kept
predictions. The most probable class stays what it is.
"""

from __future__ import annotations

import copy
import math
from types import MethodType
from typing import Any

from torch import Tensor
from torch.distributions import Categorical, Distribution

from mlpip_bench.evaluation.keeping import to_keep
from mlpip_bench.evaluation.predict import over_classes, predict
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.records.rescoring import LOG_TEMPERATURES, temperature
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.utils.errors import TrialError


def fitted_temperature(method: Method[Any], validation: Stream, tasks: int) -> float:
    """The temperature of a model, fitted on its predictions of the first validation tasks.

    Raises:
        TrialError: no temperature can be fitted to them.
    """
    try:
        return temperature(to_keep(predict(method, validation, tasks), validation))
    except ValueError as error:
        raise TrialError(f"a temperature is fitted to predictions of validation tasks; {error}.") from error


def at_an_end(temperature: float) -> bool:
    """Whether a fitted temperature is at an end of what is searched, beyond which another may be better."""
    return min(abs(math.log(temperature) - end) for end in LOG_TEMPERATURES) < 1e-3


def recalibrated(method: Method[Any], temperature: float) -> Method[Any]:
    """The same model, parameters and all, whose predictives are softmax(log p / temperature)."""
    plain = method.predictive.__func__  # type: ignore[attr-defined]  # a bound method has it

    def predictive(self: Method[Any], q: Posterior[Any], query_x: Tensor) -> Distribution:
        logits = over_classes(plain(self, q, query_x)).logits  # type: ignore[attr-defined]  # of classes
        return Categorical(logits=logits / temperature, validate_args=False)

    other = copy.copy(method)
    other.predictive = MethodType(predictive, other)  # type: ignore[method-assign]
    return other

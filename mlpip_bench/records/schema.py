"""What the parts of a record may hold: a record is input from strangers, and tables and figures rely on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, AllowInfNan, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from mlpip_bench.utils.provenance import Source

LONGEST_NAME = 100
_NAME = re.compile(rf"\w[^/\\]{{0,{LONGEST_NAME - 1}}}")
_LARGEST = 1e100  # sums and squares of so many are finite


def checked_name(name: str) -> str:
    """A name that files are named after, which must stay in their folder, and that is shown.

    Raises:
        ValueError: it cannot be one.
    """
    if not _NAME.fullmatch(name) or not name.isprintable():
        raise ValueError(
            f"names must be parts of file names: 1 to {LONGEST_NAME} characters that can be shown, of which the first "
            f"is a letter, a digit or _, and none is / or \\; got {name[:LONGEST_NAME]!r}"
        )
    return name


Name = Annotated[str, AfterValidator(checked_name)]


def _shown(text: str) -> str:
    if not text.isprintable():
        raise ValueError("texts must be of characters that can be shown, without line breaks or control characters")
    return text


Text = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_shown)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0, le=1e12), AllowInfNan(False)]
Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST), AllowInfNan(False)]
Condition = Annotated[int, Field(ge=-(2**53), le=2**53)] | Annotated[float, Field(ge=-(2**53), le=2**53)]
"""A number that says how something was tested."""
Size = Annotated[int, Field(ge=1, le=10**6)]
"""A way, a shot, or a number of queries."""

_Scalar: TypeAlias = bool | Annotated[int, Field(ge=-(2**63), le=2**63)] | Number | Text | None
_Value: TypeAlias = _Scalar | Annotated[list[_Scalar], Field(max_length=1000)]
_Values: TypeAlias = Annotated[dict[Text, _Value], Field(max_length=1000)]


_Flat: TypeAlias = _Value | dict[Text, _Value]


class _Part(BaseModel):
    """Some of what a part of a record says; what has a default need not be there."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Config(_Part):
    norm: Name
    preset: Name
    iterations: Count
    tasks_per_batch: Size
    settings: _Values
    pretraining: _Values = {}
    init: _Values = {}


class _DataSet(_Part):
    name: Name
    source: Source
    fingerprint: Text
    options: _Values


class _TestData(_DataSet):
    family: Name


class _Data(_DataSet):
    training_classes: Size | None = None
    test_classes: Size | None = None
    test_on: _TestData | None = None


class _Backbone(_Part):
    name: Text
    spec: _Values
    input_shape: Annotated[list[Count], Field(max_length=8)] = []


def _of_an_iteration(validation: dict[str, float]) -> dict[str, float]:
    if "iteration" not in validation:
        raise ValueError("each validation of a training must say after which iteration it was")
    return validation


class _Training(_Part):
    iterations: Count = 0
    tasks_seen: Count = 0
    seconds: Seconds = 0.0
    best_iteration: Annotated[int, Field(ge=-1, le=2**53)] = -1
    history: list[Annotated[dict[Text, Number], AfterValidator(_of_an_iteration)]] = []
    history_seconds: list[Seconds | None] = []
    chosen: dict[Text, Count] = {}
    pretraining: dict[Text, _Scalar] = {}
    outside: bool = False
    tuning: dict[Text, _Flat | dict[Text, _Flat] | Annotated[list[dict[Text, _Flat]], Field(max_length=100_000)]] = {}


class _Code(_Part):
    numbers: Count = 0
    place: Text = ""
    plugins: dict[Text, Text] = {}
    packages: dict[Text, Text] = {}
    checks: dict[Text, list[Text]] = {}


class _Environment(_Part):
    code: _Code = _Code()
    session: Text = ""


_ANY: TypeAdapter[Any] = TypeAdapter(
    dict[Text, _Flat | dict[Text, _Flat] | list[dict[Text, _Value]]], config=ConfigDict(strict=True)
)
"""Whatever else a part says, in bounds."""


def _part(model: type[_Part]) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    def check(value: Mapping[str, Any]) -> Mapping[str, Any]:
        _ANY.validate_python({name: held for name, held in value.items() if name not in model.model_fields})
        model.model_validate(value)
        return value  # as it is written

    return check


Json = Mapping[str, Any]
Config = Annotated[Json, AfterValidator(_part(_Config))]
Data = Annotated[Json, AfterValidator(_part(_Data))]
BackboneFacts = Annotated[Json, AfterValidator(_part(_Backbone))]
Training = Annotated[Json, AfterValidator(_part(_Training))]
Environment = Annotated[Json, AfterValidator(_part(_Environment))]

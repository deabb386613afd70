"""The names of benches, and what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.naming import family_of

LARGEST_NUMBER = 10_000
"""In a bench's name; no data set here has so many classes, or images in one."""


@dataclass(frozen=True)
class BenchSpec:
    """A bench: a task family, and what its tasks are trained and tested with.

    Attributes:
        name: the family's name, and its ``naming`` filled in; for example ``mini5w5s``.
        family: registered name of the task family.
        way: classes of a task; 1 where there are none.
        shot: support points per class; support points in regression, given views in reconstruction.
        numbers: all numbers of the name, by field.
    """

    name: str
    family: str
    way: int
    shot: int
    numbers: tuple[tuple[str, int], ...] = ()


def read_name(name: str, naming: str, defaults: Mapping[str, int]) -> BenchSpec | None:
    """What a bench's name says; None where it is not of the form.

    Args:
        name: such as ``omni5w1s``.
        naming: what follows the family's name, with fields in braces, such as ``{way}w{shot}s``.
        defaults: of ``way`` and ``shot``, where the name has no such number.

    Raises:
        UserError: a number that is too small or too large.
    """
    family = family_of(name)
    match = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>\\d+)", naming), name.removeprefix(family))
    if match is None:
        return None
    if longest := [digits for digits in match.groupdict().values() if len(digits) > len(str(LARGEST_NUMBER))]:
        raise UserError(f"a number of a bench is at most {LARGEST_NUMBER}; got one of {len(longest[0])} digits.")
    numbers = {field: int(digits) for field, digits in match.groupdict().items()}
    for field, value in numbers.items():
        least = 2 if field == "way" else 1
        if value < least:
            raise UserError(f"{field} of a bench is at least {least}; {name!r} has {value}.")
        if value > LARGEST_NUMBER:
            raise UserError(f"{field} of a bench is at most {LARGEST_NUMBER}; got {name!r}.")
    way, shot = ({**defaults, **numbers}[field] for field in ("way", "shot"))
    return BenchSpec(family + naming.format(**numbers), family, way, shot, tuple(numbers.items()))


def grammar(namings: Mapping[str, str]) -> str:
    """How names of benches are formed, in one sentence.

    Args:
        namings: by family.
    """
    families: dict[str, list[str]] = {}
    for family, naming in namings.items():
        families.setdefault(naming, []).append(family)
    forms = (f"{'|'.join(of)}{form.replace('{', '<').replace('}', '>')}" for form, of in families.items())
    return f"Any number works in {', '.join(forms)}; for example omni10w3s."

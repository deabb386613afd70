"""The names of benches, and what they say."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
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
        way: classes of a task; 1 where there are none. The most of them where each task has a number of its own.
        shot: support points per class; support points in regression, given views in reconstruction. Likewise the most.
        numbers: all numbers of the name, by field.
        least: where the name has a range, such as ``2..20``, its lower end, by field.
    """

    name: str
    family: str
    way: int
    shot: int
    numbers: tuple[tuple[str, int], ...] = ()
    least: tuple[tuple[str, int], ...] = ()

    @property
    def fields(self) -> dict[str, str]:
        """Its numbers and ranges as the name has them, by field."""
        least = dict(self.least)
        return {field: f"{least[field]}..{most}" if field in least else str(most) for field, most in self.numbers}

    def range_of(self, field: str) -> tuple[int, int]:
        """The least and the largest number that tasks have of ``way`` or ``shot``."""
        most: int = getattr(self, field)
        return dict(self.least).get(field, most), most


def read_name(name: str, naming: str, defaults: Mapping[str, int], ranges: Collection[str] = ()) -> BenchSpec | None:
    """What a bench's name says; None where it is not of the form.

    Args:
        name: such as ``omni5w1s``, or ``omni2..20w1..10s``.
        naming: what follows the family's name, with fields in braces, such as ``{way}w{shot}s``.
        defaults: of ``way`` and ``shot``, where the name has no such number.
        ranges: fields that may be a range.

    Raises:
        UserError: a number that is too small or too large, or a range where there may be none.
    """
    family = family_of(name)
    match = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>[\\d.]+)", naming), name.removeprefix(family))
    if match is None or not all(map(_NUMBERS.fullmatch, match.groupdict().values())):
        return None
    texts = {field: text.split("..") for field, text in match.groupdict().items()}
    for field, ends in texts.items():
        _check(name, field, ends, is_range_allowed=field in ranges)
    numbers = {field: int(ends[-1]) for field, ends in texts.items()}
    least = tuple((field, int(ends[0])) for field, ends in texts.items() if len(ends) > 1)
    way, shot = ({**defaults, **numbers}[field] for field in ("way", "shot"))
    found = BenchSpec("", family, way, shot, tuple(numbers.items()), least)
    return dataclasses.replace(found, name=family + naming.format(**found.fields))


_NUMBERS = re.compile(r"\d+(\.\.\d+)?")


def _check(name: str, field: str, ends: Sequence[str], *, is_range_allowed: bool) -> None:
    if longest := [digits for digits in ends if len(digits) > len(str(LARGEST_NUMBER))]:
        raise UserError(f"a number of a bench is at most {LARGEST_NUMBER}; got one of {len(longest[0])} digits.")
    least = 2 if field == "way" else 1
    for value in map(int, ends):
        if value < least:
            raise UserError(f"{field} of a bench is at least {least}; {name!r} has {value}.")
        if value > LARGEST_NUMBER:
            raise UserError(f"{field} of a bench is at most {LARGEST_NUMBER}; got {name!r}.")
    if len(ends) > 1 and not is_range_allowed:
        raise UserError(f"{field} may be a range only where tasks are drawn from classes of images; got {name!r}.")
    if len(ends) > 1 and int(ends[0]) >= int(ends[1]):
        raise UserError(f"a range of a bench goes from a number to a larger one; {field} of {name!r} does not.")


def grammar(namings: Mapping[str, str]) -> str:
    """How names of benches are formed, in one sentence.

    Args:
        namings: by family.
    """
    families: dict[str, list[str]] = {}
    for family, naming in namings.items():
        families.setdefault(naming, []).append(family)
    forms = (f"{'|'.join(of)}{form.replace('{', '<').replace('}', '>')}" for form, of in families.items())
    return (
        f"Any number works in {', '.join(forms)}; for example omni10w3s. Way and shot of classes of images may be "
        "ranges, as in omni2..20w1..10s."
    )

"""What names of benches say, without a look at what is installed."""

from __future__ import annotations

import re

_ON = re.compile(r"(?<=\ds)-on-")


def with_test_data(bench: str, family: str) -> str:
    """The name under which records are kept of models of a bench that are tested on other data."""
    return f"{bench}-on-{family}"


def bench_of(name: str) -> str:
    """The bench that a record's model was trained on."""
    return _ON.split(name, maxsplit=1)[0]


def family_of(name: str) -> str:
    """The part of a bench's name that names its task family.

    It is what stands before the first digit; of a family whose own name has digits, what stands before the hyphen that
    separates them from the bench's: ``fc100`` of ``fc100-5w1s``.
    """
    name = bench_of(name)
    before, hyphen, numbers = name.rpartition("-")
    if hyphen and numbers[:1].isdigit() and any(map(str.isdigit, before)):
        return before
    return re.split(r"\d", name, maxsplit=1)[0]

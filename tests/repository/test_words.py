"""Code, messages and pages are in plain American English: no dialect of this project's own, no British spelling."""

import re
import subprocess

import pytest

from builders import REPOSITORY

DIALECT = ("told", "apart", "beside", "alike", "askings", "bites?", "house", "drills?")
"""Words of which the plain ones are: said, separate, next to, in the same way, requests, finds, repository, tests."""

ISE = (
    "amorti", "author", "categor", "character", "custom", "emphas", "factor", "final", "general", "initial", "italic",
    "local", "marginal", "maxim", "minim", "normal", "optim", "organ", "parametr", "parameter", "penal", "random",
    "real", "regular", "serial", "special", "standard", "summar", "token", "util", "vector", "visual",
)  # fmt: skip
BRITISH = (
    rf"(re|un)?({'|'.join(ISE)})is(e|es|ed|er|ers|ing|ation|ations)",
    "colou(r|rs|red|ring)",
    "(cent|met|fib|theat|lit)re(s|d)?",
    "grey(s|er|ish)?",
    "(behavi|fav|hon|neighb|lab|hum|rum)our(s|ed|ing|able|hood|ite)?",
    "licen(ce|ces)",
    "(label|model|cancel|travel|signal|channel|total|level)(led|ling|ler|lers)",
    "catalogue(s|d)?",
    "(anal|paral|catal)ys(e|ed|er|ers|ing)",
    "artefact(s)?",
    "literal(ly)? (objective|bound|reading|form|one)",  # of several readings of a paper, none is literal
    "defence|offence|programme|judgement|whilst|amongst|ageing|sceptical|acknowledgement",
)

ALLOWED = (
    'seed_from("initialisation", ',  # a part of every seed of initial parameters: another spelling moves all numbers
    # Tests of speed, whose names are those of the measurements in results/timing/benchmarks.json:
    "_step_beside_",
    "_evaluation_beside_",
    "test_stream_beside",
    '"home house"',  # names of an icon
    "`Labelled` is `Labeled`",  # CHANGELOG, of a name that was changed
)
"""Texts that are left out where they stand as they are."""

WORDS = re.compile(rf"(?<![A-Za-z])({'|'.join((*DIALECT, *BRITISH))})(?![A-Za-z])", re.IGNORECASE)


def found_in(text: str) -> list[str]:
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    return [
        f"line {number}: {match[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for match in WORDS.finditer(line)
    ]


def written_files() -> list[str]:
    """Tracked code and pages, but this file and what is made from records."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    names = [name for name in listed.stdout.splitlines() if (REPOSITORY / name).is_file()]
    return [n for n in names if not n.startswith("results/") and n != "tests/repository/test_words.py"]


@pytest.mark.parametrize(
    "text",
    ["He was told so.", "set apart", "Beside it", "runs_apart", "initialisation", "Labelled", "grey", "a neighbour's"],
)
def test_such_a_word_is_found(text):
    assert len(found_in(text)) == 1


@pytest.mark.parametrize("text", ["besides a department", "precise noise", "labeled, analyses", "household", "center"])
def test_others_are_not(text):
    assert not found_in(text)


def test_no_file_has_such_words():
    files = written_files()
    if not files:
        pytest.skip("needs a git checkout")
    found = {name: words for name in files if (words := found_in((REPOSITORY / name).read_text(encoding="utf-8")))}
    assert not found, "\n".join(f"{name}: {', '.join(words)}" for name, words in found.items())

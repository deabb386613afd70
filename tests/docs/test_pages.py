"""What docs/ and README link to is there, and what they say of the paper's numbering is what the paper says."""

import pkgutil
import re

import pytest

from builders import REPOSITORY

DOCS = REPOSITORY / "docs"

# Counted in the paper's source, which test_the_numbering_is_that_of_the_papers_source does where it is there.
NUMBERS = {
    "Equations": [*map(str, range(1, 13)), "A.1", "A.2", "A.3", "A.4", "A.5", "B.1", "B.2", "B.3", "C.1", "C.2"],
    "Tables": ["1", "2", "3", "D.1", "D.2", "D.3", "D.4", "E.1", "E.2", "E.3", "E.4"],
    "Figures": ["1", "2", "3", "4", "5", "6", "B.1", "B.2"],
}


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """What stands below a heading of the second level."""
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return found


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of the tables in a text, without their heads."""
    tables = re.findall(r"^\|.*\n\|[ :|-]+\n((?:\|.*\n?)+)", text, re.M)
    lines = "".join(table if table.endswith("\n") else f"{table}\n" for table in tables).splitlines()
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in DOCS.glob("*.md"))])
def test_links_lead_to_files(page):
    path = REPOSITORY / page
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s#]+)", text):
        assert re.match(r"https?://", target) or (path.parent / target).exists(), target


# -- the map from the paper ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_number_of_the_paper_is_on_the_map(kind):
    table = rows(section(read("paper.md"), kind))
    assert [row[0] for row in table] == NUMBERS[kind]
    for number, what, code, command in table:
        assert what, number
        assert code, number
        assert command or code.startswith(("not drawn", "not computed")), number


def test_everything_that_the_map_names_is_there():
    named = re.findall(r"`((?:mlpip_bench|methods|protocols)/[\w/]+)\.py` ((?:`[\w.]+`(?:, )?)+)", read("paper.md"))
    assert len(named) > 40
    for module, names in named:
        assert (REPOSITORY / f"{module}.py").is_file()
        for name in re.findall(r"`([\w.]+)`", names):
            imported = "mlpip_bench." + module.removeprefix("mlpip_bench/").replace("/", ".")  # as the wheel has it
            pkgutil.resolve_name(f"{imported}:{name}")


def test_every_path_that_the_architecture_names_is_there():
    named = set(re.findall(r"`((?:mlpip_bench|methods|protocols)/[\w/]*(?:\.py)?)`", read("architecture.md")))
    assert len(named) > 30
    assert not [path for path in named if not (REPOSITORY / path).exists()]


def test_the_numbering_is_that_of_the_papers_source():
    source = REPOSITORY.parent / "shared" / "paper.tex"
    if not source.is_file():
        pytest.skip(f"needs the paper's source, {source}")
    body, _, appendix = re.sub(r"(?<!\\)%.*", "", source.read_text(encoding="utf-8")).partition(r"\appendix")
    parts = {"": body} | {
        f"{letter}.": part for letter, part in zip("ABCDE", appendix.split(r"\section{")[1:], strict=True)
    }

    def numbered(part: str, environment: str) -> list[str]:
        """What has a number: equations unless they say \\nonumber, figures and tables by their captions."""
        found = re.findall(rf"\\begin{{{environment}}}(.*?)\\end{{{environment}}}", part, re.S)
        return [
            text for text in found if r"\nonumber" not in text and (environment == "equation" or r"\caption" in text)
        ]

    for kind, numbers in NUMBERS.items():
        environment = kind.lower().removesuffix("s")
        assert numbers == [
            f"{prefix}{number}"
            for prefix, part in parts.items()
            for number, _ in enumerate(numbered(part, environment), 1)
        ]
    captions = [re.search(r"\\caption\{(\w+)", text)[1] for text in numbered(body, "table")]
    assert captions == ["Negative", "View", "Accuracy"]

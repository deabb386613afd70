"""The report's numbers and words against the records it is made from, read with the standard library's parser."""

import dataclasses
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import style
from scipy import stats

from builders import invoke, make_record, make_scores
from mlpip_bench import registry
from mlpip_bench.benches.settings import resolve, scopes
from mlpip_bench.records import published, store
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.records.statistics import estimate
from mlpip_bench.reporting.figures.style import STYLE
from mlpip_bench.reporting.figures.writing import draw_figures
from mlpip_bench.reporting.html import to_html
from mlpip_bench.reporting.tables.against_published import published_tables
from mlpip_bench.utils.errors import UserError

ALPHA = (0.9, 0.8, 1.0, 0.7)
BETA = (0.6, 0.8, 0.7, 0.6)
TEXT = "{http://www.w3.org/2000/svg}text"
VOID = {"meta", "img", "br"}


def record(*scores: Scores, **changes: Any) -> Record:
    defaults = {
        "method": "maml", "iterations": 2400,
        "training": {"iterations": 2400, "seconds": 61.0, "best_iteration": 240, "tasks_seen": 9600},
        "environment": {
            "mlpip_bench": "0.1.0", "torch": "2.0", "processor": "a processor", "session": "2026-01-02 03:04:05.6",
        },
    }  # fmt: skip
    return make_record(*scores, **(defaults | changes))


class Page(HTMLParser):
    """Rows of all tables as lists of (text, data-value), texts outside of them, and what the page refers to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, str | None]]] = []
        self.text, self.references, self.tags, self.open = "", [], set(), []
        self.images: list[dict[str, str | None]] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.add(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag == "img":
            self.images.append(attributes)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append(("", attributes.get("data-value")))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag  # else the page is not well formed

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            text, value = self.rows[-1][-1]
            self.rows[-1][-1] = (f"{text} {' '.join(data.split())}".strip(), value)
        elif "script" not in self.open and "style" not in self.open:
            self.text += data

    def row(self, name: str, columns: int) -> list[tuple[str, str | None]]:
        """The one row of that name and number of cells."""
        (found,) = [row for row in self.rows if row[0][1] == name and len(row) == columns]
        return found


def report(*records: Record) -> str:
    return to_html({"somewhere": records})


def test_a_cell_is_the_mean_and_interval_of_the_records_scores():
    page = Page(report(*(record(make_scores(s), method="anil", seed=n) for n, s in enumerate((ALPHA, BETA)))))
    label, cell = page.row("anil", 2)
    mean, half_width = sum(ALPHA + BETA) / 8, estimate([ALPHA, BETA]).ci95
    spread = abs(sum(ALPHA) - sum(BETA)) / 4 / 2**0.5
    assert cell[0] == f"{100 * mean:.2f} ± {100 * half_width:.2f} (sd {100 * spread:.2f})"
    assert float(cell[1] or "") == pytest.approx(mean, rel=1e-12)
    assert label[0] == "anil"
    assert (
        "All our rows: backbone conv4, norm metabn, inductive yes, queries 15, parameters 10, pretraining none, "
        "budget quick, 2400 it, trained 9,600 tasks, 61 s" in page.text
    )
    other = Page(report(record(method="anil"), record(norm="layer", method="cnp", key="other")))
    assert other.row("anil", 2)[0][0] == "anil norm metabn"  # what differs between rows stays at them


def test_a_transductive_run_on_stand_in_data_says_so_at_its_row_and_at_the_top():
    page = Page(report(record(source="procedural", inductive=False, norm="transductive"), record(method="protonets")))
    (label, _) = page.row("MAML (stand-in)", 2)
    assert "transductive" in label[0]
    assert "inductive" not in label[0].replace("norm transductive", "").replace("transductive", "")
    assert "procedural data" in label[0]
    assert "1 of 2 records (letters: 1)" in page.text
    assert "Stand-in data" not in Page(report(record())).text


def test_a_paired_difference_is_that_of_the_records_task_by_task():
    page = Page(report(record(make_scores()), record(make_scores(BETA), method="protonets")))
    row = page.row("MAML", 3)
    interval = stats.ttest_rel(ALPHA, BETA).confidence_interval()
    mean, half_width = (interval.low + interval.high) / 2, (interval.high - interval.low) / 2
    word = "better" if interval.low > 0 else "undecided"
    assert row[2][0] == f"{100 * mean:+.2f} ± {100 * half_width:.2f} ({word})"


@pytest.mark.parametrize(
    ("per_task", "overlap"),
    [((0.95, 0.96, 0.94, 0.95), "no"), ((0.98, 0.985, 0.99, 0.97), "yes")],
)
def test_published_maml_is_set_next_to_ours_with_what_differs(per_task, overlap):
    row = Page(report(record(make_scores(per_task)))).row("MAML", 7)  # published: 98.7 ± 0.4, in Table 3
    mean, half_width = sum(per_task) / 4, stats.t.ppf(0.975, 3) * stats.sem(per_task)
    both = (half_width**2 + 0.004**2) ** 0.5
    assert row[2][0] == f"{100 * mean:.2f} ± {100 * half_width:.2f}"
    assert row[3][0] == "98.7 ± 0.4"
    assert row[4][0] == f"{100 * (mean - 0.987):+.2f} ± {100 * both:.2f}"
    assert row[5][0] == overlap
    assert "transductive batch norm" in row[6][0]
    assert "200 times as many" in row[6][0]  # 60,000 iterations of 32 tasks against 2,400 of 4, as the README says


@pytest.mark.parametrize(
    ("paper_tasks", "said"),
    [
        (24_000, "published budget: 2.5 times as many training tasks"),
        (9_600, ""),  # as ours: 2,400 iterations of 4
        (None, ""),
    ],
)
def test_the_published_budget_is_said_where_it_is_known_and_not_ours(paper_tasks, said):
    quoted = [dataclasses.replace(row, training_tasks=paper_tasks) for row in published.load()]
    (table,) = published_tables([record()], quoted)
    differs = table.rows[0].cells["what differs"].text.split("; ")
    assert [part for part in differs if "training tasks" in part] == [said][: bool(said)]


def test_published_budgets_are_those_of_the_paper_presets():
    """One fact in two places, since the report loads no method: the presets, and the data of the paper's tables."""
    known = [row for row in published.load() if row.training_tasks is not None]
    assert {"maml", "protonets", "versa"} <= {row.method for row in known}
    for row in known:
        spec = registry.bench(row.bench)
        family = registry.family(spec.family)
        budget, scope = family.budgets["paper"], scopes(family, spec)
        plan = resolve(registry.method(row.method), row.method, budget, "paper", scope, {}).plan
        assert row.training_tasks == plan.iterations * plan.tasks_per_batch, (row.method, row.bench)


def test_what_the_paper_gives_no_interval_for_has_no_overlap():
    row = Page(report(record(method="protonets"))).row("Prototypical Nets", 7)
    assert row[3][0] == "97.4"
    assert row[5][0] == "no interval"
    assert "transductive" not in row[6][0]  # both are inductive


def test_provenance_has_what_made_each_trial():
    html = report(record(settings={"inner_rate": 0.4}), record(method="protonets"))
    page = Page(html)
    row = page.row("omni5w1s maml", 7)
    assert "inner_rate" in row[0][0]
    assert [cell[0] for cell in row[1:6]] == [
        "0", "letters (real), ffffffffffff", "mlpip_bench 0.1.0, torch 2.0", "a processor",
        "61 s, 2,400 it, best at 240",
    ]  # fmt: skip
    assert "2026-01-02 03:04:05" in page.text
    assert "timing on" not in page.text


def test_the_page_refers_to_nothing_outside_of_itself():
    html = report(record(), record(method="protonets"))
    page = Page(html)
    assert page.references
    assert all(str(r).startswith(("#", "data:image/svg+xml,")) for r in page.references)
    assert not page.tags & {"link", "iframe", "object", "embed", "base", "form"}
    css = re.sub(r"(?s).*<style>(.*)</style>.*", r"\1", html)
    assert "@import" not in css
    assert "url(" not in css
    assert "default-src 'none'" in html


def test_a_figure_is_an_image_of_its_own_with_a_text_for_those_who_cannot_see_it():
    bins = {
        "count": (0.0, 10.0), "confidence": (0.0, 0.9), "accuracy": (0.0, 0.8), "accuracy_ci95": (0.0, 0.1),
    }  # fmt: skip
    fine = make_scores((0.0501, 0.0512, 0.0505), metric="nll")  # ticks of three decimals
    shown = record(fine, make_scores((0.101, 0.102), metric="ece", detail=bins), method="anil")
    pictures = {str(i["alt"]): unquote(str(i["src"]).partition(",")[2]) for i in Page(report(shown)).images}
    assert [alt for alt in pictures if "Reliability on omni5w1s" in alt]
    with style.context([*STYLE, {"svg.fonttype": "none"}]):
        decimals = set()
        for (_, figure), drawn in zip(draw_figures([shown]), pictures.values(), strict=True):
            figure.suptitle("")
            figure.savefig(content := io.BytesIO(), format="svg")
            expected, ours = (ElementTree.fromstring(svg) for svg in (content.getvalue(), drawn))
            texts = [["".join(e.itertext()).split() for e in tree.iter(TEXT)] for tree in (expected, ours)]
            assert texts[0]
            decimals |= {len(word.partition(".")[2]) for words in texts[0] for word in words}
            assert texts[0] == texts[1]  # the numbers at the ticks are as they were drawn
        assert max(decimals) > 2


def test_names_of_other_peoples_plugins_are_text_and_never_code():
    evil = "<script>alert(1)\"'&"
    html = report(record(method=evil, norm=evil), record(method="protonets", norm=evil))
    assert html.count("<script") == 1  # the page's own
    page = Page(html)
    label = page.row(evil, 2)[0][0]
    assert label.startswith(evil)
    assert f"norm {evil}" in page.text


def test_same_records_same_bytes():
    def page() -> str:
        return report(record(), record(method="protonets"), record(seed=1))

    assert page() == page()


def test_the_command_writes_a_section_for_each_folder(tmp_path):
    for name in ("one", "two"):
        store.save(record(method="maml" if name == "one" else "protonets"), tmp_path / name)
    folders = ["--results", tmp_path / "one", "--results", tmp_path / "two"]
    done = invoke("report", *folders)
    assert done.exit_code == 0, done.output
    written = tmp_path / "one" / "report.html"
    assert done.output.replace("\n", "") == str(written)
    loaded = {str(tmp_path / name): store.load_all(tmp_path / name) for name in ("one", "two")}
    assert written.read_text() == to_html(loaded)
    assert {"#s1", "#s2"} <= set(Page(written.read_text()).references)
    other = tmp_path / "elsewhere" / "page.html"
    assert invoke("report", *folders, "--output", other).exit_code == 0
    assert other.read_text() == written.read_text()


def test_failed_trials_are_named_with_their_errors():
    failures = {"a": [("omni5w1s maml seed 3", "a <b> error")]}
    page = to_html({"a": [record(make_scores((0.5, 0.7)))]}, failures)
    assert "Failed trials" in page
    assert "omni5w1s maml seed 3: a &lt;b&gt; error" in page
    assert "Failed trials" not in report(record(make_scores((0.5, 0.7))))


def test_each_number_has_its_budget_where_those_of_a_row_differ():
    one = record(make_scores((0.5, 0.7)))
    other = dataclasses.replace(one, bench="omni5w5s", key="other")
    assert ">2400 it<" not in report(one, other)
    page = report(one, dataclasses.replace(other, config={**other.config, "iterations": 77}))
    assert ">77 it<" in page
    assert ">2400 it<" in page


def test_a_folder_without_records_is_one_message(tmp_path):
    done = invoke("report", "--results", tmp_path / "nothing")
    assert done.exit_code == 2
    assert "made from records" in done.output
    assert not list(Path(tmp_path).rglob("*.html"))


def near(mean: float, spread: float = 0.002) -> Scores:
    return make_scores([mean + spread * (-1) ** n * (n % 5) for n in range(40)])


def test_the_first_thing_says_who_leads_by_how_much_whether_that_is_decided_and_at_what_cost():
    far, close = record(near(0.9)), record(near(0.5), method="protonets")
    text = " ".join(Page(report(far, close)).text.split())
    assert text.index("MAML leads with 90.00 ±") < text.index("Comparison")
    assert "points ahead of Prototypical Nets" in text
    assert "Decided between these trained models, not between the methods: one seed." in text
    assert "Cost: 61 s to train, 10 parameters. Data: letters (real); budget: quick, 2400 iterations, 0.5 %" in text
    assert "0.5 % of the training tasks of its published result; the others 48 % of theirs (short)." in text
    assert "omni5w1s, accuracy, higher is better" in text
    stand_in = " ".join(Page(report(record(near(0.9), source="procedural"))).text.split())
    assert "nothing was measured to compare it with" in stand_in.lower()
    assert "Data: letters (procedural, a stand-in)" in stand_in


def test_folders_whose_numbers_differ_by_version_are_not_to_be_compared_and_trials_are_counted_in_each():
    old, new = record(), record(environment={"code": {"numbers": 2}})
    text = " ".join(Page(to_html({"a": [old], "b": [new]})).text.split())
    assert "The folders have different numbers versions (a 0.1.0, b 2)" in text
    assert "2, with 2 records" in text
    assert "different numbers versions" not in to_html({"a": [old], "b": [old]})


def test_over_several_seeds_the_answer_is_about_methods_and_undecided_says_against_whom():
    rng = np.random.default_rng(0)

    def several(method: str, mean: float) -> list[Record]:
        return [record(make_scores(rng.normal(mean, 0.02, 40)), method=method, seed=seed) for seed in range(3)]

    records = [*several("maml", 0.8), *several("protonets", 0.5)]
    assert "Decided over 3 trainings each." in Page(report(*records)).text
    tie = [*records, *several("versa", 0.8)]
    text = " ".join(Page(report(*tie)).text.split())
    assert re.search(r"Undecided against (Versa|MAML) \(over 3 trainings each\)\.", text)
    margin = " ".join(Page(to_html({"somewhere": tie}, margins={"accuracy": 5.0})).text.split())
    assert re.search(r"Equal within 5 points: (Versa|MAML) \(over 3 trainings each\)\.", margin)


def test_names_are_those_given_else_the_papers():
    page = Page(to_html({"somewhere": [record(), record(method="alpha")]}, names={"maml": "MAML (ours)"}))
    assert page.row("MAML (ours)", 2)
    assert page.row("alpha", 2)
    with pytest.raises(UserError, match="--names takes methods of the records, alpha, maml; got versa"):
        to_html({"somewhere": [record(), record(method="alpha")]}, names={"versa": "Versa"})

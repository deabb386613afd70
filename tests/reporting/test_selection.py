"""What is shown: unions of folders, choices, and display names."""

from pathlib import Path
from typing import Any

import pytest

from builders import invoke, make_record, make_scores
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.selection import load_union, parse_names, selected, shown
from mlpip_bench.utils.errors import UserError

A, B = (0.9, 0.8, 1.0, 0.7), (0.7, 0.5, 0.9, 0.4)


def save(folder: Path, *records: Record) -> Path:
    for record in records:
        store.save(record, folder)
    return folder


def both(method: str, **changes: Any) -> Record:
    scores = make_scores(A), make_scores((0.3, 0.2, 0.4, 0.5), "nll")
    return make_record(*scores, method=method, **changes)


def test_several_folders_are_their_union(tmp_path: Path) -> None:
    same = make_record(make_scores(A))
    one = save(tmp_path / "one", same, make_record(make_scores(B), method="beta"))
    two = save(tmp_path / "two", same, make_record(make_scores(B), method="gamma"))
    assert sorted(record.method for record in load_union([one, two])) == ["alpha", "beta", "gamma"]
    done = invoke("table", "--results", one, "--results", two, "--format", "markdown")
    assert all(f"| {method}" in done.output for method in ("alpha", "beta", "gamma"))
    assert not (one / "tables").exists()  # a union is shown, and written nowhere


def test_a_conflict_of_two_folders_names_both_files(tmp_path: Path) -> None:
    one = save(tmp_path / "one", make_record(make_scores(A), key="k" * 20))
    two = save(tmp_path / "two", make_record(make_scores(B), key="k" * 20))
    done = invoke("table", "--results", one, "--results", two)
    assert done.exit_code == 2
    text = " ".join(done.output.split())
    assert "a trial has one record" in text
    for folder in ("one", "two"):
        assert f"{tmp_path}/{folder}/records/omni5w1s/alpha/accuracy-seed0-{'k' * 12}.json" in text


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv"])
def test_metrics_methods_and_benches_are_chosen_in_every_form(form: str, tmp_path: Path) -> None:
    save(tmp_path, both("maml"), both("versa"), both("versa", bench="mini5w5s"))
    chosen = ("--metric", "accuracy", "--methods", "versa", "--benches", "omni5w1s", "--no-published")
    done = invoke("table", "--results", tmp_path, "--format", form, *chosen)
    assert done.exit_code == 0, done.output
    for absent in ("nll", "maml", "MAML", "mini5w5s", "Siamese"):
        assert absent not in done.output
    assert "omni5w1s" in done.output


def test_a_choice_of_nothing_says_what_there_is(tmp_path: Path) -> None:
    save(tmp_path, both("maml"))
    done = invoke("table", "--results", tmp_path, "--metric", "ece", "--methods", "maml")
    assert done.exit_code == 2
    assert "no record matches --methods maml --metric ece. There are: omni5w1s maml. Metrics: accuracy, nll." in (
        " ".join(done.output.split())
    )
    assert selected([]) == []


def test_methods_have_the_papers_names_or_those_given(tmp_path: Path) -> None:
    save(tmp_path, both("nonamortized_vi"), both("alpha"))
    by_default = invoke("table", "--results", tmp_path, "--format", "latex").output
    assert "Non-Amortized VI &" in by_default
    assert "alpha &" in by_default
    named = invoke(
        "table", "--results", tmp_path, "--format", "latex", "--names", "alpha=Ours (new),nonamortized_vi=VI"
    )
    assert "Ours (new) &" in named.output
    assert "nonamortized" not in named.output
    csv = invoke("table", "--results", tmp_path, "--format", "csv", "--names", "alpha=Ours").output
    assert "alpha" in csv  # files for machines have the names of plugins
    paired = invoke("table", "--results", tmp_path, "--paired", "--against", "nonamortized_vi", "--names", "alpha=Ours")
    assert "Ours" in paired.output


@pytest.mark.parametrize("names", ["alpha", "alpha=", "=x", "alpha=a/b", "alpha=a,alpha=b"])
def test_names_that_are_none_are_one_message(names: str) -> None:
    with pytest.raises(UserError, match="--names takes METHOD=NAME"):
        parse_names(names)


def test_two_methods_never_share_a_name() -> None:
    with pytest.raises(UserError, match="alpha and versa would both be 'Versa'"):
        shown([make_record(method="alpha"), make_record(method="versa")], {"alpha": "Versa"})


def test_figures_are_chosen_and_named(tmp_path: Path) -> None:
    save(tmp_path / "runs", both("maml"), both("versa"))
    done = invoke(
        *("figures", "--results", tmp_path / "runs", "--metric", "accuracy", "--names", "maml=M"),
        *("--no-published", "--output", tmp_path / "drawn"),
    )
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {"scores-omni.png", "scores-omni.pdf"}
    assert not (tmp_path / "runs" / "figures").exists()


def test_table_says_who_leads_and_takes_margins(tmp_path: Path) -> None:
    scores = [0.5 + 0.001 * (t % 7) for t in range(60)]
    near = [x + 0.0001 * (-1) ** t for t, x in enumerate(scores)]
    for method, own in (("maml", scores), ("versa", near)):
        save(tmp_path, make_record(make_scores(own), method=method))
    first = invoke("table", "--results", tmp_path).output.splitlines()[0]
    assert first.startswith("omni5w1s, accuracy (higher is better): ")
    assert "undecided against" in first
    assert "one seed" in first
    equal = invoke("table", "--results", tmp_path, "--margin", "accuracy=0.5").output.splitlines()[0]
    assert "equal within 0.5 points: " in equal
    wrong = invoke("table", "--results", tmp_path, "--margin", "nll=0.01")
    assert wrong.exit_code == 2
    assert "--margin names metrics of the records, accuracy; got nll" in " ".join(wrong.output.split())

"""Model cards say what a model is; what nothing states, they say so."""

import dataclasses
import re

import pytest

from builders import make_record, make_scores
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.reporting.model_card import Credits, model_card

CREDIT = Credits("a point", "Snell et al. 2017, Prototypical Networks (NeurIPS)", "", "", "")
TRAINING = {
    "iterations": 1500,
    "tasks_seen": 6000,
    "seconds": 120.0,
    "best_iteration": 1000,
    "chosen": {"accuracy": 1000, "nll": 500},
}
RECORD = make_record(
    make_scores(chosen_by="accuracy"),
    make_scores((0.5, 0.5, 0.5, 0.9), model="last"),
    method="protonets",
    training=TRAINING,
    parameters=111680,
    options={"split": "random"},
    environment={"mlpip_bench": "0.2.0", "torch": "2.13.0", "code": {"numbers": 2}},
)
NLL = make_record(make_scores(metric="nll", chosen_by="nll"), method="protonets", protocol="nll", training=TRAINING)


def card(*scored, credit=CREDIT, record=RECORD, classifies=True) -> str:
    return model_card("m.safetensors", record, scored, credit, classifies=classifies)


def test_it_says_what_the_model_is():
    rows = dict(line[2:-2].split(" | ", 1) for line in card().splitlines() if re.match(r"\| \w", line))
    assert rows["bench"] == "omni5w1s"
    assert rows["method"] == f"protonets: {CREDIT.reference}"
    assert rows["norm"] == "metabn; inductive"
    assert rows["parameters"] == "111,680"
    assert rows["training"] == "1,500 iterations, 6,000 tasks, 120 s, float32, seed 0, budget quick".replace(
        "120 s", "2 min"
    )
    assert rows["model"] == "that of iteration 1,000, which was best on validation"
    assert rows["data"] == "letters (real); split random"
    assert rows["fingerprint of the data"] == "f" * 20
    assert rows["license of the data"] == rows["citation of the data"] == "not stated"
    assert rows["made by"] == "mlpip_bench 0.2.0, torch 2.13.0, numbers version 2"


def test_scores_have_their_intervals_and_say_which_model_they_are_of():
    lines = [line for line in card(RECORD, NLL).splitlines() if line.startswith(("| accuracy", "| nll"))]
    mean, half = mean_ci95(RECORD.scores[0].per_task)
    assert len(lines) == 2  # of the last model none
    assert f"| omni5w1s | 15 | 4 | {100 * mean:.2f} ± {100 * half:.2f} | this one |" in lines[0]
    assert lines[1].endswith("| another of this training, of iteration 500 |")
    assert "None are at hand." in card()


def test_stand_ins_never_pass_for_the_data_set():
    assert "stand-in" not in card()
    record = make_record(source="procedural", method="protonets")
    assert "letters (procedural, a stand-in: it is not the data set that the bench names)" in card(record=record)


def test_terms_and_authors_are_quoted_and_cannot_break_the_table():
    text = card(credit=CREDIT._replace(license="MIT | GPL\n<b>", citation="Us 2026", attribution="| who |"))
    assert "| license of the data | MIT \\| GPL &lt;b> |" in text
    assert "| citation of the data | Us 2026 |" in text
    assert text.endswith("## Authors of the data\n\n| who |\n")


def test_a_model_that_takes_no_pictures_has_no_command_for_them():
    assert "mlpip_bench predict --model m.safetensors" in card()
    assert 'mb.load("m.safetensors").adapt(images, labels)' in card()
    assert "predict" not in card(classifies=False)


def test_a_card_needs_only_what_a_record_must_have():
    bare = dataclasses.replace(RECORD, training={}, environment={}, scores=())
    assert "numbers version not stated" in card(record=bare)


@pytest.mark.parametrize("inductive", [True, False])
def test_whether_queries_see_each_other_is_said(inductive):
    assert ("sees the other queries" in card(record=dataclasses.replace(RECORD, inductive=inductive))) != inductive

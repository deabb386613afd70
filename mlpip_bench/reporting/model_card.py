"""The model card of an exported model: what it is, what it was trained on, how well it does, and how it is used."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mlpip_bench.records.record import Record
from mlpip_bench.reporting.entries import as_text, entries_of
from mlpip_bench.reporting.wording import duration, mean_cell, pretraining_in_words, qualities
from mlpip_bench.utils.encoding import for_markdown
from mlpip_bench.utils.provenance import STAND_INS

MARK = "A model that `mlpip_bench` trained and exported to"
"""What all cards say."""
UNKNOWN = "not stated"


class Credits(NamedTuple):
    """Whom a model is owed to.

    Attributes:
        psi, reference: of its method.
        license, citation: of its data; empty where nothing states them.
        attribution: Markdown that names the authors of its data; empty where there is none.
    """

    psi: str
    reference: str
    license: str
    citation: str
    attribution: str


def model_card(file: str, record: Record, scored: Sequence[Record], credit: Credits, *, classifies: bool) -> str:
    """Markdown.

    Args:
        file: name of the model's file.
        record: what made the model.
        scored: records of its trial, whose scores are shown.
        credit: whom it is owed to.
        classifies: whether it takes pictures and gives classes.
    """
    own = bool(record.own_code)
    rows = [f"| {name} | {for_markdown(text)} |" for name, text in _facts(record, credit)]
    parts = [
        f"# {record.method} on {record.bench}",
        f"{MARK} `{file}`: its parameters, and a header that says how they were made.",
        "\n".join(["| | |", "| --- | --- |", *rows]),
        "## Scores",
        "\n".join(_scores(record, scored)),
        "## Use",
        *(_use(file, own=own) if classifies else [f'```python\nmodel = mlpip_bench.load("{file}"{_TRUST * own})\n```']),
    ]
    if credit.attribution:
        parts.append(f"## Authors of the data\n\n{credit.attribution}")
    return "\n\n".join(parts).rstrip() + "\n"


def _facts(record: Record, credit: Credits) -> Iterator[tuple[str, str]]:
    config, data, training = record.config, record.data, record.training
    backbone, code = record.backbone, record.environment.get("code", {})
    stand_in = ", a stand-in: it is not the data set that the bench names" if data["source"] in STAND_INS else ""
    settings = _listed(config["settings"])
    shape = "x".join(map(str, backbone.get("input_shape", ())))
    tasks = f"{training.get('tasks_seen', 0):,} tasks"
    yield "bench", record.bench
    yield "method", f"{record.method}{f' ({settings})' if settings else ''}: {credit.reference}"
    yield "psi", credit.psi
    yield "backbone", f"{backbone['name']} ({_listed(backbone['spec'])}), for images {shape}"
    if record.own_code:
        yield (
            "needs code of its author",
            f"{record.own_code[0]}, under that name where it is loaded; it is run, so look at it first",
        )
    yield "norm", f"{config['norm']}; {'inductive' if record.inductive else 'sees the other queries'}"
    yield "parameters", f"{record.parameters:,}"
    yield (
        "training",
        f"{training.get('iterations', 0):,} iterations, {tasks}, {duration(training.get('seconds', 0.0))}, "
        f"{config.get('precision', 'float32')}, seed {record.seed}, budget {config['preset']}",
    )
    yield "trained before", pretraining_in_words(record)
    yield "model", f"that of iteration {training.get('best_iteration', -1):,}, which was best on validation"
    yield "data", f"{data['name']} ({data['source']}{stand_in}); {_listed(data['options'])}"
    yield "fingerprint of the data", data["fingerprint"]
    yield "license of the data", credit.license or UNKNOWN
    yield "citation of the data", credit.citation or UNKNOWN
    versions = (f"{name} {record.environment[name]}" for name in ("mlpip_bench", "torch") if name in record.environment)
    yield "made by", ", ".join([*versions, f"numbers version {code.get('numbers', UNKNOWN)}"])


def _scores(record: Record, scored: Sequence[Record]) -> Iterator[str]:
    """A table of the scores of all records of a trial, which may be of two models of one training."""
    entries = [entry for entry in entries_of(scored) if entry.score.model == "best"]
    if not entries:
        yield "None are at hand."
        return
    yield "| metric | tested on | queries | tasks | mean ± 95 % | model |"
    yield "| --- | --- | ---: | ---: | ---: | --- |"
    own = record.training.get("best_iteration")
    for entry in entries:
        score = entry.score
        iteration = entry.record.training.get("chosen", {}).get(score.chosen_by, own)
        which = "this one" if iteration == own else f"another of this training, of iteration {iteration}"
        cells = (
            f"{score.metric} ({qualities(score.unit, score.better, score.model, score.chosen_by)})",
            entry.column,
            str(score.queries),
            f"{len(score.per_task):,}",
            mean_cell([entry], score.unit).text,
            which,
        )
        yield f"| {' | '.join(map(for_markdown, cells))} |"
    yield ""
    yield "± is the half-width of the 95 % interval over test tasks; it is of this one trained model."


_TRUST = ", trust_code=True"


def _use(file: str, *, own: bool) -> Sequence[str]:
    """Three lines of Python, and one for a shell."""
    return (
        f'```python\nimport mlpip_bench as mb\n\nadapted = mb.load("{file}"{_TRUST * own}).adapt(images, labels)\n'
        "probabilities = adapted.predict(queries)\n```",
        f"```sh\npython -m mlpip_bench predict --model {shlex.quote(file)} --support DIR --query DIR "
        f"--to predictions.csv{' --trust-code' * own}\n```",
    )


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {as_text(value)}" for name, value in sorted(values.items()))

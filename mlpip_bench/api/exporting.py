"""Trained models as files for others, from Python."""

from __future__ import annotations

from pathlib import Path

from mlpip_bench import registry
from mlpip_bench.api.models import Model, load
from mlpip_bench.datasets.terms import Terms, terms_of
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.execution import exporting, restoring
from mlpip_bench.execution.measuring import make_record
from mlpip_bench.inference.wrapping import Wrapped
from mlpip_bench.records.exports import ENDING
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.model_card import MARK, Credits, model_card
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import cannot_write, data_root_of, given_path, read_file, write_atomically
from mlpip_bench.utils.naming import family_of
from mlpip_bench.utils.provenance import STAND_INS

_LARGEST_CARD = 2**26  # bytes


def export(
    model: Model | str | Path,
    path: str | Path,
    *,
    data_root: str | Path | None = None,
    trust_code: bool = False,
) -> Path:
    """Write a trained model as safetensors, and a model card next to it, ``NAME.md``.

    Args:
        model: from :func:`~mlpip_bench.fit` or :func:`~mlpip_bench.load`; or a record's file, and then the card has the
            scores of all records of its trial.
        path: the file, which ends in ``.safetensors``.
        data_root: folder in which license and citation of the data are looked for; by default what
            ``MLPIP_BENCH_DATA`` names.
        trust_code: whether code of your own is run, a network or a method, that a record names.

    Returns:
        The file.

    Raises:
        UserError: no such record, a method that is not registered, or a file that cannot be written.
    """
    target = given_path(path)
    if target.suffix != ENDING:
        raise UserError(f"an exported model is a file that ends in {ENDING}; got {target}. Name it so.")
    place_of_card = target.with_suffix(".md")
    _check_card(place_of_card)
    trained = model if isinstance(model, Model) else load(model, trust_code=trust_code)
    if not isinstance(trained, Model) or isinstance(trained.method, Wrapped):
        raise UserError("what the suite has trained is exported; a wrapped function stays in your own code.")
    scored: list[Record] = []
    if trained.record is not None and trained.record.scores:  # which one of an export has not
        if isinstance(model, Model):
            scored = [trained.record]
        else:
            scored = restoring.records_of(trained.record, given_path(model))
    record = exporting.of_training(trained.record or _record_of(trained))
    stated = _terms(record, data_root_of(Path(data_root) if data_root else None))
    classifies = trained.method.problem.kind == "classification"
    card = model_card(
        target.name,
        record,
        scored,
        Credits(trained.method.psi, trained.method.reference, *stated),
        classifies=classifies,
    )
    exporting.write(target, record, trained.training.best_model)
    write_atomically(place_of_card, card.encode(errors="backslashreplace"))
    return target


def _check_card(path: Path) -> None:
    """Refuse to write a model card over anything but one."""
    try:
        there = read_file(path, _LARGEST_CARD).decode(errors="replace") if path.exists() else MARK
    except OSError as error:
        raise cannot_write(path, error) from error
    if MARK not in there:
        raise UserError(
            f"a model card is written over nothing else; {path} is there. Name the exported file otherwise."
        )


def _record_of(model: Model) -> Record:
    """What a record would say of a model that was trained here."""
    trial = model.trial
    if trial.method not in registry.names("method") or registry.method(trial.method) is not trial.plugin:
        raise UserError(
            f"an exported model is built again by the method that is registered under its name; {trial.method} is not "
            "registered. Register its class as an entry point (docs/adding.md)."
        )
    alone = is_inductive(model.method, trial.streams()["test"].batch(0, 1))
    return make_record(trial, model.method, model.training, "none", (), alone, 0.0, {})


def _terms(record: Record, data_root: Path | None) -> Terms:
    """On which terms its data may be used; a stand-in has none."""
    source = registry.data_sources(data_root).get(family_of(record.bench))
    if source is None or record.data["source"] in STAND_INS:
        return Terms()
    return terms_of(source, data_root, record.data["fingerprint"], record.data["options"])

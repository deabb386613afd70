"""Trained models as files for others, from Python."""

from __future__ import annotations

from pathlib import Path

from mlpip_bench import registry
from mlpip_bench.api.models import Model, load
from mlpip_bench.datasets.terms import Terms, terms_of
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.execution import exporting, restoring
from mlpip_bench.execution.measuring import make_record
from mlpip_bench.records.exports import ENDING
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.model_card import Credits, model_card
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import data_root_of, given_path, write_atomically
from mlpip_bench.utils.naming import family_of
from mlpip_bench.utils.provenance import STAND_INS


def export(model: Model | str | Path, path: str | Path, *, data_root: str | Path | None = None) -> Path:
    """Write a trained model as safetensors, and a model card next to it, ``NAME.md``.

    Args:
        model: from :func:`~mlpip_bench.fit` or :func:`~mlpip_bench.load`; or a record's file, whose trial's scores are
            then in the card.
        path: the file, which ends in ``.safetensors``.
        data_root: folder in which license and citation of the data are looked for; by default what
            ``MLPIP_BENCH_DATA`` names.

    Returns:
        The file.

    Raises:
        UserError: no such record, a method that is not registered, or a file that cannot be written.
    """
    target = given_path(path)
    if target.suffix != ENDING:
        raise UserError(f"an exported model is a file that ends in {ENDING}; got {target}. Name it so.")
    scored: list[Record] = []
    if not isinstance(model, Model):
        place = given_path(model)
        model = load(place)
        if model.record is not None and model.record.scores:  # which an export has not
            scored = restoring.records_of(model.record, place)
    record = exporting.of_training(model.record or _record_of(model))
    stated = _terms(record, data_root_of(Path(data_root) if data_root else None))
    classifies = model.method.problem.kind == "classification"
    card = model_card(
        target.name, record, scored, Credits(model.method.psi, model.method.reference, *stated), classifies=classifies
    )
    exporting.write(target, record, model.training.best_model)
    write_atomically(target.with_suffix(".md"), card.encode(errors="backslashreplace"))
    return target


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

"""What is left to do of each trial, and why."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlpip_bench import registry
from mlpip_bench.evaluation.protocol import EvalProtocol, SideBySideProtocol
from mlpip_bench.execution.config import Overwrite, RunConfig
from mlpip_bench.execution.trial import Trial
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.training.checkpoints import iterations_done
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.locks import is_held

HELD = "another run is at work on it"


# --------------------------------------------------------------------------------------------- what is left to do


@dataclass(frozen=True, eq=False)
class Standing:
    """What is left to do of a trial.

    Attributes:
        trial: the trial.
        alone: protocols to measure on its model alone.
        side_by_side: protocols to measure side by side with other trials.
        nothing: why there is nothing to do; empty where there is something.
        outdated: whether there are records that differ in nothing but the code that made them.
    """

    trial: Trial
    alone: tuple[str, ...] = ()
    side_by_side: tuple[str, ...] = ()
    nothing: str = ""
    outdated: bool = False


def survey(trials: Sequence[Trial], config: RunConfig) -> list[Standing]:
    """What is left to do of each trial, in their order.

    Raises:
        UserError: the results folder holds a damaged record, or one of a file of parameters that has changed since.
    """
    records = store.load_all(config.results)
    if config.overwrite != "always":
        _check_files(trials, records)
    sessions = sessions_of(records)
    made = {
        _all_but_code(r.bench, r.method, r.protocol, r.seed, r.config, _comparable(r.data), r.backbone) for r in records
    }
    always = config.overwrite == "always"
    protocols = _protocols(trials)
    standings = {}
    for trial in trials:
        failure = failure_path(trial, config.results)
        if config.overwrite == "never" and failure.exists():
            nothing = f"failed before ({failure}); --overwrite failed runs it again"
            standings[trial] = Standing(trial, nothing=nothing)
            continue
        names = [name for name in trial.protocols if issubclass(protocols[name], EvalProtocol)]
        alone = tuple(name for name in names if always or trial.record_key(name) not in sessions)
        about = (trial.seed, trial.config, _comparable(trial.data_facts), trial.backbone_facts)
        outdated = any(_all_but_code(trial.measured_as, trial.method, name, *about) in made for name in alone)
        standings[trial] = Standing(trial, alone, outdated=outdated)
    open_trials = [trial for trial, standing in standings.items() if not standing.nothing]
    for protocol, group in side_by_side_groups(open_trials):
        for trial in to_measure(protocol, group, sessions, config.overwrite):
            standing = standings[trial]
            standings[trial] = dataclasses.replace(standing, side_by_side=(*standing.side_by_side, protocol))
    return [s if s.alone or s.side_by_side or s.nothing else _finished(s.trial) for s in standings.values()]


def _check_files(trials: Sequence[Trial], records: Iterable[Record]) -> None:
    """Refuse files of parameters that are not what they were: rows of both would have one name."""
    known: dict[tuple[str, str, str], dict[str, Record]] = defaultdict(dict)
    for record in records:
        before = record.training.get("pretraining", {})
        if "sha256" in before:
            place = _file(record.config, record.backbone, before)
            known[record.bench, record.method, place][before["sha256"]] = record
    for trial in trials if known else ():
        place = _file(trial.config, trial.backbone_facts, trial.outside)
        found = known.get((trial.measured_as, trial.method, place), {})
        if found and (now := trial.outside["sha256"]) not in found:
            digest, record = next(iter(found.items()))
            raise UserError(
                f"a file of parameters stays what it was while there are records of it; {place} has SHA-256 {now[:12]} "
                f"and had {digest[:12]} when {record.filename} was made. Give the new one another name, name another "
                "folder with --results, or make the records again with --overwrite always."
            )


def _file(config: Mapping[str, Any], backbone: Mapping[str, Any], outside: Mapping[str, str]) -> str:
    """Where parameters came from, as its user named it; of a wrapped model the name of the file alone is known."""
    path = config.get("init", {}).get("path") or backbone["spec"].get("weights") or outside.get("file", "")
    return str(path)


def _finished(trial: Trial) -> Standing:
    done = "its records are there; --overwrite always runs it again"
    return Standing(trial, nothing=done if trial.protocols else "no protocol that was asked for applies to it")


def why(standing: Standing, config: RunConfig) -> str:
    """Why there is something to do of a trial, or nothing."""
    trial, folder = standing.trial, config.results
    if standing.nothing:
        return standing.nothing
    if is_held(lock_path(trial, folder)):
        return HELD
    failure = failure_path(trial, folder)
    if failure.exists():
        found = store.load_failure(failure)
        return f"failed before: {found[1]}" if found else f"failed before ({failure})"
    reached = iterations_done(trial.checkpoint(folder), trial.training_key)
    if 0 < reached < trial.plan.iterations:
        return f"stopped at iteration {reached} of {trial.plan.iterations}"
    if config.overwrite == "always":
        return "--overwrite always"
    missing = ", ".join((*standing.alone, *standing.side_by_side))
    if standing.outdated:
        return f"the code has changed since its records of {missing} were made"
    return f"no record of {missing}" + ("; trained already" if reached else "")


def _comparable(data: Mapping[str, Any]) -> dict[str, Any]:
    """What decides of data; older records do not count their classes."""
    return {name: value for name, value in data.items() if name not in ("training_classes", "test_classes")}


def _all_but_code(*parts: object) -> str:
    """What tells a record from others, but the code that made it."""
    return json.dumps(parts, sort_keys=True)


def sessions_of(records: Iterable[Record]) -> dict[str, str]:
    """When records were measured side by side, by their keys; empty for those that were not."""
    return {r.key: str(r.environment.get("session", "")) for r in records}


def _protocols(trials: Iterable[Trial]) -> dict[str, type]:
    """The protocols of some trials by name; each is looked up once, which takes milliseconds."""
    return {name: registry.protocol(name) for name in {name for trial in trials for name in trial.protocols}}


def side_by_side_groups(trials: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    """The trials that each side-by-side protocol measures at once: those of a bench and a seed."""
    groups: dict[tuple[str, str, int], list[Trial]] = defaultdict(list)
    protocols = _protocols(trials)
    for trial in trials:
        for name in trial.protocols:
            if issubclass(protocols[name], SideBySideProtocol):
                groups[name, trial.bench.name, trial.seed].append(trial)
    return [(name, group) for (name, *_), group in groups.items()]


def to_measure(
    protocol: str, group: Sequence[Trial], sessions: Mapping[str, str], overwrite: Overwrite
) -> Sequence[Trial]:
    """All of a group, unless their records are there and of one session; with ``never``, those without a record."""
    found = [sessions.get(trial.record_key(protocol)) for trial in group]
    if overwrite == "never":
        return [trial for trial, session in zip(group, found, strict=True) if session is None]
    together = None not in found and len(set(found)) == 1
    return [] if together and overwrite != "always" else group


def failure_path(trial: Trial, folder: Path) -> Path:
    """Where the note of a failed trial lies."""
    return trial.path(folder, "failures", ".json")


def lock_path(trial: Trial, folder: Path) -> Path:
    """Where the lock of a trial lies."""
    return trial.path(folder, "locks", ".lock")

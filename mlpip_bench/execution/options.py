"""What the options of a run mean, whether typed, read from a file, or passed from Python."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from mlpip_bench.execution.config import RUNS, RunConfig
from mlpip_bench.utils.choices import NORM_MODES
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.files import data_root_of, given_path
from mlpip_bench.utils.numerics import Numerics

DEFAULTS: Mapping[str, Any] = {
    "bench": None,
    "methods": None,
    "protocols": None,
    "seeds": "0",
    "norm": "metabn",
    "backbone": None,
    "pretrain": None,
    "init": None,
    "evaluate_only": False,
    "preset": "quick",
    "iterations": None,
    "test_tasks": None,
    "queries": 15,
    "query_concentration": None,
    "recalibrate": False,
    "test_on": None,
    "set": (),
    "sweep": (),
    "tune": None,
    "select": None,
    "source": "auto",
    "data_root": None,
    "data": (),
    "device": "auto",
    "precision": "float32",
    "compile": "off",
    "graph": "auto",
    "overwrite": "failed",
    "results": RUNS,
    "predictions": True,
    "check": True,
    "log": None,
    "profile": False,
    "dry_run": False,
    "estimate": False,
    "margin": None,
    "jobs": 1,
    "ray": None,
    "cpus": None,
    "time_limit": None,
    "wait": True,
}
"""All options of a run, with the values that they have where nobody sets them."""

LARGEST_TUNE = 10_000
"""Draws of a tuned trial, at most."""

_MOST_AT_ONCE = 4096  # processes of a cluster, or of its CPUs
_MOST_THREADS = 512  # more than any machine has cores for; many more are a segmentation fault
_LONGEST_VALUE = 1000  # characters of a value that is not simply a text


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options of several layers over the defaults; a later layer wins, and None is the default.

    Raises:
        UserError: no such option, or a value of another type.
    """
    options = dict(DEFAULTS)
    for layer in layers:
        for name, value in layer.items():
            if name not in DEFAULTS:
                raise unknown_name("option of a run", name, DEFAULTS)
            options[name] = DEFAULTS[name] if value is None else _checked(name, value)
    return options


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, Sequence) and all(map(_is_text, value))  # a text is a sequence of texts, too


def _are_seeds(value: object) -> bool:
    return _is_whole(value) or (
        isinstance(value, Sequence) and all(_is_whole(part) or _is_text(part) for part in value)
    )


_TYPES: tuple[tuple[str, Callable[[object], bool], tuple[str, ...]], ...] = (
    ("a whole number", _is_whole, ("iterations", "test_tasks", "queries", "tune", "jobs", "cpus", "time_limit")),
    ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool), ("query_concentration",)),
    (
        "true or false",
        lambda value: isinstance(value, bool),
        ("evaluate_only", "recalibrate", "predictions", "check", "profile", "dry_run", "estimate", "wait"),
    ),
    (
        "a text",
        _is_text,
        (
            "backbone",
            "pretrain",
            "init",
            "preset",
            "test_on",
            "select",
            "margin",
            "source",
            "device",
            "precision",
            "compile",
            "graph",
            "overwrite",
            "ray",
            "log",
        ),
    ),
    ("the name of a folder", lambda value: isinstance(value, str | Path), ("results", "data_root")),
    ("a text with commas, or a list of texts", _are_texts, ("bench", "methods", "protocols", "norm")),
    ("whole numbers, a list of them or a text with commas", _are_seeds, ("seeds",)),
    (
        "a text, a list of texts, or a mapping of names to values",
        lambda value: isinstance(value, Mapping) or _are_texts(value),
        ("set", "sweep", "data"),
    ),
)
"""What options take: in the words of messages, as a check, and which options they are."""


def _checked(name: str, value: Any) -> Any:
    """A value that has its option's type."""
    ((words, fits),) = ((words, fits) for words, fits, found in _TYPES if name in found)
    if not fits(value):
        hint = " In YAML, put quotes around off, on, no and yes." if isinstance(value, bool) else ""
        raise UserError(f"{name} must be {words}; got {value!r}.{hint}")
    return int(value) if _is_whole(value) else value


def run_config(options: Mapping[str, Any]) -> RunConfig:
    """What options ask for.

    Args:
        options: all of them, as :func:`merged` gives them.

    Raises:
        UserError: a value that means nothing.
    """
    for name in ("methods", "protocols"):
        if options[name] is not None and not names(options[name]):
            raise UserError(
                f"--{name} takes names with commas between them; got {options[name]!r}. Leave it out for the usual."
            )
    at_most = {
        "jobs": _MOST_AT_ONCE,
        "cpus": _MOST_AT_ONCE if options["ray"] else _MOST_THREADS,
        "time_limit": 10**9,
    }
    for name, most in at_most.items():
        if options[name] is not None and not 1 <= options[name] <= most:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1 and at most {most}; got {options[name]}.")
    if options["ray"] is not None and options["time_limit"] is not None:
        raise UserError("--time-limit is for processes of this machine; a Ray cluster has limits of its own.")
    if options["ray"] is not None and options["jobs"] > 1:
        raise UserError("--jobs is for processes of this machine, and a Ray cluster has its own count. Leave one out.")
    if options["tune"] is not None and not 2 <= options["tune"] <= LARGEST_TUNE:
        raise UserError(f"--tune takes a number of draws, from 2 (the first has the defaults); got {options['tune']}.")
    if options["tune"] is None and options["select"] is not None:
        raise UserError("--select chooses among the draws of --tune, which is not given. Add --tune N.")
    if options["tune"] is not None and options["sweep"]:
        raise UserError(
            "--sweep shows all values on test tasks, and --tune chooses on validation tasks. Leave one out."
        )
    if not names(options["bench"]):
        raise UserError("a run needs a bench, for example --bench omni5w1s. See: list benches.")
    overrides = settings(_assignments(options["set"]), {n: options[n] for n in ("iterations", "test_tasks")})
    norms: Any = names(options["norm"])
    backbone, backbone_settings = with_settings("backbone", options["backbone"], "conv4,channels=32")
    pretraining, of_pretraining = with_settings("pretrain", options["pretrain"], "classify,iterations=2000")
    init, of_init = with_settings("init", options["init"], "model.safetensors,trained_on=ImageNet-1k")
    if of_init.keys() - {"trained_on"}:
        raise unknown_name("setting of --init", min(of_init.keys() - {"trained_on"}), ["trained_on"])
    return RunConfig(
        benches=names(options["bench"]),
        methods=names(options["methods"]),
        protocols=names(options["protocols"]),
        seeds=seeds(options["seeds"]),
        norms=NORM_MODES if "all" in norms else norms,
        backbone=backbone,
        backbone_settings=backbone_settings,
        pretrain=pretraining,
        pretrain_settings=of_pretraining,
        init=_path(init),
        init_trained_on=str(of_init.get("trained_on", "")),
        evaluate_only=options["evaluate_only"],
        preset=options["preset"],
        queries=options["queries"],
        query_concentration=options["query_concentration"],
        recalibrate=options["recalibrate"],
        test_on=options["test_on"],
        overrides=overrides,
        sweeps=sweeps(_assignments(options["sweep"]), overrides),
        tune=options["tune"],
        select=options["select"],
        source=options["source"],
        data_root=data_root_of(_path(options["data_root"])),
        data=data_options(_assignments(options["data"])),
        device=options["device"],
        numerics=Numerics(options["precision"], options["compile"], options["graph"]),
        overwrite=options["overwrite"],
        results=_path(options["results"]) or RUNS,
        predictions=options["predictions"],
        check=options["check"],
        log=options["log"],
    )


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else given_path(value)


def _assignments(value: str | Sequence[str] | Mapping[str, Any] | None) -> list[str]:
    """Texts of ``NAME=VALUE``; in a file or in Python they may be a mapping, nested by method or family."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Mapping):
        return list(value or ())
    found = []
    for name, given in value.items():
        inner = given.items() if isinstance(given, Mapping) else [(None, given)]
        found += [f"{name}={_typed(v)}" if key is None else f"{name}.{key}={_typed(v)}" for key, v in inner]
    return found


def _typed(value: Any) -> str:
    """A value as it would be typed; several as a tuple, of which a part may be another."""
    return repr(_tuple(value)) if isinstance(value, list | tuple) else str(value)


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list | tuple) else value


def names(text: str | Iterable[object] | None) -> tuple[str, ...]:
    """A comma-separated list, or a list, without repeats."""
    parts = text.split(",") if isinstance(text, str) else map(str, text or ())
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def seeds(text: Any) -> tuple[int, ...]:
    """Whole numbers with commas between them, or a list of some."""
    try:
        return tuple(int(part) for part in names(str(text) if _is_whole(text) else text))
    except ValueError as error:
        example = "0,1,2"
        if (ends := re.fullmatch(r"(\d{1,9})(?:-|:|\.\.)(\d{1,9})", str(text))) and (first := int(ends[1])) < int(
            ends[2]
        ):
            example = ",".join(map(str, range(first, min(int(ends[2]), first + 9) + 1)))
        raise UserError(
            f"--seeds takes whole numbers with commas between them, for example {example}; got {str(text)[:200]!r}."
        ) from error


def settings(assignments: Sequence[str], options: Mapping[str, int | None]) -> dict[str, dict[str, Any]]:
    """What ``--set`` gives, by method (``"*"`` for all), with options that have a name of their own.

    Raises:
        UserError: an assignment without a value, or something that is set twice.
    """
    found: dict[str, dict[str, Any]] = {"*": {}}
    for assignment in assignments:
        method, key, text = _assignment("--set", "learning_rate=0.001", assignment)
        _add(found.setdefault(method, {}), key, text, f"--set {assignment}")
    for key, number in options.items():
        if number is None:
            continue
        if any(key in chosen for chosen in found.values()):
            raise UserError(f"{key} is set twice, by --{key.replace('_', '-')} and by --set. Leave one of them out.")
        found["*"][key] = number
    return found


def sweeps(assignments: Sequence[str], fixed: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What ``--sweep`` gives: by method, each combination of the values of its settings.

    Args:
        assignments: such as ``learning_rate=0.001,0.0003``.
        fixed: what is set already.

    Raises:
        UserError: an assignment without values, or something that is set twice.
    """
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for assignment in assignments:
        method, key, text = _assignment("--sweep", "learning_rate=0.001,0.0003", assignment)
        if any(key in chosen for chosen in (*found.values(), *fixed.values())):
            raise UserError(f"{key} is set twice, by --sweep and otherwise. Leave one of them out.")
        found.setdefault(method, {})[key] = _values(text)
    return {
        method: [dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())]
        for method, tried in found.items()
    }


def with_settings(option: str, text: str | None, example: str) -> tuple[str | None, dict[str, Any]]:
    """What an option like ``--backbone NAME[,SETTING=VALUE]`` names, and the settings.

    Raises:
        UserError: no name, or a setting without a value.
    """
    if text is None:
        return None, {}
    # A comma before a name and =, in no parentheses: others are part of a value.
    name, *assignments = re.split(r",(?![^(]*\))(?=\s*\w+\s*=)", text.strip())
    found: dict[str, Any] = {}
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        if not value.strip():
            raise UserError(f"--{option} takes NAME[,SETTING=VALUE], for example {example}; got {text!r}.")
        _add(found, key.strip(), value.strip(), f"--{option} {text}")
    if "," in name:
        alone = name.partition(",")[2]
        raise UserError(f"--{option} takes NAME[,SETTING=VALUE]; got {text!r}, where {alone!r} has no value.")
    if not name or "=" in name:
        raise UserError(f"--{option} takes a name first, for example {example}; got {text!r}.")
    return name, found


def data_options(assignments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What ``--data FAMILY.OPTION=VALUE`` gives, by task family.

    Raises:
        UserError: an assignment that names no family, or has no value.
    """
    found: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        family, dot, option = name.strip().partition(".")
        if not (equals and dot and family and option and value.strip()):
            raise UserError(
                f"--data takes FAMILY.OPTION=VALUE, for example omni.split=vinyals; got {assignment!r}. See: list data."
            )
        _add(found.setdefault(family, {}), option, value.strip(), f"--data {assignment}")
    return found


def _add(found: dict[str, Any], key: str, text: str, given: str) -> None:
    """Take a value that must be the only one of its name."""
    if key in found:
        raise UserError(f"{key} is set twice, the second time by {given}. Leave one of them out.")
    found[key] = _value(text)


def _assignment(option: str, example: str, assignment: str) -> tuple[str, str, str]:
    """Method (``"*"`` for all), name and value."""
    name, equals, text = assignment.partition("=")
    if not (equals and name.strip() and text.strip()):
        values = "VALUE" if option == "--set" else "VALUE,VALUE"
        raise UserError(f"{option} takes [METHOD.]NAME={values}, for example {example}; got {assignment!r}.")
    method, dot, key = name.strip().rpartition(".")
    if not key or (dot and not method):
        raise UserError(f"{option} names a setting, or METHOD.NAME, for example {example}; got {assignment!r}.")
    return method or "*", key, text.strip()


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text) if len(text) <= _LONGEST_VALUE else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two where it is nested too deeply
        return text


def _values(text: str) -> tuple[Any, ...]:
    """Values with commas between them; one that has commas itself is in parentheses."""
    value = _value(text)
    if isinstance(value, tuple):
        return value
    if not isinstance(value, str):
        return (value,)
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise UserError(f"--sweep takes values with commas between them, and none may be empty; got {text!r}.")
    return tuple(map(_value, parts))

"""Files of options: YAML that ``run --config`` reads, and that ``--print-config`` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlpip_bench.utils.errors import UserError

ABOUT = ("question", "page", "machine", "version", "numbers", "frozen", "status", "note")
"""What else a file of options may have: what an experiment says of itself."""


def read_options(path: Path) -> list[dict[str, Any]]:
    """The runs that a YAML file asks for: options by name; ``runs``, if it has them, each over the file's others.

    Raises:
        UserError: it cannot be read, or is no mapping of options.
    """
    import yaml

    try:
        content = _yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        wrong = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"a file of options must be readable YAML; {path} is not: {wrong}. --print-config writes one."
        ) from error
    if not isinstance(content, dict):
        holds = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise UserError(f"a file of options must map their names to values; {path} {holds}. --print-config writes one.")
    shared = {str(name).replace("-", "_"): value for name, value in content.items() if name not in ABOUT}
    runs = shared.pop("runs", [{}])
    if not (isinstance(runs, list) and runs and all(isinstance(run, dict) for run in runs)):
        raise UserError(f"runs in a file of options must be a list of mappings; those of {path} are not.")
    return [_over(shared, {str(name).replace("-", "_"): value for name, value in run.items()}) for run in runs]


def _over(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Values of two mappings by name, of the latter where both have one; mappings of both are joined."""
    nested = {
        name: _over(shared[name], value)
        for name, value in own.items()
        if isinstance(value, Mapping) and isinstance(shared.get(name), Mapping)
    }
    return {**shared, **own, **nested}


def _yaml(text: str) -> Any:
    """Content of a YAML text; a name that is there twice is refused, since only one of its values would count."""
    import yaml

    for node in _nodes(yaml.compose(text, yaml.SafeLoader)):
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            if twice := next((key for key in keys if keys.count(key) > 1), None):
                raise ValueError(f"{twice!r} is there twice")
    return yaml.safe_load(text)


def _nodes(node: Any) -> Iterator[Any]:
    """A node of a YAML document, and all that are in it."""
    if node is not None:
        yield node
        for child in node.value if isinstance(node.value, list) else ():
            for part in child if isinstance(child, tuple) else (child,):
                yield from _nodes(part)


def as_yaml(options: Mapping[str, Any]) -> str:
    """Options as YAML that :func:`read_options` reads; those that nobody set are left out where they mean nothing."""
    import yaml

    text: str = yaml.safe_dump(_plain(options), sort_keys=False, allow_unicode=True)
    return text


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if value is not None
    }


def runs_as_yaml(runs: Sequence[Mapping[str, Any]]) -> str:
    """Options of several runs as YAML, those that all share above."""
    shared = {name: value for name, value in runs[0].items() if all(run[name] == value for run in runs)}
    own = [{name: value for name, value in run.items() if name not in shared} for run in runs]
    return as_yaml({**shared, "runs": [_plain(options) for options in own]})

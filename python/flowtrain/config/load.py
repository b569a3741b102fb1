"""Converts YAML and dotted overrides to the dataclasses of a run, and back."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from flowtrain.config.checks import ConfigError
from flowtrain.config.schema import RunConfig


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration.

    Args:
        path: YAML file; relative paths in it are relative to its folder.
        overrides: Items `a.b=value` with values in YAML; relative paths in them are relative to
            the working directory.

    Raises:
        ConfigError: A file or field cannot be used; the message names it.
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: the file holds a {type(tree).__name__}; write fields, as `name: value`"
        )
    _anchor(tree, RunConfig, path.resolve().parent)
    for override in overrides:
        _override(tree, override)
    # Paths that are still relative come from the overrides.
    _anchor(tree, RunConfig, Path.cwd())
    return from_dict(tree, source=str(path))


def from_dict(tree: Mapping[str, Any], *, source: str = "config") -> RunConfig:
    """Create a configuration from nested dictionaries.

    Raises:
        ConfigError: A field is unknown, missing, or of the wrong type or value.
    """
    _check_names(tree, RunConfig, (), source)
    try:
        return TypeAdapter(RunConfig).validate_python(tree)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "value_error":
            raise ConfigError(f"{source}: {first['ctx']['error']}") from error
        if first["type"] == "missing":
            raise ConfigError(f"{source}: {field} is missing; set it") from error
        raise ConfigError(f"{source}: {field}={first['input']!r}: {first['msg']}") from error


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration in plain types, as written to YAML; paths are absolute."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, Path):
            return str(value.absolute())
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    tree: dict[str, Any] = plain(config)
    return tree


def dump(config: RunConfig) -> str:
    """The whole configuration as YAML. `load` restores it from a file in any folder."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)


class _Loader(yaml.SafeLoader):
    """Refuses fields that are given twice; YAML itself keeps the last value."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: list[Any] = []
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value} is given twice; keep one", problem_mark=key.start_mark
                )
            seen.append(key.value)
        return node


def _override(tree: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"override {override!r}: write it as field.name=value")
    *parents, leaf = name.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"override {override!r}: {parent} has no fields below it")
    try:
        tree[leaf] = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not YAML: {error}") from error


def _fields(kind: type) -> dict[str, type]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _anchor(tree: dict[str, Any], kind: type, folder: Path) -> None:
    """Make relative paths relative to a folder."""
    for name, hint in _fields(kind).items():
        value = tree.get(name)
        if dataclasses.is_dataclass(hint) and isinstance(value, dict):
            _anchor(value, hint, folder)
        elif (kind_of_items := _items(hint)) is not None and isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    _anchor(item, kind_of_items, folder)
        elif hint in (Path, Path | None) and isinstance(value, str):
            tree[name] = str(folder / Path(value).expanduser())


def _check_names(tree: Mapping[str, Any], kind: type, above: tuple[str, ...], source: str) -> None:
    fields = _fields(kind)
    for name, value in tree.items():
        dotted = ".".join((*above, str(name)))
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(fields)}"
            raise ConfigError(f"{source}: {dotted}: there is no such field; {hint}")
        if dataclasses.is_dataclass(fields[name]):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{source}: {dotted}={value!r}: it must be a mapping of fields")
            _check_names(value, fields[name], (*above, str(name)), source)
        elif (kind_of_items := _items(fields[name])) is not None and isinstance(value, Sequence):
            for number, item in enumerate(value):
                where = f"{dotted}.{number}"
                if not isinstance(item, Mapping):
                    raise ConfigError(f"{source}: {where}={item!r}: it must be a mapping of fields")
                _check_names(item, kind_of_items, (*above, str(name), str(number)), source)
        elif isinstance(value, bool) and _is_number(fields[name]):
            raise ConfigError(f"{source}: {dotted}={value}: it must be a number")


def _items(hint: Any) -> type | None:
    """Class of the items, if the hint is a tuple of a dataclass."""
    first = next(iter(get_args(hint)), None)
    return first if isinstance(first, type) and dataclasses.is_dataclass(first) else None


def _is_number(hint: Any) -> bool:
    return bool({int, float} & set(get_args(hint) or [hint]))

"""Trees of frozen dataclasses, read from YAML: unknown, missing and wrong fields are errors."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from flowtrain.config.checks import ConfigError
from flowtrain.error_texts import cause_of

T = TypeVar("T")
_OF_DATA = (".jsonl", ".ndjson", ".parquet")


def read_tree(path: Path) -> dict[str, Any]:
    """The fields of a YAML file.

    Raises:
        ConfigError: The file cannot be read, or holds something else; the message names it.
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), FieldsLoader)
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: {cause_of(error)}{_within(path)}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {cause_of(error)}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        if path.suffix in _OF_DATA:
            raise ConfigError(
                f"{path}: a YAML file is expected, and this one holds data; give a run.yaml that "
                "names it as data.path"
            ) from error
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if tree is None:
        raise ConfigError(f"{path}: the file is empty; write fields, as `name: value`")
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: the file holds a {type(tree).__name__}; write fields, as `name: value`"
        )
    return tree


def _within(folder: Path) -> str:
    """Advice on the configuration in the folder of a run."""
    written = folder / "config.yaml"
    return f"; give {written}, with --resume to go on with that run" if written.is_file() else ""


def build(kind: type[T], tree: Mapping[str, Any], *, source: str) -> T:
    """Create a dataclass from nested dictionaries.

    Args:
        kind: The dataclass.
        tree: Its fields.
        source: Where they are from, for messages.

    Raises:
        ConfigError: A field is unknown, missing, or of the wrong type or value.
    """
    _check_names(tree, kind, (), source)
    # mypy does not take `type[T]` as hashable.
    checker: TypeAdapter[T] = _checker(cast("Any", kind))
    try:
        return checker.validate_python(tree)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "value_error":
            raise ConfigError(f"{source}: {first['ctx']['error']}") from error
        if first["type"] == "missing":
            raise ConfigError(f"{source}: {field} is missing; set it") from error
        raise ConfigError(f"{source}: {field}={first['input']!r}: {first['msg']}") from error


@functools.cache
def _checker(kind: Any) -> TypeAdapter[Any]:
    # Takes longer to make than what it creates.
    return TypeAdapter(kind)


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


class FieldsLoader(yaml.SafeLoader):
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


def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: _unless_null(hints[field.name]) for field in dataclasses.fields(kind)}


def _unless_null(hint: Any) -> Any:
    """The dataclass of a field that holds one or null; otherwise the hint itself."""
    kinds = [kind for kind in get_args(hint) if dataclasses.is_dataclass(kind)]
    return kinds[0] if kinds and get_origin(hint) is UnionType else hint


def anchor(tree: dict[str, Any], kind: Any, folder: Path) -> None:
    """Make relative paths relative to a folder.

    Raises:
        ConfigError: A path begins with the home folder of an unknown user.
    """
    for name, hint in _fields(kind).items():
        value = tree.get(name)
        if dataclasses.is_dataclass(hint) and isinstance(value, dict):
            anchor(value, hint, folder)
        elif (kind_of_items := _items(hint)) is not None and isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    anchor(item, kind_of_items, folder)
        elif hint in (Path, Path | None) and isinstance(value, str):
            try:
                tree[name] = str(folder / Path(value).expanduser())
            except RuntimeError as error:
                raise ConfigError(f"{name}={value}: there is no such user; give a path") from error


def _check_names(tree: Mapping[str, Any], kind: Any, above: tuple[str, ...], source: str) -> None:
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
    first = next(iter(get_args(hint)), None) if get_origin(hint) is tuple else None
    return first if isinstance(first, type) and dataclasses.is_dataclass(first) else None


def _is_number(hint: Any) -> bool:
    return bool({int, float} & set(get_args(hint) or [hint]))

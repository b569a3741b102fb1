"""Converts YAML and dotted overrides to the dataclasses of a run, and back."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flowtrain.config.checks import ConfigError
from flowtrain.config.schema import RunConfig
from flowtrain.config.tree import FieldsLoader, anchor, build, read_tree, to_dict


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration.

    Args:
        path: YAML file; relative paths in it are relative to its folder.
        overrides: Items `a.b=value` with values in YAML; relative paths in them are relative to
            the working directory.

    Raises:
        ConfigError: A file or field cannot be used; the message names it.
    """
    tree = read_tree(path)
    anchor(tree, RunConfig, path.resolve().parent)
    return _overridden(tree, overrides, source=str(path))


def given_fields(path: Path, overrides: Sequence[str] = ()) -> frozenset[str]:
    """Dotted names of the fields that a file and overrides give; the others have their defaults.

    Args:
        path: As for `load`.
        overrides: As for `load`.

    Raises:
        ConfigError: The file cannot be read.
    """
    tree = read_tree(path)
    for override in overrides:
        _override(tree, override)
    return frozenset(_leaves(tree))


def _leaves(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        else:
            yield ".".join((*above, name))


def from_overrides(tree: Mapping[str, Any], overrides: Sequence[str]) -> RunConfig:
    """Create a configuration from nested dictionaries and overrides, without a file.

    Args:
        tree: Fields, which are not changed.
        overrides: As in `load`.

    Raises:
        ConfigError: A field cannot be used; the message names it.
    """
    return _overridden(copy.deepcopy(dict(tree)), overrides, source="fields")


def _overridden(tree: dict[str, Any], overrides: Sequence[str], *, source: str) -> RunConfig:
    for override in overrides:
        _override(tree, override)
    # Paths that are still relative come from the overrides.
    anchor(tree, RunConfig, Path.cwd())
    return from_dict(tree, source=source)


def from_dict(tree: Mapping[str, Any], *, source: str = "config") -> RunConfig:
    """Create a configuration from nested dictionaries.

    Raises:
        ConfigError: A field is unknown, missing, or of the wrong type or value.
    """
    return build(RunConfig, tree, source=source)


def dump(config: RunConfig) -> str:
    """The whole configuration as YAML. `load` restores it from a file in any folder."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)


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
        tree[leaf] = yaml.load(text, FieldsLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not YAML: {error}") from error

"""Converts YAML and dotted overrides to the dataclasses of a run, and back."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
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

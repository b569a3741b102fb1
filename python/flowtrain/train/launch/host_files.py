"""The files of a run on another host than its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from flowtrain.config.checks import ConfigError
from flowtrain.config.load import load
from flowtrain.data.model_files import changed_names
from flowtrain.train.state import atomic
from flowtrain.train.state.resume import FINGERPRINT, fingerprint
from flowtrain.train.state.run_folder import CONFIG


def check_shared(folder: Path, files: dict[str, str]) -> None:
    """Check that ranks of this host read what those of the run's host read.

    Raises:
        ConfigError: The folder is at another path, or models or data of this host are others.
    """
    config = load(folder / CONFIG)
    if config.run.resolve() != folder.resolve():
        raise ConfigError(
            f"{folder}: on the run's host, this folder is {config.run}; mount it at the same path"
        )
    there, here = _fingerprints(folder, files)
    states = [name for name in there if name.endswith(("_state", "_states"))]
    if changed := [name for name in states if there[name] != here[name]]:
        raise ConfigError(
            f"{folder / CONFIG}: the files of this host have other sizes or times of change than "
            f"those of the run's host ({', '.join(changed)}); share them, or copy them with their "
            "times, as `rsync -a` does"
        )


def _fingerprints(folder: Path, files: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the run's host has read, and the same of this host.

    Raises:
        ConfigError: The contents of models or data are others; the message names them.
    """
    there = json.loads(files[FINGERPRINT])
    here = json.loads(json.dumps(fingerprint(load(folder / CONFIG))))
    if changed := changed_names(there["files"], here["files"]):
        raise ConfigError(
            f"{folder / CONFIG}: the files of this host are not those of the run: "
            f"{', '.join(changed)}; copy them, to the same paths"
        )
    return there, here


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write the run as one of this host, for its encoder ranks.

    Raises:
        ConfigError: Models or data of this host are others; the message names them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tree = yaml.safe_load(files[CONFIG]) | {"run": str(folder)}
    atomic.write_text(folder / CONFIG, yaml.safe_dump(tree, sort_keys=False))
    _, here = _fingerprints(folder, files)
    # With which encoder ranks make sure that they read what was hashed here.
    atomic.write_text(folder / FINGERPRINT, json.dumps(here))

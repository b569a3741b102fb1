"""The files of a run on another host than its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flowtrain.config.checks import ConfigError
from flowtrain.config.load import load
from flowtrain.config.model import ModelConfig
from flowtrain.data.model_files import changed_names, model_hashes
from flowtrain.train.state import atomic
from flowtrain.train.state.resume import FINGERPRINT, fingerprint
from flowtrain.train.state.run_folder import CONFIG

_OF_PROCESSOR = (".json", ".jinja", ".model", ".txt")
_DIGITS = 16


def model_digests(model: ModelConfig) -> dict[str, str]:
    """Digests of the model's files, by what a handshake calls them.

    `tower` covers configuration and weights, `processor` what makes samples of images and texts.

    Args:
        model: Section `model` of a run.

    Raises:
        OSError: A file cannot be read.
    """
    hashes = model_hashes(model.folder, weights=model.path is not None)
    of_tower = {
        name: digest
        for name, digest in hashes.items()
        if name == "config.json" or not name.endswith(_OF_PROCESSOR)
    }
    others = {name: digest for name, digest in hashes.items() if name not in of_tower}
    return {"tower": _digest(of_tower), "processor": _digest(others)}


def _digest(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def check_shared(folder: Path, files: Mapping[str, str]) -> None:
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


def _fingerprints(folder: Path, files: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fingerprints of the run on its own host and on this one.

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


def write_files(folder: Path, files: Mapping[str, str]) -> None:
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

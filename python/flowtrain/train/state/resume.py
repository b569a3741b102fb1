"""Which fields of the configuration may change when a run is resumed, and which may not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from flowtrain.config.load import to_dict
from flowtrain.config.schema import ConfigError, RunConfig
from flowtrain.data.jsonl import FileState, file_state

FINGERPRINT = "fingerprint.json"

Rule = Literal["taken", "refused", "content"]

RULES: dict[str, Rule] = {
    "run": "taken",
    "model.path": "content",
    "model.config": "content",
    "model.dtype": "refused",
    "model.freeze": "refused",
    "model.device": "taken",
    "data.path": "content",
    "data.image_root": "taken",
    "data.workers": "taken",
    "data.shuffle": "refused",
    "data.bad_image": "taken",
    "data.oversize": "taken",
    "train.steps": "taken",
    "train.global_batch": "refused",
    "train.microbatch_tokens": "taken",
    "train.seed": "refused",
    "train.nonfinite": "taken",
    "train.threads": "taken",
    "optim.name": "refused",
    "optim.lr": "taken",
    "optim.betas": "taken",
    "optim.eps": "taken",
    "optim.weight_decay": "taken",
    # A momentum of 0 leaves no state that another momentum could go on from.
    "optim.momentum": "refused",
    "optim.schedule": "taken",
    "optim.warmup_steps": "taken",
    "optim.clip_norm": "taken",
    "flow.encoders": "taken",
    "flow.backbones": "taken",
    "flow.mode": "refused",
    "flow.staleness": "refused",
    "flow.item_tokens": "taken",
    "flow.plan_ahead": "taken",
    "flow.port": "taken",
    "flow.deadline_s": "taken",
    "flow.start_deadline_s": "taken",
    "pool.slab_bytes": "taken",
    "pool.bytes": "taken",
    "pool.max_cells": "taken",
    "pool.scale": "taken",
    "checkpoint.every": "taken",
    "checkpoint.keep": "taken",
    "debug.delay_ms": "taken",
    "debug.fault": "taken",
}
"""Rule of each field: `taken`, a resumed run uses the new value; `refused`, it must be as it was;
`content`, the path may change, and what is read there may not."""

# Weights come from the checkpoint, and nothing is generated during a run.
_MODEL_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
_NOT_MODEL_FILES = ("*.index.json", "generation_config.json")


def fingerprint(config: RunConfig) -> dict[str, Any]:
    """What a run may not change: values of fields, and hashes of files.

    The states of the files are those of this start alone: the ranks read no other files than those
    that are hashed here.

    Raises:
        OSError: The data file or a file of the model cannot be read.
    """
    tree = to_dict(config)
    data_state = file_state(config.data.path)
    model_states = _model_states(config.model.folder)
    files = {"data.path": config.data.path}
    for name in model_states:
        files[f"{name} of the model"] = config.model.folder / name
    return {
        "fields": {name: _value(tree, name) for name in RULES if RULES[name] == "refused"},
        "files": {name: _sha256(path) for name, path in files.items()},
        "data_state": data_state,
        "model_states": model_states,
    }


def data_state(run: Path) -> FileState:
    """State of a run's data file when its launcher read it."""
    size, time_ns = json.loads(run.joinpath(FINGERPRINT).read_text())["data_state"]
    return size, time_ns


def check_model(config: RunConfig) -> None:
    """Refuse files of the model that are not those that the launcher hashed.

    To be called after they are loaded: what is as it was then was so while they were loaded.

    Raises:
        ConfigError: A file was changed, replaced, added or removed; the message names each.
    """
    then = json.loads(config.run.joinpath(FINGERPRINT).read_text())["model_states"]
    now = _model_states(config.model.folder)
    names = sorted(then.keys() | now.keys())
    changed = [name for name in names if tuple(then.get(name, ())) != now.get(name, ())]
    if changed:
        raise ConfigError(
            f"{config.model.folder}: {', '.join(changed)} changed after the start of the run; "
            "restore what was there and go on with --resume, or start another run"
        )


def _model_states(folder: Path) -> dict[str, FileState]:
    """State of each file of a model that a run may not change, by name."""
    return {
        path.name: file_state(path)
        for path in sorted(folder.iterdir())
        if any(path.match(pattern) for pattern in _MODEL_FILES)
        and not any(path.match(pattern) for pattern in _NOT_MODEL_FILES)
    }


def check_resume(checkpoint: Path, now: dict[str, Any]) -> None:
    """Refuse to go on from a checkpoint with a configuration that is not its run's.

    Args:
        checkpoint: A valid checkpoint.
        now: Fingerprint of the configuration to go on with.

    Raises:
        ConfigError: A field or file has changed that may not; the message names each.
    """
    path = checkpoint / FINGERPRINT
    if not path.exists():
        raise ConfigError(
            f"{checkpoint}: it has no {FINGERPRINT}, as another version of FlowTrain made it; "
            "start another run"
        )
    then = json.loads(path.read_text())
    changed = [
        f"{name}={value!r} (now {now['fields'].get(name)!r})"
        for name, value in then["fields"].items()
        if value != now["fields"].get(name)
    ]
    changed += [
        f"another content of {name}"
        for name in sorted(then["files"].keys() | now["files"].keys())
        if then["files"].get(name) != now["files"].get(name)
    ]
    if changed:
        raise ConfigError(
            f"{checkpoint}: made with {', '.join(changed)}; a resumed run cannot change that: set "
            "it back, or start another run"
        )


def _value(tree: dict[str, Any], name: str) -> Any:
    value: Any = tree
    for part in name.split("."):
        value = value[part]
    return value


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

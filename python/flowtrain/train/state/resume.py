"""Which fields of the configuration may change when a run is resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from flowtrain.config.checks import ConfigError
from flowtrain.config.schema import RunConfig
from flowtrain.config.tree import to_dict
from flowtrain.data.model_files import changed_names, model_files, model_hashes
from flowtrain.data.records import Dataset, FileState, State, file_state
from flowtrain.train.state.files import read_object, without

FINGERPRINT = "fingerprint.json"

Rule = Literal["taken", "refused", "content"]

RULES: dict[str, Rule] = {
    "run": "taken",
    "model.path": "content",
    "model.config": "content",
    "model.dtype": "refused",
    "model.compute_dtype": "refused",
    "model.freeze": "refused",
    "model.device": "taken",
    "model.compile": "taken",
    "data.path": "content",
    "data.dataset": "refused",
    "data.sources": "content",
    "data.image_root": "taken",
    "data.ignore": "taken",
    "data.workers": "taken",
    "data.shuffle": "refused",
    "data.bad_image": "taken",
    "data.oversize": "taken",
    "data.min_pixels": "taken",
    "data.max_pixels": "taken",
    "data.video_fps": "taken",
    "data.video_max_frames": "taken",
    "data.video_max_pixels": "taken",
    "train.steps": "taken",
    "train.epochs": "taken",
    "train.global_batch": "refused",
    "train.microbatch_tokens": "taken",
    "train.logit_bytes": "taken",
    "train.seed": "refused",
    "train.nonfinite": "taken",
    "train.threads": "taken",
    # Adapters of another shape have no saved state.
    "lora.encoder.rank": "refused",
    "lora.encoder.alpha": "refused",
    "lora.encoder.targets": "refused",
    "lora.projector.rank": "refused",
    "lora.projector.alpha": "refused",
    "lora.projector.targets": "refused",
    "lora.backbone.rank": "refused",
    "lora.backbone.alpha": "refused",
    "lora.backbone.targets": "refused",
    "lora.dropout": "refused",
    "optim.name": "refused",
    "optim.lr": "taken",
    "optim.betas": "taken",
    "optim.eps": "taken",
    "optim.weight_decay": "taken",
    "optim.decay_vectors": "taken",
    # Parameters that train now have no saved state if they did not before.
    "optim.groups": "refused",
    "optim.reduce_dtype": "taken",
    # With a momentum of 0 there is no saved state for another momentum.
    "optim.momentum": "refused",
    "optim.offload": "taken",
    "optim.schedule": "taken",
    "optim.schedule_steps": "taken",
    "optim.min_lr_ratio": "taken",
    "optim.warmup_steps": "taken",
    "optim.clip_norm": "taken",
    "flow.layout": "taken",
    "flow.ranks": "taken",
    "flow.encoder_ranks": "taken",
    "flow.elastic": "taken",
    "flow.backbone_ranks": "taken",
    "flow.profile": "taken",
    "flow.mode": "refused",
    "flow.staleness": "refused",
    "flow.recompute": "taken",
    "flow.chunk_slots": "taken",
    "flow.item_tokens": "taken",
    "flow.plan_ahead": "taken",
    "flow.correct": "taken",
    "flow.corrections": "taken",
    "flow.cache.path": "taken",
    "flow.cache.max_bytes": "taken",
    "flow.cache.fetch": "taken",
    "flow.port": "taken",
    "flow.timeout_s": "taken",
    "flow.start_timeout_s": "taken",
    "parallel.encoder.sharding": "taken",
    "parallel.encoder.shard_ranks": "taken",
    "parallel.encoder.recompute": "taken",
    "parallel.encoder.recompute_layers": "taken",
    "parallel.backbone.sharding": "taken",
    "parallel.backbone.shard_ranks": "taken",
    "parallel.backbone.recompute": "taken",
    "parallel.backbone.recompute_layers": "taken",
    "eval.path": "taken",
    "eval.dataset": "taken",
    "eval.image_root": "taken",
    "eval.every": "taken",
    "eval.samples": "taken",
    "eval.answers": "taken",
    "eval.answer_tokens": "taken",
    "eval.keep_best": "taken",
    "pool.slab_bytes": "taken",
    "pool.bytes": "taken",
    "pool.max_cells": "taken",
    "pool.scale": "taken",
    "pool.dtype": "taken",
    "pool.tier": "taken",
    "checkpoint.every": "taken",
    "checkpoint.keep": "taken",
    "checkpoint.background": "taken",
    "track.tensorboard": "taken",
    "track.wandb": "taken",
    "track.profile_start": "taken",
    "track.profile_steps": "taken",
    "track.event_steps": "taken",
    "debug.delay_ms": "taken",
    "debug.fault": "taken",
}
"""Rule of each field. `taken`: a resumed run uses the new value. `refused`: the value must not
change. `content`: the path may change, and the contents of the files must not."""

_OF_MODEL = " of the model"


def fingerprint(config: RunConfig) -> dict[str, Any]:
    """Values of fields and hashes of files that a resumed run must not change.

    It also has the states of the data sets and of each file of the model, which are valid for this
    start only: the ranks compare them to make sure that they read what was hashed. `held_out`
    identifies what is evaluated: losses on other samples cannot be compared with each other.

    Raises:
        DataError: The data set cannot be opened, or changed while it was hashed.
        OSError: The data set or a file of the model cannot be read.
    """
    tree = to_dict(config)
    dataset = Dataset(config.data)
    model_states = _model_states(config)
    names = ["data.path" if config.data.path is not None else "data.dataset"]
    if config.data.sources:
        names = [f"data.sources.{number}" for number in range(len(config.data.sources))]
    files = dict(zip(names, dataset.contents(), strict=True))
    for name, digest in _model_hashes(config).items():
        files[name + _OF_MODEL] = digest
    fields = {name: _value(tree, name) for name in RULES if RULES[name] == "refused"}
    fields["model.compute_dtype"] = config.model.pass_dtype  # null is the same as model.dtype.
    fields["model_type"] = json.loads((config.model.folder / "config.json").read_text()).get(
        "model_type"
    )
    for number, source in enumerate(config.data.sources):
        fields[f"data.sources.{number}.weight"] = source.weight
        fields[f"data.sources.{number}.dataset"] = source.dataset
    held_out = None if config.held_out is None else Dataset(config.held_out)
    evaluated = None if held_out is None else [*held_out.contents(), config.eval.samples]
    return {
        "fields": fields,
        "files": files,
        "data_state": dataset.state,
        "held_out_state": None if held_out is None else held_out.state,
        "held_out": evaluated and " ".join(map(str, evaluated)),
        "model_states": model_states,
    }


def data_state(run: Path) -> State:
    """State of a run's data set when the launcher hashed it."""
    state: State = _recorded(run, "data_state")
    return state


def held_out_state(run: Path) -> State | None:
    """The same of the held-out samples; None if there are none."""
    state: State | None = _recorded(run, "held_out_state")
    return state


def held_out_contents(run: Path) -> str | None:
    """Hash and number of the held-out samples of a run; None if there are none."""
    contents: str | None = _recorded(run, "held_out")
    return contents


def check_model(config: RunConfig) -> None:
    """Refuse files of the model that differ from those that the launcher hashed.

    Call this after they are loaded: files that are unchanged then were unchanged while loading.

    Raises:
        ConfigError: Files were changed, replaced, added or removed; the message names them.
    """
    before = _recorded(config.run, "model_states")
    now = _model_states(config)
    names = sorted(before.keys() | now.keys())
    changed = [name for name in names if tuple(before.get(name, ())) != now.get(name, ())]
    if changed:
        raise ConfigError(
            f"{config.model.folder}: files changed after the run started: {', '.join(changed)}; "
            "restore them and continue with --resume, or start another run"
        )


def check_copied(config: RunConfig, checkpoint: Path) -> None:
    """Refuse files of the model that a trained model must not be given.

    The folder may have been copied or moved since the checkpoint; the contents must be the same.

    Args:
        config: The run.
        checkpoint: A valid checkpoint of it.

    Raises:
        ConfigError: The contents have changed; the message names the files.
        RunFileError: The fingerprint of the checkpoint is damaged.
    """
    recorded = read_object(checkpoint / FINGERPRINT, ["files"], way_out=without(checkpoint))
    before = {
        name.removesuffix(_OF_MODEL): digest
        for name, digest in recorded["files"].items()
        if name.endswith(_OF_MODEL)
    }
    if changed := changed_names(before, _model_hashes(config)):
        raise ConfigError(
            f"{config.model.folder}: files changed after the run started: {', '.join(changed)}; "
            "restore them and continue with --resume, or name a folder that has them: `flowtrain "
            "export RUN --model FOLDER`"
        )


def _recorded(run: Path, key: str) -> Any:
    """A value of the fingerprint that the launcher wrote.

    Raises:
        RunFileError: The file has been damaged since.
    """
    way_out = "start again with --resume, which writes it anew"
    return read_object(run / FINGERPRINT, [key], way_out=way_out)[key]


def _needs_weights(config: RunConfig) -> bool:
    """Whether a checkpoint goes with the weights of the folder, as it lacks some of them."""
    return bool(config.lora.adapters) and config.model.path is not None


def _model_hashes(config: RunConfig) -> dict[str, str]:
    """Hash of each file of the model that must not change, by name."""
    return model_hashes(config.model.folder, weights=_needs_weights(config))


def _model_states(config: RunConfig) -> dict[str, FileState]:
    """State of each file of the model that must not change during a run, by name."""
    files = model_files(config.model.folder, weights=_needs_weights(config))
    return {path.name: file_state(path) for path in files}


def check_resume(checkpoint: Path, now: dict[str, Any]) -> None:
    """Refuse to resume a checkpoint with a configuration that belongs to another run.

    Args:
        checkpoint: A valid checkpoint.
        now: Fingerprint of the configuration to resume with.

    Raises:
        ConfigError: Fields or files have changed that must not; the message names them.
        RunFileError: The fingerprint of the checkpoint is damaged.
    """
    path = checkpoint / FINGERPRINT
    if not path.exists():
        raise ConfigError(
            f"{path}: there is no such file: it was deleted, or another version of FlowTrain wrote "
            f"the checkpoint; {without(checkpoint)}"
        )
    before = read_object(path, ["fields", "files"], way_out=without(checkpoint))
    changed = [
        f"{name}={value!r} (now {now['fields'].get(name)!r})"
        for name, value in before["fields"].items()
        if value != now["fields"].get(name)
    ]
    files = changed_names(before["files"], now["files"])
    of_model = [name.removesuffix(_OF_MODEL) for name in files if name.endswith(_OF_MODEL)]
    changed += [f"the contents of {name}" for name in files if not name.endswith(_OF_MODEL)]
    if of_model:
        changed.append(f"the contents of the model's {', '.join(of_model)}")
    if changed:
        raise ConfigError(
            f"{checkpoint}: a resumed run cannot change {', '.join(changed)}; restore what the "
            "checkpoint was made with, or start another run"
        )


def _value(tree: dict[str, Any], name: str) -> Any:
    value: Any = tree
    for part in name.split("."):
        value = value[part]
    return value

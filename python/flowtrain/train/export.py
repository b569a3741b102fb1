"""`flowtrain export`: the model of a checkpoint as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from flowtrain.config.checks import ConfigError, require
from flowtrain.config.dtypes import Dtype
from flowtrain.models.dtypes import DTYPES
from flowtrain.train.state.checkpoint_files import best as best_checkpoint
from flowtrain.train.state.checkpoint_files import read_meta, valid_checkpoints
from flowtrain.train.state.final import write_model
from flowtrain.train.state.logs import EVALUATIONS, read_log
from flowtrain.train.state.run_folder import CONFIG, read_config


def export(
    run: Path,
    *,
    step: int | None = None,
    best: bool = False,
    model: Path | None = None,
    out: Path | None = None,
    merged: bool = False,
    dtype: Dtype | None = None,
) -> dict[str, Any]:
    """Write the model of a checkpoint; the run may still be training.

    Args:
        run: Folder of the run.
        step: Steps that the checkpoint contains; None takes the newest.
        best: Take the checkpoint with the lowest loss in an evaluation instead.
        model: Folder of the model that the run started from, if it has been moved.
        out: Folder to write, which must not exist; None is `RUN/exports/step-N`, or
            `RUN/exports/step-N-merged`.
        merged: Merge the adapters of the run into the weights of the model that it started from.
        dtype: Dtype of the files; None for that of the run (`model.dtype`).

    Returns:
        The folder, the number of steps, and the weight change of each module since the start.

    Raises:
        ConfigError: There is no such run or checkpoint, the folder exists, or files of the model
            have changed since the run began; or there are no adapters to merge.
        CheckpointError, RunFileError: The checkpoint cannot be read, for example because the run
            has deleted it.
    """
    checkpoints = valid_checkpoints(run)
    if not checkpoints:
        raise ConfigError(f"{run}: no checkpoint; give the folder of a run that has saved one")
    if best:
        if (found := best_checkpoint(run)) is None:
            way_out = "choose a checkpoint with --step"
            if any(read_log(run / EVALUATIONS)):
                raise ConfigError(
                    f"--best: no checkpoint of {run} is left of an evaluation with a finite loss; "
                    f"{way_out}"
                )
            raise ConfigError(
                f"--best: no checkpoint of {run} was evaluated; set eval.path and eval.every in "
                f"the run, or {way_out}"
            )
        step = read_meta(found).step + 1
    steps = next(reversed(checkpoints)) if step is None else step
    if steps not in checkpoints:
        raise ConfigError(
            f"--step={step}: {run} has no such checkpoint; choose {_listed(checkpoints)} "
            "(checkpoint.keep says how many are kept)"
        )
    checkpoint = checkpoints[steps]
    folder = out or run / "exports" / f"{checkpoint.name}{'-merged' * merged}"
    if folder.exists():
        raise ConfigError(f"--out={folder}: it exists; remove it, or choose another folder")
    # The folder may have been moved since the run.
    config = replace(read_config(checkpoint / CONFIG, way_out=_way_out(run)), run=run)
    require(
        bool(config.lora.adapters) or not merged,
        f"--merge: {run} has no adapters, and its model is whole already; leave --merge out",
    )
    if model is not None:
        given = config.model
        moved = replace(given, path=model) if given.path else replace(given, config=model)
        config = replace(config, model=moved)
    require(
        config.model.folder.is_dir(),
        f"{config.model.folder}: the model that the run started from is no longer there; name its "
        "folder with --model",
    )
    require(
        (config.model.folder / "config.json").is_file(),
        f"{config.model.folder}: it has no config.json, so it is not the model that the run "
        "started from; name its folder with --model",
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    change = write_model(config, checkpoint, folder, merged=merged, dtype=dtype and DTYPES[dtype])
    return {"folder": str(folder), "steps": steps, **change}


def _way_out(run: Path) -> str:
    return f"copy {run / CONFIG} there, or choose another checkpoint with --step"


def _listed(steps: dict[int, Path]) -> str:
    *others, last = map(str, steps)
    return f"{', '.join(others)} or {last}" if others else last

"""The checkpoints of a run on disk, and what each says of itself, without its tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from flowtrain.config.checks import ConfigError
from flowtrain.config.tree import build
from flowtrain.train.state.atomic import remove
from flowtrain.train.state.files import RunFileError, read_object, without
from flowtrain_core import FlowTrainError

_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointMeta:
    """Contents of `mark.json`: the state of a run beside the tensors, for a resume."""

    step: int
    """Last step that the checkpoint contains."""
    cursor: int
    """Samples drawn from the data order up to and including that step."""
    stepped: dict[str, int]
    """Steps that the optimizer of each module has taken."""
    eval_loss: float | None = None
    """Loss of the evaluation after that step, if there was one, and it is finite."""
    held_out: str | None = None
    """Hash and number of the samples of that evaluation."""


def valid_checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run by the number of steps they contain, the oldest first."""
    found = run.joinpath("checkpoints").glob("step-*")
    named = {int(match[1]): p for p in found if (match := _NAME.fullmatch(p.name))}
    return dict(sorted(named.items()))


def latest(run: Path) -> Path | None:
    """The newest valid checkpoint of a run, or None."""
    return next(reversed(valid_checkpoints(run).values()), None)


def best(run: Path) -> Path | None:
    """The valid checkpoint of a run with the lowest loss in an evaluation, or None.

    Evaluations on other samples than those of the latest one do not count.
    """
    found = [(path, read_meta(path)) for path in valid_checkpoints(run).values()]
    evaluated = [(path, meta) for path, meta in found if meta.eval_loss is not None]
    losses = {
        path: meta.eval_loss
        for path, meta in evaluated
        if meta.eval_loss is not None and meta.held_out == evaluated[-1][1].held_out
    }
    return min(losses, key=losses.__getitem__, default=None)


def remove_after(run: Path, steps: int) -> None:
    """Remove the checkpoints of a run after the one of a number of steps.

    Raises:
        CheckpointError: There is none of so many steps.
    """
    found = valid_checkpoints(run)
    if steps not in found:
        has = ", ".join(map(str, found)) or "none"
        raise CheckpointError(
            f"{run / 'checkpoints'}: there is no checkpoint after {steps} steps to go on from; "
            f"those here are after: {has}"
        )
    for step, folder in found.items():
        if step > steps:
            remove(folder)


class CheckpointError(FlowTrainError, RuntimeError):
    """A checkpoint cannot be written or read; the message names its folder and the cause."""


def read_meta(checkpoint: Path) -> CheckpointMeta:
    """Read `mark.json` of a checkpoint.

    Raises:
        CheckpointError: It cannot be read, or is damaged.
    """
    path, way_out = checkpoint / "mark.json", without(checkpoint)
    try:
        found = read_object(path, (), way_out=way_out)
    except RunFileError as error:
        raise CheckpointError(str(error)) from error
    try:
        return build(CheckpointMeta, found, source=str(path))
    except ConfigError as error:
        raise CheckpointError(f"{error}; {way_out}") from error

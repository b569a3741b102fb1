"""Checkpoints at the close of a step, valid once their folder has its final name."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.storage import WriteResult

from flowtrain.config.load import dump
from flowtrain.config.schema import RunConfig
from flowtrain.plan import StepPlan
from flowtrain.train.control.store import Board
from flowtrain.train.ranks.metrics import LOGS
from flowtrain.train.state.atomic import PART, commit, flush, remove
from flowtrain.train.state.resume import FINGERPRINT

if TYPE_CHECKING:
    from flowtrain.train.control.world import World
    from flowtrain.train.ranks.context import Module

_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What a run needs besides weights to go on after a step."""

    step: int
    """Last step that the checkpoint contains."""
    cursor: int
    """Samples drawn from the data order up to and including it."""
    stepped: dict[str, int]
    """Steps that each world's optimizer has taken."""


def latest(run: Path) -> Path | None:
    """The newest valid checkpoint of a run."""
    found = [p for p in run.joinpath("checkpoints").glob("step-*") if _NAME.fullmatch(p.name)]
    return max(found, key=lambda p: p.name, default=None)


def read_mark(checkpoint: Path) -> Mark:
    """The mark of a checkpoint."""
    return Mark(**json.loads(checkpoint.joinpath("mark.json").read_text()))


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message names its folder and the cause."""


@contextmanager
def _using(folder: Path) -> Iterator[None]:
    """Save or load a folder within the block, which names it if that fails."""
    with warnings.catch_warnings():
        # A rank alone needs no process group, and PyTorch would warn that it has none.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except (CheckpointException, OSError) as error:
            cause: BaseException = error
            if isinstance(error, CheckpointException):
                cause, _ = next(iter(error.failures.values()))
            cause = _of_the_system(cause)
            raise CheckpointError(
                f"{folder}: {type(cause).__name__}: {cause}; correct that, and go on with --resume"
            ) from error


def _of_the_system(error: BaseException) -> BaseException:
    """The system's error that an error began with, or the error itself.

    Where a disk becomes full in the middle of a file, PyTorch raises a RuntimeError about the
    position in it.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found or error


class _Writer(dcp.FileSystemWriter):
    """Raises the system's error where a file cannot be written.

    The ranks of a world exchange their errors by pickle, which drops the causes of an error.
    """

    def write_data(
        self, plan: dcp.SavePlan, planner: dcp.SavePlanner
    ) -> torch.futures.Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise _of_the_system(error) from None


def _tensors(module: Module) -> dict[str, Any]:
    """What is saved of a module; empty optimizer state is left out, as it has no tensors.

    The optimizer's parameter groups are left out as well: they hold the configuration's values.
    """
    state: dict[str, Any] = {"model": get_model_state_dict(module.module)}
    if module.optimizer is not None and module.stepped:
        state["optimizer"] = get_optimizer_state_dict(module.module, module.optimizer)["state"]
    return state


class Checkpoints:
    """One world's part in saving and loading checkpoints.

    Args:
        config: The run.
        world: The world whose module is saved.
        board: The job's board, over which the worlds agree that a checkpoint is whole.
    """

    def __init__(self, config: RunConfig, world: World, board: Board) -> None:
        self._config = config
        self._world = world
        self._board = board
        self._folder = config.run / "checkpoints"

    def after(self, plan: StepPlan, module: Module) -> None:
        """Save if this step is one to save at; called by every rank of both worlds."""
        done = plan.step + 1
        every = self._config.checkpoint.every
        if done != self._config.train.steps and not (every and done % every == 0):
            return
        part = self._folder / f"step-{done:08d}{PART}"
        if self._world.leads:
            part.mkdir(parents=True, exist_ok=True)
        folder = part / self._world.name
        with _using(folder):
            dcp.save(
                _tensors(module), storage_writer=_Writer(folder), no_dist=self._world.size == 1
            )
        if self._world.name == "encoder":
            if self._world.leads:
                self._board.put(f"saved/{done}/encoder", module.stepped)
        elif self._world.leads:
            self._commit(part, plan, module.stepped)

    def _commit(self, part: Path, plan: StepPlan, stepped: int) -> None:
        done = plan.step + 1
        encoder = self._board.get(f"saved/{done}/encoder", who="the encoder world")
        mark = Mark(
            step=plan.step,
            cursor=plan.cursor,
            stepped={"encoder": encoder, "backbone": stepped},
        )
        with _using(part):
            part.joinpath("mark.json").write_text(json.dumps(asdict(mark)))
            part.joinpath("config.yaml").write_text(dump(self._config))
            shutil.copyfile(self._config.run / FINGERPRINT, part / FINGERPRINT)
            # After a power failure the logs must have the steps that the checkpoint has.
            for log in filter(Path.exists, (self._config.run / name for name in LOGS)):
                flush(log)
            commit(part, part.with_suffix(""))
        self._board.delete(f"saved/{done}/encoder")
        valid = sorted(p for p in self._folder.glob("step-*") if _NAME.fullmatch(p.name))
        for old in valid[: -self._config.checkpoint.keep]:
            remove(old)

    def load(self, checkpoint: Path, module: Module, mark: Mark) -> None:
        """Fill a module and its optimizer from a checkpoint, and bring its schedule to that step.

        The learning rate of a step depends on the configuration and the step alone: it is that of
        a run with this configuration from the start. Weight decay, betas and the like are the
        configuration's as well; of the optimizer, only its state is the checkpoint's.
        """
        module.restore_schedule(mark.step + 1)
        module.stepped = mark.stepped[self._world.name]
        state = _tensors(module)
        folder = checkpoint / self._world.name
        with _using(folder):
            dcp.load(state, checkpoint_id=folder, no_dist=self._world.size == 1)
        set_model_state_dict(module.module, state["model"], options=StateDictOptions(strict=True))
        if module.optimizer is not None and module.stepped:
            groups = get_optimizer_state_dict(module.module, module.optimizer)["param_groups"]
            set_optimizer_state_dict(
                module.module,
                module.optimizer,
                {"state": state["optimizer"], "param_groups": groups},
            )


def load_part(checkpoint: Path, world: str, module: torch.nn.Module) -> None:
    """Fill the parameters that a world saved, in a process of its own."""
    state = get_model_state_dict(module)
    wanted = {
        key: value
        for key, value in state.items()
        if key.startswith("model.visual.") == (world == "encoder")
    }
    folder = checkpoint / world
    with _using(folder):
        dcp.load({"model": wanted}, checkpoint_id=folder, no_dist=True)
    set_model_state_dict(module, wanted, options=StateDictOptions(strict=False))

"""Checkpoints, written after the update of a step; valid once their folder has its final name."""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
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

from flowtrain.config.checkpoint import CheckpointConfig
from flowtrain.data.records import drop_before
from flowtrain.models.family import Family
from flowtrain.steps import StepPlan
from flowtrain.train.control.store import JobStore
from flowtrain.train.control.world import World
from flowtrain.train.state.atomic import PART, commit, flush, remove
from flowtrain.train.state.background import Background
from flowtrain.train.state.checkpoint_files import (
    CheckpointError,
    CheckpointMeta,
    best,
    latest,
    read_meta,
    valid_checkpoints,
)
from flowtrain.train.state.files import without
from flowtrain.train.state.logs import LOGS, SPOOL
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.resume import FINGERPRINT, held_out_contents
from flowtrain.train.state.trained import frozen_names
from flowtrain.train.state.unpickle import check_metadata

_OF_PICKLES = ("EOFError", "UnpicklingError")


@contextmanager
def _checkpoint_errors(
    folder: Path, way_out: str = "correct that, and go on with --resume"
) -> Iterator[None]:
    """Turn errors of saving or loading within the block into a CheckpointError."""
    with warnings.catch_warnings():
        # A world of one rank saves without its process group, and PyTorch warns about that.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except (CheckpointException, OSError) as error:
            cause: BaseException = error
            if isinstance(error, CheckpointException):
                cause, _ = next(iter(error.failures.values()))
            cause = _os_error_behind(cause)
            # The texts of these are about pickles, in many lines, or empty.
            kind = type(cause).__name__
            text = "a file of tensors is damaged" if kind in _OF_PICKLES else cause
            raise CheckpointError(f"{folder}: {kind}: {text}; {way_out}") from error


def _os_error_behind(error: BaseException) -> BaseException:
    """The OSError that caused an error, or the error itself if there is none.

    If a disk becomes full in the middle of a file, PyTorch raises a RuntimeError about the position
    in the file.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found or error


class _Writer(dcp.FileSystemWriter):
    """Raises the OSError itself if a file cannot be written.

    The ranks of a world exchange their errors by pickle, which drops the cause of an error.
    """

    def write_data(
        self, plan: dcp.SavePlan, planner: dcp.SavePlanner
    ) -> torch.futures.Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise _os_error_behind(error) from None


def _saved(module: torch.nn.Module, adapters: bool) -> dict[str, Any]:
    """The tensors of a module that its checkpoints have, by name.

    Beside adapters, weights that do not train are left out: each start has them from the folder of
    the model, or draws them from the seed.
    """
    left_out = frozen_names(module) if adapters else set()
    state = get_model_state_dict(module)
    return {name: value for name, value in state.items() if name not in left_out}


def _tensors(module: ModuleState, adapters: bool) -> dict[str, Any]:
    """The tensors of a part of the model and of its optimizer, with its master weights in place.

    The optimizer is left out while it has no state.
    Its parameter groups are always left out, since their values come from the configuration.
    """
    model = _saved(module.module, adapters)
    state: dict[str, Any] = {"model": {k: v for k, v in model.items() if module.holds(k)}}
    if module.optimizer is not None and module.stepped:
        module.complete_state()
        state["optimizer"] = get_optimizer_state_dict(module.module, module.optimizer)["state"]
    return state


class Checkpoints:
    """Saves and loads the modules of one world.

    With `checkpoint.background` a save copies the tensors to host memory, and a thread writes them
    while the run goes on. At most one save is in flight. It becomes valid once both worlds have
    written it, and until then the checkpoint before is the latest.

    Args:
        run: Folder of the run.
        config: Section `checkpoint`.
        world: The world of this rank.
        modules: The modules that its ranks hold, by name.
        store: The job's store, through which the worlds agree that a checkpoint is complete.
        config_text: Configuration of the run, which each checkpoint has beside it.
        adapters: Whether adapters train.
        keeps_best: Whether the checkpoint with the lowest loss of an evaluation is kept.
        alone: Whether no other world saves, as encoder ranks come and go. The encoder of a
            checkpoint is then that of the one before; without one it is as at the start.
    """

    def __init__(
        self,
        run: Path,
        config: CheckpointConfig,
        world: World,
        modules: Mapping[str, ModuleState],
        store: JobStore,
        *,
        config_text: str,
        adapters: bool,
        keeps_best: bool,
        alone: bool = False,
    ) -> None:
        self._run = run
        self._keep = config.keep
        self._config_text = config_text
        self._adapters = adapters
        self._keeps_best = keeps_best
        self._alone = alone
        self._world = world
        self._modules = modules
        self._store = store
        self._folder = run / "checkpoints"
        self._background = Background(world, store) if config.background else None

    def save(self, plan: StepPlan, eval_loss: float | None = None) -> None:
        """Save after the update of a step; called by every rank.

        Args:
            plan: The step.
            eval_loss: Loss of the evaluation after it, if there was one.

        Raises:
            CheckpointError: It cannot be written; or the save before, in the background.
        """
        self.wait()
        done = plan.step + 1
        part = self._folder / f"step-{done:08d}{PART}"
        if self._world.commits:
            part.mkdir(parents=True, exist_ok=True)
        stepped = {name: module.stepped for name, module in self._modules.items()}
        meta = CheckpointMeta(step=plan.step, cursor=plan.cursor, stepped=stepped)
        if eval_loss is not None and math.isfinite(eval_loss):
            held_out = held_out_contents(self._run)
            meta = replace(meta, eval_loss=eval_loss, held_out=held_out)
        if self._background is None:
            for name, module in self._modules.items():
                with module.master.in_place():
                    self._write(part / name, _tensors(module, self._adapters), None)
            self._complete(part, meta, self._store)
            return
        copies = {}
        for name, module in self._modules.items():
            with module.master.in_place():
                copies[name] = self._background.copied(_tensors(module, self._adapters))
        self._background.start(partial(self._write_copies, part, copies, meta))

    def poll(self) -> None:
        """Raise what has failed in the background; called in every step.

        Raises:
            CheckpointError: A save cannot be written.
        """
        if self._background is not None and self._background.failed:
            self.wait()

    def wait(self) -> None:
        """Wait until the save in the background, if any, is complete.

        Raises:
            CheckpointError: It cannot be written.
        """
        if self._background is not None:
            self._background.wait()

    def _write_copies(self, part: Path, copies: dict[str, Any], meta: CheckpointMeta) -> None:
        assert self._background is not None
        for name, state in copies.items():
            self._write(part / name, state, self._background.group)
        self._complete(part, meta, self._background.store)

    def _write(self, folder: Path, state: dict[str, Any], group: dist.ProcessGroup | None) -> None:
        with _checkpoint_errors(folder):
            dcp.save(
                state,
                storage_writer=_Writer(folder),
                process_group=group,
                no_dist=self._world.size == 1,
            )

    def _complete(self, part: Path, meta: CheckpointMeta, store: JobStore) -> None:
        """Commit a checkpoint that this world has written, once the other has as well."""
        if not self._world.commits:
            return
        stepped, key = meta.stepped, f"saved/{meta.step + 1}"
        if "backbone" not in stepped:
            store.put(key, stepped)
            return
        if self._alone:
            stepped = stepped | _link_encoder(latest(self._run), part)
        elif "encoder" not in stepped:
            stepped = stepped | store.get(key, writer="the encoder world")
            store.delete(key)
        self._commit(part, replace(meta, stepped=stepped))

    def _commit(self, part: Path, meta: CheckpointMeta) -> None:
        with _checkpoint_errors(part):
            part.joinpath("mark.json").write_text(json.dumps(asdict(meta)))
            part.joinpath("config.yaml").write_text(self._config_text)
            shutil.copyfile(self._run / FINGERPRINT, part / FINGERPRINT)
            # Also after a power failure, the logs must contain the steps of the checkpoint.
            for log in filter(Path.exists, (self._run / name for name in LOGS)):
                flush(log)
            commit(part, part.with_suffix(""))
        kept = best(self._run) if self._keeps_best else None
        valid = list(valid_checkpoints(self._run).values())
        for old in valid[: -self._keep]:
            if old != kept:
                remove(old)
        if (spool := self._run / SPOOL).exists():
            # Not the best checkpoint: it may be so old that the records since would fill the disk.
            drop_before(spool, min(read_meta(path).cursor for path in valid[-self._keep :]))

    def load(self, checkpoint: Path) -> None:
        """Load the modules and the state of their optimizers, and advance their schedules.

        Learning rate, weight decay, betas and the like come from the configuration. The learning
        rate of a step is that of a run which had this configuration from the start.
        """
        meta = read_meta(checkpoint)
        for name, module in self._modules.items():
            if name in meta.stepped:
                stepped = meta.stepped[name]
                self._load(checkpoint / name, module, steps=meta.step + 1, stepped=stepped)
            else:
                module.restore_schedule(meta.step + 1)

    def _load(self, folder: Path, module: ModuleState, *, steps: int, stepped: int) -> None:
        module.restore_schedule(steps)
        module.stepped = stepped
        with module.master.in_place():
            self._load_tensors(folder, module)

    def _load_tensors(self, folder: Path, module: ModuleState) -> None:
        state = _tensors(module, self._adapters)
        with _checkpoint_errors(folder, without(folder.parent)):
            check_metadata(folder)
            dcp.load(state, checkpoint_id=folder, no_dist=self._world.size == 1)
        # Not strict, since the model may have another part, too; a tensor that the checkpoint
        # lacks is an error of `dcp.load`.
        set_model_state_dict(module.module, state["model"], options=StateDictOptions(strict=False))
        if module.optimizer is not None and module.stepped:
            groups = get_optimizer_state_dict(module.module, module.optimizer)["param_groups"]
            set_optimizer_state_dict(
                module.module,
                module.optimizer,
                {"state": state["optimizer"], "param_groups": groups},
            )


def _link_encoder(before: Path | None, part: Path) -> dict[str, int]:
    """Let a checkpoint have the encoder of the one before, if that has one.

    Returns:
        The steps that its optimizer has taken, by the name of the module.
    """
    stepped = {} if before is None else read_meta(before).stepped
    if before is None or "encoder" not in stepped:
        return {}
    with _checkpoint_errors(part):
        shutil.rmtree(part / "encoder", ignore_errors=True)
        shutil.copytree(before / "encoder", part / "encoder", copy_function=os.link)
    return {"encoder": stepped["encoder"]}


def load_part(checkpoint: Path, part: str, module: torch.nn.Module, family: Family) -> None:
    """Load one part of a full model, in a process without a process group.

    Args:
        checkpoint: A valid checkpoint of the run.
        part: The part.
        module: The full model; its parameters that train require gradients.
        family: Its family.
    """
    if not checkpoint.joinpath(part).exists() and part not in read_meta(checkpoint).stepped:
        return  # It has never trained.
    state = _saved(module, bool(family.lora.adapters))
    wanted = {key: value for key, value in state.items() if family.side_of(key) == part}
    folder = checkpoint / part
    with _checkpoint_errors(folder, without(checkpoint)):
        check_metadata(folder)
        dcp.load({"model": wanted}, checkpoint_id=folder, no_dist=True)
    set_model_state_dict(module, wanted, options=StateDictOptions(strict=False))

"""The folder of a run: locked by one launcher, its logs cut to the step where the run resumes."""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flowtrain.config.checks import ConfigError, require
from flowtrain.config.load import dump, load
from flowtrain.config.schema import RunConfig
from flowtrain.events import FOLDER
from flowtrain.train.state import atomic
from flowtrain.train.state.checkpoint_files import latest, read_meta
from flowtrain.train.state.files import LOCK, RunFileError, read_text, without
from flowtrain.train.state.logs import LOGS, OF_EVERY_STEP, SPOOL, cut
from flowtrain.train.state.resume import FINGERPRINT, check_resume, fingerprint
from flowtrain.train.state.traffic import TRAFFIC
from flowtrain_core.edges import Explanation

CONFIG = "config.yaml"
HOSTS = "hosts"
"""Folder in which other hosts say where the job is for their ranks, by the hosts' names."""
EDGES = "edges"
"""Folder that says which path each edge of a rank took, and each gateway."""
HEADER = "# Written by flowtrain train at every start.\n"
"""First line of a `RUN/config.yaml` that a launcher wrote."""


def write_edges(run: Path, label: str, edges: Iterable[Explanation]) -> None:
    """Write to `RUN/edges/LABEL.txt` which path each edge of a rank took, and why."""
    folder = run / EDGES
    folder.mkdir(exist_ok=True)
    atomic.write_text(folder / f"{label}.txt", "".join(f"{edge}\n" for edge in edges))


def read_config(path: Path, *, way_out: str) -> RunConfig:
    """A configuration that a launcher or a rank has written.

    Raises:
        RunFileError: The file cannot be read, was cut, or is no configuration.
    """
    if not read_text(path, way_out=way_out).endswith("\n"):
        # What is left would have the defaults of the other fields.
        raise RunFileError(f"{path}: the end of the file is missing; {way_out}")
    try:
        return load(path)
    except ConfigError as error:
        # Errors of YAML are in several lines.
        raise RunFileError(f"{' '.join(str(error).split())}; {way_out}") from error


def written_config(run: Path) -> RunConfig | None:
    """Configuration that the last launcher of a run has written; None if there is none.

    Without `RUN/config.yaml` it is that of the newest checkpoint.

    Raises:
        RunFileError: The file is damaged.
    """
    newest = latest(run)
    for folder in [run, *([] if newest is None else [newest])]:
        path = folder / CONFIG
        if path.exists():
            way_out = "move it away, and --resume writes it anew"
            return read_config(path, way_out=way_out if folder == run else without(folder))
    return None


def check_place(path: Path, config: RunConfig) -> None:
    """Refuse the `config.yaml` of a run that was moved: its run would start anew in the old place.

    Args:
        path: The file that the user gives.
        config: What it says.

    Raises:
        ConfigError: A launcher has written it, and for another folder than its own.
    """
    folder = path.resolve().parent
    if path.name != CONFIG or config.run.resolve() == folder:
        return
    if read_text(path, way_out="give another file").startswith(HEADER):
        raise ConfigError(
            f"{path}: run={config.run}, but the file is in {folder}: if the run was moved there, "
            f"add run={folder}; if not, add run={config.run}"
        )


def _check_config_file(path: Path, config: RunConfig) -> None:
    """Refuse to overwrite a `RUN/config.yaml` that no launcher wrote."""
    if not path.exists():
        return
    text = read_text(path, way_out="move it away, or choose another folder for the run")
    if not text.startswith(HEADER) and text != dump(config):
        raise ConfigError(
            f"run={config.run}: a run would overwrite {path}, which flowtrain train did not write; "
            "move it, or choose another folder"
        )


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Lock a run's folder within the block, so that no other launcher trains there.

    Raises:
        ConfigError: Another launcher has locked it.
    """
    with run.joinpath(LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"run={run}: another launcher is training there; wait for it or choose another "
                "folder"
            ) from error
        yield


def check_unused(run: Path) -> None:
    """Refuse a folder that holds a run, as `open_run` does, before the model and data are read.

    Raises:
        ConfigError: It holds a run, another launcher is training there, or it is a file.
    """
    if run.joinpath(LOCK).exists():
        with lock_run(run):
            _check_unused(run)
    else:
        _check_unused(run)


def _check_unused(run: Path) -> None:
    require(not run.is_file(), f"run={run}: it is a file; give a folder")
    if any(run.joinpath(name).exists() for name in LOGS) or latest(run) is not None:
        raise ConfigError(
            f"run={run}: it holds a run already; choose another folder, or go on with it: "
            "--resume (flowtrain.connect: resume=True; a Trainer: "
            "train(resume_from_checkpoint=True))"
        )


@contextmanager
def open_run(config: RunConfig, *, resume: bool, logs_steps: bool = True) -> Iterator[int]:
    """Lock and prepare the run's folder within the block.

    Args:
        config: The run; it is written to `RUN/config.yaml`.
        resume: Resume from the latest checkpoint, if there is one, and cut the logs to it.
        logs_steps: Whether the run logs the figures of its steps; a loop of the caller does not.

    Yields:
        Number of steps that are trained already.

    Raises:
        ConfigError: The folder is in use, it holds another run, or the latest checkpoint cannot
            be resumed with this configuration.
        RunFileError, CheckpointError: A file in it is damaged.
    """
    run = config.run
    require(not run.is_file(), f"run={run}: it is a file; give a folder")
    run.joinpath("checkpoints").mkdir(parents=True, exist_ok=True)
    with lock_run(run):
        logs = [run / name for name in LOGS]
        _check_config_file(run / CONFIG, config)
        if not resume:
            _check_unused(run)
        newest = latest(run)
        now = fingerprint(config)
        step = 0
        if newest is not None:
            check_resume(newest, now)
            step = read_meta(newest).step + 1
            if step > config.train.steps:
                raise ConfigError(
                    f"train.steps={config.train.steps}: {newest} has {step} steps already; set "
                    "it to that or more, or start another run"
                )
        if resume and newest is None:
            _say(f"run={run}: there is no checkpoint, and the run starts at step 0")
        for log in logs:
            kept = cut(log, step)
            if logs_steps and log.name in OF_EVERY_STEP and kept < step:
                _say(
                    f"{log}: it has {kept} of the {step} steps that are trained; the run goes on, "
                    "and the summary leaves the others out"
                )
        if newest is None:
            # A run from the start reads its stream from the start. The lock of the spool stays, as
            # a rank of an earlier start may still have it.
            for file in run.joinpath(SPOOL).glob("*.json*"):
                file.unlink()
            shutil.rmtree(run / FOLDER, ignore_errors=True)
        if step < config.train.steps:
            # Each rank and host writes its own file, and this attempt may have fewer.
            for folder in (EDGES, HOSTS, TRAFFIC):
                shutil.rmtree(run / folder, ignore_errors=True)
        for suffix in (atomic.PART, atomic.OLD):
            for left in run.joinpath("checkpoints").glob(f"*{suffix}"):
                shutil.rmtree(left)
        atomic.write_text(run / CONFIG, HEADER + dump(config))
        atomic.write_text(run / FINGERPRINT, json.dumps(now, indent=2) + "\n")
        yield step


def _say(text: str) -> None:
    print(f"flowtrain: {text}", file=sys.stderr)

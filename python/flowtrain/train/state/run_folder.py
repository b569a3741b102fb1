"""The folder of a run: locked by one launcher, its logs cut to the step where the run resumes."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flowtrain.config.checks import ConfigError
from flowtrain.config.load import dump
from flowtrain.config.schema import RunConfig
from flowtrain.events import FOLDER
from flowtrain.train.state import atomic
from flowtrain.train.state.checkpoint import latest, read_meta
from flowtrain.train.state.logs import LOGS, SPOOL, cut
from flowtrain.train.state.resume import FINGERPRINT, check_resume, fingerprint
from flowtrain_core.edges import Explanation

# First line of a RUN/config.yaml that a launcher wrote.
_HEADER = "# Written by flowtrain train at every start.\n"


def write_edges(run: Path, label: str, edges: Iterable[Explanation]) -> None:
    """Write to `RUN/edges/LABEL.txt` which path each edge of a rank took, and why."""
    folder = run / "edges"
    folder.mkdir(exist_ok=True)
    atomic.write_text(folder / f"{label}.txt", "".join(f"{edge}\n" for edge in edges))


def _check_config_file(path: Path, config: RunConfig) -> None:
    """Refuse to overwrite a `RUN/config.yaml` that no launcher wrote."""
    if not path.exists():
        return
    text = path.read_text()
    if not text.startswith(_HEADER) and text != dump(config):
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
    with run.joinpath("lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"run={run}: another launcher is training there; wait for it or choose another "
                "folder"
            ) from error
        yield


@contextmanager
def open_run(config: RunConfig, *, resume: bool) -> Iterator[int]:
    """Lock and prepare the run's folder within the block.

    Args:
        config: The run; it is written to `RUN/config.yaml`.
        resume: Resume from the latest checkpoint, if there is one, and cut the logs to it.

    Yields:
        Number of steps that are trained already.

    Raises:
        ConfigError: The folder is in use, it holds another run, or the latest checkpoint cannot
            be resumed with this configuration.
    """
    run = config.run
    run.mkdir(parents=True, exist_ok=True)
    with lock_run(run):
        logs = [run / name for name in LOGS]
        _check_config_file(run / "config.yaml", config)
        newest = latest(run)
        if not resume and (newest is not None or any(log.exists() for log in logs)):
            raise ConfigError(
                f"run={run}: it holds a run already; add --resume to go on with it, or choose "
                "another folder"
            )
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
        for log in logs:
            cut(log, step)
        if newest is None:
            # A run from the start reads its stream from the start. The lock of the spool stays, as
            # a rank of an earlier start may still have it.
            for file in run.joinpath(SPOOL).glob("*.json*"):
                file.unlink()
            shutil.rmtree(run / FOLDER, ignore_errors=True)
        if step < config.train.steps:
            # Each rank writes its own file, and this attempt may have fewer ranks.
            shutil.rmtree(run / "edges", ignore_errors=True)
        for suffix in (atomic.PART, atomic.OLD):
            for left in run.joinpath("checkpoints").glob(f"*{suffix}"):
                shutil.rmtree(left)
        atomic.write_text(run / "config.yaml", _HEADER + dump(config))
        atomic.write_text(run / FINGERPRINT, json.dumps(now, indent=2) + "\n")
        yield step

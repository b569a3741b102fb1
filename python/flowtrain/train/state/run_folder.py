"""The folder of a run: held by one launcher, its logs cut to where the run goes on."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flowtrain.config.load import dump
from flowtrain.config.schema import ConfigError, RunConfig
from flowtrain.train.ranks import metrics
from flowtrain.train.state import atomic
from flowtrain.train.state.checkpoint import latest, read_mark
from flowtrain.train.state.resume import FINGERPRINT, check_resume, fingerprint
from flowtrain_core.edges import Explanation

# First line of RUN/config.yaml.
_WRITTEN = "# Written by flowtrain train at every start.\n"


def note_edges(run: Path, label: str, edges: Iterable[Explanation]) -> None:
    """Say in `RUN/edges/LABEL.txt` what path each of a rank's edges took, and which not and why."""
    folder = run / "edges"
    folder.mkdir(exist_ok=True)
    atomic.write_text(folder / f"{label}.txt", "".join(f"{edge}\n" for edge in edges))


def _check_config_file(path: Path, config: RunConfig) -> None:
    """Refuse a `RUN/config.yaml` that no launcher wrote: the run would write over it."""
    if not path.exists():
        return
    text = path.read_text()
    if not text.startswith(_WRITTEN) and text != dump(config):
        raise ConfigError(
            f"run={config.run}: flowtrain train writes {path}, and did not write the one that is "
            "there; move it, or choose another folder"
        )


@contextmanager
def hold(run: Path) -> Iterator[None]:
    """Hold a run's folder within the block: no other launcher trains there meanwhile.

    Raises:
        ConfigError: Another launcher holds it.
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
def run_folder(config: RunConfig, *, resume: bool) -> Iterator[int]:
    """Hold the run's folder within the block, which is given the number of steps already trained.

    Args:
        config: The run; it is written to `RUN/config.yaml`.
        resume: Cut the logs to the latest checkpoint, where there is one.

    Raises:
        ConfigError: The folder is in use, or holds another run, or the latest checkpoint is not
            one to go on from with this configuration.
    """
    run = config.run
    run.mkdir(parents=True, exist_ok=True)
    with hold(run):
        logs = [run / name for name in metrics.LOGS]
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
            step = read_mark(newest).step + 1
            if step > config.train.steps:
                raise ConfigError(
                    f"train.steps={config.train.steps}: {newest} has {step} steps already; set "
                    "it to that or more, or start another run"
                )
        for log in logs:
            metrics.cut(log, step)
        if step < config.train.steps:
            # Each rank writes its own, and this attempt may have fewer ranks.
            shutil.rmtree(run / "edges", ignore_errors=True)
        for suffix in (atomic.PART, atomic.OLD):
            for left in run.joinpath("checkpoints").glob(f"*{suffix}"):
                shutil.rmtree(left)
        atomic.write_text(run / "config.yaml", _WRITTEN + dump(config))
        atomic.write_text(run / FINGERPRINT, json.dumps(now, indent=2) + "\n")
        yield step

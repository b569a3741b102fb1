"""The file in which a run or a loop says where its job is, for the ranks that join it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flowtrain_core
from flowtrain.config.checks import ConfigError
from flowtrain.train.control.job import Job
from flowtrain.train.state import atomic
from flowtrain.train.state.ending import how_it_ended
from flowtrain_core import list_pools

JOB = "job.json"
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFile:
    """Contents of the file.

    Attributes:
        job: The job.
        resume: Whether its ranks go on from the last checkpoint.
        of_run: Whether it is of `flowtrain train`, and not of a loop.
        version: The FlowTrain that runs it.
    """

    job: Job
    resume: bool
    of_run: bool
    version: str


def write_job(folder: Path, job: Job, *, resume: bool, of_run: bool = False) -> dict[str, Any]:
    """Write where a job is, and return that.

    Args:
        folder: Folder of the job.
        job: The job, whose store and pool exist.
        resume: Whether its ranks go on from the last checkpoint.
        of_run: Whether it is of `flowtrain train`, and not of a loop.
    """
    found = {
        "run": str(folder),
        "address": job.address,
        "nonce": job.nonce,
        "resume": resume,
        "of_run": of_run,
        "version": flowtrain_core.__version__,
    }
    atomic.write_text(folder / JOB, json.dumps(found) + "\n")
    return found


def wait_for_job(folder: Path, *, timeout_s: float) -> JobFile:
    """Wait until a run or a loop has a job in this folder; a line on standard error says so.

    Raises:
        ConfigError: None has within the timeout, or the run in it has ended.
    """
    end = time.monotonic() + timeout_s
    said = False
    while True:
        if (found := _read(folder / JOB)) is not None and _lives(found.job):
            return found
        if not said:
            _check_not_ended(folder, found)
            print(f"flowtrain: waits for a run or a loop in {folder}", file=sys.stderr, flush=True)
            said = True
        if time.monotonic() > end:
            raise ConfigError(
                f"--job {folder}: no run or loop has begun there within --timeout={timeout_s:g} s; "
                "give the folder of a run or of flowtrain.connect, or a longer timeout"
            )
        time.sleep(_POLL_S)


def _check_not_ended(folder: Path, found: JobFile | None) -> None:
    """Refuse a run that has ended; a loop may go on in the same folder."""
    if found is not None and found.of_run and (text := how_it_ended(folder)) is not None:
        raise ConfigError(f"--job {text}")


def _read(path: Path) -> JobFile | None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return JobFile(
        job=Job(found["address"], found["nonce"]),
        resume=found["resume"],
        of_run=found.get("of_run", False),
        version=found.get("version", ""),
    )


def _lives(job: Job) -> bool:
    """Whether the process that hosts a job lives."""
    return any(pool.name == job.pool and pool.alive for pool in list_pools())

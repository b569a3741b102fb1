"""The file in which a loop says where its job is, for the ranks that join it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from flowtrain.config.checks import ConfigError
from flowtrain.train.control.job import Job
from flowtrain.train.state import atomic
from flowtrain_core import list_pools

JOB = "job.json"
_POLL_S = 0.1


def write_job(folder: Path, job: Job, *, resume: bool) -> dict[str, Any]:
    """Write where a job is, and return that.

    Args:
        folder: Folder of the job.
        job: The job, whose store and pool exist.
        resume: Whether its ranks go on from the last checkpoint.
    """
    found = {"run": str(folder), "address": job.address, "nonce": job.nonce, "resume": resume}
    atomic.write_text(folder / JOB, json.dumps(found) + "\n")
    return found


def wait_for_job(folder: Path, *, timeout_s: float) -> tuple[Job, bool]:
    """Wait until a loop has a job in this folder; a line on standard error says so.

    Returns:
        The job, and whether its ranks go on from the last checkpoint.

    Raises:
        ConfigError: None has within the timeout.
    """
    end = time.monotonic() + timeout_s
    said = False
    while True:
        if (found := _read(folder / JOB)) is not None and _lives(found[0]):
            return found
        if time.monotonic() > end:
            raise ConfigError(
                f"--job {folder}: no loop has begun its steps there within --timeout="
                f"{timeout_s:g} s; give the folder of flowtrain.connect, or a longer timeout"
            )
        if not said:
            print(f"flowtrain: waits for a loop in {folder}", file=sys.stderr, flush=True)
            said = True
        time.sleep(_POLL_S)


def _read(path: Path) -> tuple[Job, bool] | None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return Job(found["address"], found["nonce"]), found["resume"]


def _lives(job: Job) -> bool:
    """Whether the process that hosts a job lives."""
    return any(pool.name == job.pool and pool.alive for pool in list_pools())

"""The file in which a run or a loop says where its job is, for the ranks that join it.

On other hosts the job's pool is another one, and its store is reached elsewhere. So in a folder
that several hosts share, each has a file of its own.
"""

from __future__ import annotations

import json
import socket
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
from flowtrain.train.state.files import RunFileError, read_object
from flowtrain.train.state.run_folder import HOSTS
from flowtrain_core import list_pools

JOB = "job.json"
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFile:
    """Contents of the file.

    Attributes:
        job: The job.
        pool_nonce: Of its pool on this host.
        resume: Whether its ranks go on from the last checkpoint.
        of_run: Whether it is of `flowtrain train`, and not of a loop.
        version: The FlowTrain that runs it.
        interface: Address of this host that ranks on other hosts reach; empty if there are none.
        name: Name of this host for the others.
    """

    job: Job
    pool_nonce: int
    resume: bool
    of_run: bool
    version: str
    interface: str
    name: str


def write_job(
    folder: Path,
    job: Job,
    *,
    resume: bool,
    of_run: bool = False,
    interface: str = "",
    host: str | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Write where a job is, and return that.

    Args:
        folder: Folder of the job.
        job: The job, whose store and pool exist.
        resume: Whether its ranks go on from the last checkpoint.
        of_run: Whether it is of `flowtrain train`, and not of a loop.
        interface: Address of this host that ranks on other hosts reach; empty if there are none.
        host: Name of this host, if the folder is that of another host's job.
        name: Name of this host for the others; that of the system by default.
    """
    found = {
        "run": str(folder),
        "address": job.address,
        "nonce": job.nonce,
        "pool_nonce": next(pool.nonce for pool in list_pools() if pool.name == job.pool),
        "resume": resume,
        "of_run": of_run,
        "version": flowtrain_core.__version__,
        "interface": interface,
        "name": name or socket.gethostname(),
    }
    path = job_path(folder, host)
    path.parent.mkdir(exist_ok=True)
    atomic.write_text(path, json.dumps(found) + "\n")
    return found


def job_path(folder: Path, host: str | None = None) -> Path:
    """Path of the file of a host; of the host of the job without a name."""
    return folder / JOB if host is None else folder / HOSTS / f"{host}.json"


def wait_for_job(folder: Path, *, timeout_s: float, again: bool = False) -> JobFile:
    """Wait until a run or a loop has a job in this folder; a line on standard error says so.

    Args:
        folder: The folder.
        timeout_s: Timeout.
        again: Whether to wait for a run that has ended, since it may be about to go on.

    Raises:
        ConfigError: None has within the timeout, or the run in it has ended.
    """
    end = time.monotonic() + timeout_s
    said = False
    while True:
        for path in (job_path(folder), *sorted(folder.joinpath(HOSTS).glob("*.json"))):
            if (found := read_job(path)) is not None and _lives(found):
                return found
        if not said:
            if not again:
                _check_not_ended(folder, read_job(job_path(folder)))
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


def read_job(path: Path) -> JobFile | None:
    """Contents of such a file; None if there is none.

    Raises:
        RunFileError: The file is damaged.
    """
    way_out = "remove it, and start the run again with --resume, which writes it anew"
    try:
        found = read_object(path, ["address", "nonce", "resume"], way_out=way_out)
    except RunFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    return JobFile(
        job=Job(found["address"], found["nonce"]),
        pool_nonce=found.get("pool_nonce", 0),
        resume=found["resume"],
        of_run=found.get("of_run", False),
        version=found.get("version", ""),
        interface=found.get("interface", ""),
        name=found.get("name", ""),
    )


def _lives(found: JobFile) -> bool:
    """Whether the pool of a job is on this host, and its processes live."""
    pools = [pool for pool in list_pools() if pool.name == found.job.pool]
    return any(pool.alive and pool.nonce == found.pool_nonce for pool in pools)

"""How a job has ended, for the gateways that outlive it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flowtrain.train.control.job import HOST_LABEL
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.stops import Stops, say
from flowtrain.train.state.ending import KILLED, code_of, end_of_start
from flowtrain_core import Pool

ENDED = "the run has ended: "
DIED = "the process that hosts the run has died"
"""Reasons that a host sends to the others before it leaves; ENDED is followed by the end."""
_POLL_S = 0.1


async def until_ended(folder: Path, start: int, pool: Pool) -> None:
    """Wait until it is known how the job has ended."""
    while not why_ended(folder, start, pool):
        await asyncio.sleep(_POLL_S)


async def until_lost(pool: Pool, *, of_run: bool) -> None:
    """Wait until the host of the job is lost, with which a job of lasting ranks ends.

    Args:
        pool: Pool of this host.
        of_run: Whether the job is a run, and not a loop.

    Raises:
        RunFailed: It is.
    """
    while not any(
        lane.label == HOST_LABEL and lane.index > 0 and lane.state == "dead"
        for lane in pool.lanes()
    ):
        await asyncio.sleep(_POLL_S)
    if of_run:
        raise RunFailed(
            "the host of the run is lost, and the run with it; start the commands of all hosts "
            "again, that with the YAML file with --resume"
        )
    raise RunFailed(
        "the host of the loop is lost, and the loop with it; start the loop again with connect(..."
        ", resume=True), and the same commands"
    )


def why_ended(folder: Path, start: int, pool: Pool) -> str:
    """How the job has ended; empty if it goes on, or if that is not known yet.

    Args:
        folder: Folder of the run.
        start: Number of its start.
        pool: Pool of the job.
    """
    states = [lane.state for lane in pool.lanes() if lane.label == HOST_LABEL]
    if "alive" in states:
        return ""
    # It leaves the pool before it writes the final model.
    end = KILLED if "dead" in states else end_of_start(folder, start)
    if end == KILLED:
        return DIED
    return "" if end is None else f"{ENDED}{end}"


def tell_end(why: str, stops: Stops, *, quietly: bool = False) -> None:
    """Say how the run has ended, and let the exit code be that of the run.

    Args:
        why: As `why_ended` returns it.
        stops: Has the exit code.
        quietly: Whether others say it.

    Raises:
        RunFailed: The run has failed.
    """
    end = why.removeprefix(ENDED)
    stops.code = code_of(end)
    if why == DIED or (stops.code == 1 and not quietly):
        raise RunFailed(why)
    if not quietly:
        say(why)

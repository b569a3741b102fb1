"""Encoder ranks of a loop or a run, as processes that a command starts and ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from flowtrain.config.checks import ConfigError, require
from flowtrain.config.load import load
from flowtrain.train.control.store import JobStore
from flowtrain.train.launch.join import join_run
from flowtrain.train.launch.local import run_failed, run_ranks
from flowtrain.train.state.job_file import wait_for_job


def run_encoder_ranks(
    folder: Path, *, ranks: int | None, rank: str | None, timeout_s: float
) -> None:
    """Start encoder ranks of a loop or a run, and wait until they have ended.

    They end with this process, also if it is killed.

    Args:
        folder: Folder of the job.
        ranks: Number of encoder ranks; None for what a loop says, and for one that joins a run.
        rank: The only one to start for a loop, as torchrun sets it in RANK; None for all.
        timeout_s: Timeout until the job is there.

    Raises:
        ConfigError: No run or loop has begun in time, or it has ended, has other encoder ranks or
            none, or takes no further ones.
        RunFailed: A rank failed or died; all others have ended.
    """
    require(ranks is None or ranks >= 1, f"--ranks {ranks}: it must be at least 1")
    require(0 <= timeout_s < math.inf, f"--timeout {timeout_s}: it must be 0 or more, and finite")
    require(not folder.is_file(), f"--job {folder}: it is a file; give the folder of the job")
    found = wait_for_job(folder, timeout_s=timeout_s)
    config = load(folder / "config.yaml")
    if found.of_run:
        join_run(folder, found, config, ranks=ranks or 1)
        return
    job = found.job
    world = config.flow.chosen.world("encoder")
    if world is None:
        raise ConfigError(
            f"--job {folder}: the loop has layout='colocated', so that its own "
            f"{config.flow.chosen.backbone_ranks} ranks encode, and it has no encoder ranks; leave "
            "this command out, or connect the loop without layout='colocated'"
        )
    chosen = choose_ranks(ranks, rank, size=world.size)
    store = JobStore(job.address, job.nonce, timeout_s=config.flow.start_timeout_s)
    if failures := run_ranks(config, job, [(world, chosen)], store, resume=found.resume):
        raise run_failed(failures)


def choose_ranks(ranks: int | None, rank: str | None, *, size: int) -> Sequence[int]:
    """The ranks to start.

    Args:
        ranks: Number that the command was given.
        rank: The rank that the environment names; the number takes precedence.
        size: Number of encoder ranks of the loop.

    Raises:
        ConfigError: The loop has another number, or no such rank.
    """
    loop = f"the loop has encoder_ranks={size}"
    if ranks not in (None, size):
        raise ConfigError(f"--ranks {ranks}: {loop}; give both the same number, or no --ranks")
    if ranks is not None or rank is None:
        return range(size)
    if not rank.isdecimal() or int(rank) >= size:
        raise ConfigError(
            f"RANK={rank} in the environment: {loop}, whose ranks are 0 to {size - 1}; unset RANK "
            "to start all of them by this command"
        )
    return [int(rank)]

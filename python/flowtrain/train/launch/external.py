"""Ranks that the user starts: two gangs of `torchrun`, or whatever sets RANK and LOCAL_RANK."""

from __future__ import annotations

import shlex

from flowtrain.config.schema import RunConfig
from flowtrain.train.control.job import HOST_LABEL, JobHost
from flowtrain.train.control.store import Board
from flowtrain.train.launch.local import RunFailed

_POLL_S = 0.2


def commands(config: RunConfig, host: JobHost, *, resume: bool) -> list[str]:
    """One command for each world, to be run on this host beside this process."""
    sizes = {"encoder": config.flow.encoders, "backbone": config.flow.backbones}
    job = host.job
    return [
        shlex.join(
            [
                # Each gang has a rendezvous of its own; restarts are resumed runs.
                *("torchrun", "--standalone", "--max-restarts=0", f"--nproc-per-node={size}"),
                *("-m", "flowtrain.train.ranks.worker", str(config.run.absolute() / "config.yaml")),
                *("--world", world, "--store", job.store, "--nonce", job.nonce),
                *(("--resume",) if resume else ()),
            ]
        )
        for world, size in sizes.items()
    ]


def wait_for_ranks(config: RunConfig, host: JobHost, *, resume: bool) -> None:
    """Print how to start the ranks, and wait until all have come and gone.

    Args:
        config: The run, whose folder holds its configuration.
        host: The job that the ranks find each other in.
        resume: Go on from the latest checkpoint.

    Raises:
        RunFailed: A rank failed or died.
    """
    for command in commands(config, host, resume=resume):
        print(command, flush=True)
    watch_ranks(config, host)


def watch_ranks(config: RunConfig, host: JobHost) -> None:
    """Wait until every rank has come and gone, whoever started it.

    Args:
        config: The run.
        host: The job that the ranks find each other in.

    Raises:
        RunFailed: A rank failed or died.
    """
    board = Board(host.job.store, host.job.nonce, timeout_s=config.flow.start_deadline_s)
    expected = {f"encoder.{r}" for r in range(config.flow.encoders)}
    expected |= {f"backbone.{r}" for r in range(config.flow.backbones)}
    while True:
        if (dead := host.pool.wait_dead(timeout_s=_POLL_S)) is not None:
            key = f"failed/{dead.label}"
            why = board.get(key, who=dead.label) if board.has(key) else "it died"
            raise RunFailed(f"the run ended early; rank {dead.label} (pid {dead.pid}): {why}")
        alive = {lane.label for lane in host.pool.lanes() if lane.state == "alive"} - {HOST_LABEL}
        # Ranks leave the pool last of all, after they have met at the end.
        if not alive and all(board.has(f"done/{label}") for label in sorted(expected)):
            return

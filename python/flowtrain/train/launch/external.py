"""External launch: the user starts the ranks, with `torchrun` or another launcher."""

from __future__ import annotations

import shlex

from flowtrain.config.schema import RunConfig
from flowtrain.train.control.job import ENDED, HOST_LABEL
from flowtrain.train.control.seats import Seats, comes_and_goes
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.host import RunHost

_POLL_S = 0.2


def rank_commands(config: RunConfig, host: RunHost, *, resume: bool) -> list[str]:
    """One command for each world, to be run on this host while this process waits."""
    job, run = host.job, config.run.absolute()
    logs = run / "logs" / job.nonce
    logs.mkdir(parents=True)
    worlds = config.flow.chosen.worlds
    commands = [
        shlex.join(
            [
                # Each world has its own rendezvous, by a file: the stores of torchrun, which
                # FlowTrain does not use, would listen on every interface.
                *("env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "torchrun", "--nnodes=1"),
                *("--rdzv-backend=c10d", "--rdzv-conf=store_type=file"),
                *(f"--rdzv-endpoint={logs / world.name}.rendezvous", f"--rdzv-id={job.nonce}"),
                # torchrun does not restart ranks: a restart is a resumed run.
                *("--max-restarts=0", f"--nproc-per-node={world.size}"),
                *("-m", "flowtrain.train.assembly.main", str(run / "config.yaml")),
                *("--world", world.name, "--store", job.address, "--nonce", job.nonce),
                *(("--resume",) if resume else ()),
            ]
        )
        for world in worlds
        if not config.elastic or "backbone" in world.modules
    ]
    if config.elastic:
        ranks = str(config.flow.chosen.encoder_ranks)
        commands.append(shlex.join(["flowtrain", "encoder", "--job", str(run), "--ranks", ranks]))
    return commands


def run_external_ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
    """Print the commands that start the ranks, and wait until all ranks have ended.

    Args:
        config: The run, whose folder holds its configuration.
        host: The job's host.
        resume: Resume from the latest checkpoint.

    Raises:
        RunFailed: A rank failed or died.
    """
    if config.elastic:
        seats = Seats(host.store)
        for seat in seats.all():
            seats.free(seat)  # `flowtrain encoder` reserves its own.
    for command in rank_commands(config, host, resume=resume):
        print(command, flush=True)
    wait_for_ranks(config, host)


def wait_for_ranks(config: RunConfig, host: RunHost) -> None:
    """Wait until every rank has joined and ended, however it was started.

    Args:
        config: The run.
        host: The job's host.

    Raises:
        RunFailed: A rank failed or died.
    """
    store, layout = host.store, config.flow.chosen
    labels = layout.labels_that_last(elastic=config.elastic)
    while True:
        host.poll()
        if config.elastic and store.has(ENDED):
            label, pid, reason = store.get(ENDED, writer="a rank")
            raise RunFailed(f"the run ended early; rank {label} (pid {pid}): {reason}")
        if (dead := host.pool.wait_dead(timeout_s=_POLL_S)) is not None:
            if config.elastic and comes_and_goes(dead.label):
                continue
            key = f"failed/{dead.label}"
            reason = store.get(key, writer=dead.label) if store.has(key) else "it died"
            raise RunFailed(f"the run ended early; rank {dead.label} (pid {dead.pid}): {reason}")
        alive = {lane.label for lane in host.pool.lanes() if lane.state == "alive"} - {HOST_LABEL}
        # A rank leaves the pool after all ranks are done.
        if config.elastic:
            alive = {label for label in alive if not comes_and_goes(label)}
        if not alive and all(store.has(f"done/{label}") for label in labels):
            return

"""Ranks that the user starts, with torchrun or another launcher, on this host and on others."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from flowtrain.config.layout import WorldLayout
from flowtrain.config.schema import RunConfig
from flowtrain.train.control.ending import DIED, DIED_OR_LOST
from flowtrain.train.control.job import ENDED, GATEWAY_LABEL, HOST_LABEL, ON_HOST
from flowtrain.train.control.seats import Seats, comes_and_goes
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.host import RunHost
from flowtrain_core import LaneInfo

_POLL_S = 0.2


def rank_commands(config: RunConfig, *, logs: Path, has_peers: bool) -> list[str]:
    """One command for each world, to be run while this process waits.

    Args:
        config: The run.
        logs: Folder of the attempt's logs.
        has_peers: Whether there are other hosts: then the command starts the ranks of one of them,
            and the user replaces the words in capitals.
    """
    worlds = [w for w in config.flow.chosen.worlds if not config.elastic or "backbone" in w.modules]
    commands = [
        shlex.join(
            [
                *(_on_several(world) if has_peers else _on_one(world, logs)),
                # torchrun does not restart ranks: a restart is a resumed run.
                *("--max-restarts=0", "-m", "flowtrain", "rank"),
                *("--job", str(config.run.absolute()), "--world", world.name),
            ]
        )
        for world in worlds
    ]
    if config.elastic:
        ranks = str(config.flow.chosen.encoder_ranks)
        job = str(config.run.absolute())
        commands.append(shlex.join(["flowtrain", "encoder", "--job", job, "--ranks", ranks]))
    return commands


def _on_one(world: WorldLayout, logs: Path) -> list[str]:
    return [
        # Each world has its own rendezvous, by a file: the stores of torchrun, which FlowTrain does
        # not use, would listen on every interface.
        *("env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "torchrun", "--nnodes=1"),
        *("--rdzv-backend=c10d", "--rdzv-conf=store_type=file"),
        *(f"--rdzv-endpoint={logs / world.name}.rendezvous", f"--rdzv-id={logs.name}"),
        f"--nproc-per-node={world.size}",
    ]


def _on_several(world: WorldLayout) -> list[str]:
    return [
        *("torchrun", "--nnodes=HOSTS", "--node-rank=NUMBER", "--nproc-per-node=RANKS"),
        *("--master-addr=FIRST", f"--master-port={_port(world)}"),
    ]


def _port(world: WorldLayout) -> int:
    """Worlds that share a host need rendezvous of their own."""
    return 29500 if "backbone" in world.modules else 29501


def run_external_ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
    """Print the commands that start the ranks, and wait until all ranks have ended.

    Args:
        config: The run, whose folder holds its configuration.
        host: The job's host.
        resume: As for `run_local_ranks`; these ranks learn it from the file of the job.

    Raises:
        RunFailed: A rank failed or died.
    """
    if config.elastic:
        seats = Seats(host.store)
        for seat in seats.all():
            seats.free(seat)  # `flowtrain encoder` reserves its own.
    logs = config.run.absolute() / "logs" / host.job.nonce
    logs.mkdir(parents=True)
    for command in rank_commands(config, logs=logs, has_peers=host.has_peers):
        print(command, flush=True)
    wait_for_ranks(config, host)


def wait_for_ranks(config: RunConfig, host: RunHost) -> None:
    """Wait until every rank has joined and ended, wherever it was started.

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
            # The ranks of other hosts are gone with the gateway, whose end says more.
            time.sleep(_POLL_S)
            host.poll()
            raise RunFailed(f"the run ended early; {_described(dead, host)}")
        alive = {lane.label for lane in host.pool.lanes() if lane.state == "alive"}
        # A rank leaves the pool after all ranks are done.
        alive -= {HOST_LABEL, GATEWAY_LABEL}
        if config.elastic:
            alive = {label for label in alive if not comes_and_goes(label)}
        if not alive and all(store.has(f"done/{label}") for label in labels):
            return


def _described(dead: LaneInfo, host: RunHost) -> str:
    """A rank that died, and why, as far as it is known."""
    reason, on_host = host.store.read([f"failed/{dead.label}", f"{ON_HOST}/{dead.label}"])
    where = "" if on_host is None else f" on host {on_host}"
    is_elsewhere = on_host not in (None, host.name)
    died = DIED_OR_LOST if is_elsewhere else DIED
    return f"rank {dead.label} (pid {dead.pid}{where}): {reason or f'it {died}'}"

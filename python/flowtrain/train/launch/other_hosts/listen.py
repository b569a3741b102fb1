"""The host of a run, to which others connect."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from flowtrain.config.load import load
from flowtrain.hosts import HostGateway
from flowtrain.hosts.connect import address_of
from flowtrain.hosts.forward import to_loopback
from flowtrain.hosts.handshake import ASKS
from flowtrain.train.control.job import GATEWAY_LABEL
from flowtrain.train.launch.host_files import model_digests
from flowtrain.train.launch.other_hosts.endpoint import STORE, Endpoint
from flowtrain.train.launch.other_hosts.ends import DIED, tell_end, until_ended, why_ended
from flowtrain.train.launch.other_hosts.job_facts import JobFacts
from flowtrain.train.launch.other_hosts.traffic import end_record, record_traffic
from flowtrain.train.launch.stops import Stops, first_of, say, stopped_by_signals
from flowtrain.train.state.ending import read_starts
from flowtrain.train.state.job_file import JobFile, wait_for_job
from flowtrain.train.state.resume import FINGERPRINT
from flowtrain.train.state.run_folder import CONFIG
from flowtrain_core import Pool

_JOB_S = 10.0


def host_run(folder: Path, at: Endpoint, *, timeout_s: float) -> int:
    """Let other hosts join the run of this one, until it has ended.

    Args:
        folder: Folder of the run.
        at: Where they join.
        timeout_s: Time to wait until the run begins.

    Returns:
        Exit code.
    """
    found = wait_for_job(folder, timeout_s=timeout_s)
    return asyncio.run(stopped_by_signals(lambda stops: _host(folder, found, at, stops)))


async def _host(folder: Path, found: JobFile, at: Endpoint, stops: Stops) -> None:
    job, config, start = found.job, load(folder / CONFIG), len(read_starts(folder)) - 1
    with Pool.open(job.pool, label=GATEWAY_LABEL, timeout_s=_JOB_S) as pool:
        # By the process that hosts the run, which says itself how the run has ended.
        is_launched = os.getppid() in [lane.pid for lane in pool.lanes() if lane.index == 0]
        gateway = HostGateway(
            pool,
            at.identity(job.nonce, model_digests(config.model)),
            at.token,
            interface=at.interface,
            path=at.path,
            ucx=at.ucx,
            tell=say,
            introduces=True,
            serves={
                ASKS: lambda *connection: facts.tell(*connection),
                STORE: to_loopback(int(job.address.rpartition(":")[2])),
            },
        )
        core = gateway.gateway
        facts = JobFacts(
            nonce=job.nonce,
            resume=found.resume,
            of_run=found.of_run,
            elastic=config.elastic,
            files={name: folder.joinpath(name).read_text() for name in (CONFIG, FINGERPRINT)},
            rings=pool.rings,
            max_cells=core.max_cells,
            max_lanes=core.max_lanes,
            path=at.path,
        )
        stops.ranks = gateway.ranks_elsewhere
        try:
            host, port = await gateway.listen(at.host, at.port)
            where = address_of(host, port)
            say(f"host {at.name}: other hosts can join the run at {where}")
            await first_of(
                gateway.failure(),
                until_ended(folder, start, pool),
                record_traffic(folder, at.name, core),
            )
        finally:
            end_record(folder, at.name, core)
            why = why_ended(folder, start, pool)
            if why == DIED:
                Pool.unlink(pool.name)  # It can no longer do so.
            await gateway.close(why or f"host {at.name} has ended")
        tell_end(why, stops, quietly=is_launched)

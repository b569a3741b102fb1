"""A host that joins the run of another one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from flowtrain.config.checks import ConfigError
from flowtrain.config.load import load
from flowtrain.hosts import HostError, HostGateway, HostLeft, Identity, join
from flowtrain.hosts.connect import Streams, address_of, connect
from flowtrain.hosts.forward import Forward
from flowtrain.train.control.job import HOST_LABEL, Job
from flowtrain.train.launch.host_files import check_shared, model_digests, write_files
from flowtrain.train.launch.other_hosts.endpoint import STORE, Endpoint
from flowtrain.train.launch.other_hosts.ends import DIED, ENDED, tell_end, until_lost
from flowtrain.train.launch.other_hosts.job_facts import JobFacts, ask
from flowtrain.train.launch.other_hosts.traffic import end_record, record_traffic
from flowtrain.train.launch.stops import Stops, first_of, say, stopped_by_signals
from flowtrain.train.state.job_file import job_path, read_job, write_job
from flowtrain.train.state.run_folder import CONFIG
from flowtrain_core import Pool, PoolExists


def join_host(folder: Path, to: Endpoint, *, timeout_s: float) -> int:
    """Let ranks of this host take part in a run of another one, until it has ended.

    Args:
        folder: Folder of the run, if both hosts share it; otherwise one for this host.
        to: The other host.
        timeout_s: Time without a connection after which this ends.

    Returns:
        Exit code.
    """
    return asyncio.run(
        stopped_by_signals(lambda stops: _join(folder, to, stops, timeout_s=timeout_s))
    )


async def _join(folder: Path, to: Endpoint, stops: Stops, *, timeout_s: float) -> None:
    first, facts = await _asked(to, timeout_s=timeout_s)
    is_shared = _take_files(folder, to, facts)
    host = to.name if is_shared else None
    identity = to.identity(facts.nonce, model_digests(load(folder / CONFIG).model))
    store = Forward(partial(_to_store, to, replace(identity, purpose=STORE)), say)
    job = Job(await store.start(), facts.nonce)

    def end_store(lost: str) -> None:
        if lost == first:
            store.drop()

    with _pool_for(job, to, facts) as pool:
        gateway = HostGateway(
            pool,
            identity,
            to.token,
            interface=to.interface,
            path=to.path,
            ucx=to.ucx,
            tell=say,
            lost=end_store,
        )
        stops.ranks, stops.asks = partial(_labels, gateway), partial(_ask_to_leave, gateway)
        try:
            ends: list[Callable[[], Awaitable[None]]] = [
                gateway.failure,
                partial(asyncio.shield, gateway.join(to.host, to.port, timeout_s=timeout_s)),
            ]
            await first_of(gateway.connected(), *(end() for end in ends))
            # A host that is refused changes no file of the one that has its name.
            write_job(
                folder,
                job,
                resume=facts.resume,
                of_run=facts.of_run,
                interface=to.interface,
                host=host,
                name=to.name,
            )
            is_encoder = facts.elastic or not facts.of_run
            joins = "flowtrain encoder" if is_encoder else "torchrun ... -m flowtrain rank"
            say(f"ranks of this host can join: {joins} --job {folder}")
            if not facts.elastic:
                ends.append(partial(until_lost, pool, of_run=facts.of_run))
            await first_of(
                record_traffic(folder, to.name, gateway.gateway), *(end() for end in ends)
            )
        except HostLeft as left:
            if not left.reason.startswith((ENDED, DIED)):
                raise
            tell_end(left.reason, stops)
        finally:
            end_record(folder, to.name, gateway.gateway)
            await store.close()
            await gateway.close(f"host {to.name} has ended")
            if (there := read_job(job_path(folder, host))) is not None and there.job == job:
                job_path(folder, host).unlink(missing_ok=True)


async def _asked(to: Endpoint, *, timeout_s: float) -> tuple[str, JobFacts]:
    """Name of the other host, and the facts of its job.

    Raises:
        HostError: It has not answered in time, or refuses this host.
        ConfigError: Its payloads go by another path.
    """
    at = address_of(to.host, to.port)
    try:
        async with asyncio.timeout(timeout_s):
            first, facts = await ask(to)
    except TimeoutError as error:
        raise HostError(
            f"--join {at}: no host of a run has answered there within --timeout="
            f"{timeout_s:g} s; start `flowtrain host` with --listen on the host of the run, or "
            "give a longer timeout"
        ) from error
    if facts.path != to.path:
        raise ConfigError(
            f"--path {to.path}: payloads of the host that listens at {at} go by {facts.path}; "
            f"give --path {facts.path}"
        )
    return first, facts


def _take_files(folder: Path, to: Endpoint, facts: JobFacts) -> bool:
    """Check the files of the run, or write them if this host has none.

    Returns:
        Whether both hosts share the folder.

    Raises:
        ConfigError: The files are not those of the run, or the folder has to be shared and is not.
    """
    there = read_job(job_path(folder))
    is_shared = there is not None and there.job.nonce == facts.nonce
    if is_shared:
        check_shared(folder, facts.files)
    elif facts.elastic:
        write_files(folder, facts.files)
    else:
        raise ConfigError(
            f"{folder}: it is not the folder of the run on the host that listens at "
            f"{address_of(to.host, to.port)}, to which ranks of all hosts write checkpoints; put "
            "the run on a file system that all hosts share, at the same path"
        )
    return is_shared


def _pool_for(job: Job, to: Endpoint, facts: JobFacts) -> Pool:
    """This host's pool of the job.

    Raises:
        ConfigError: It has one already.
    """
    try:
        return Pool.create(
            job.pool,
            rings=facts.rings,
            max_cells=facts.max_cells,
            max_lanes=facts.max_lanes,
            label=HOST_LABEL,
        )
    except PoolExists as error:
        raise ConfigError(
            f"--join {address_of(to.host, to.port)}: this host has the pool of the run already, as "
            "its own host or by another `flowtrain host --join`, which connects again by itself; "
            "start its ranks here without another --join"
        ) from error


async def _to_store(to: Endpoint, identity: Identity) -> Streams:
    """A connection to the job's store on the other host."""
    try:
        reader, writer = await connect(to.host, to.port)
    except OSError as error:
        raise HostError(
            f"the job's store at {address_of(to.host, to.port)} cannot be reached: "
            f"{error.strerror or error}"
        ) from error
    await join(reader, writer, to.token, identity)
    return reader, writer


def _labels(gateway: HostGateway) -> Sequence[str]:
    return [label for label, _ in gateway.ranks_here()]


def _ask_to_leave(gateway: HostGateway) -> None:
    for _, pid in gateway.ranks_here():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

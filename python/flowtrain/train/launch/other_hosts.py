"""Ranks of a run on other hosts: the two sides of `flowtrain host`, without torch."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flowtrain_core
from flowtrain.config.checks import ConfigError
from flowtrain.config.load import load
from flowtrain.hosts import Control, HostError, HostGateway, HostLeft, Identity, join
from flowtrain.hosts.connect import Streams, address_of, connect
from flowtrain.hosts.control import LongText
from flowtrain.hosts.forward import Forward, to_loopback
from flowtrain.hosts.handshake import ASKS, Session, cause_of
from flowtrain.hosts.host_gateway import Payloads
from flowtrain.train.control.job import GATEWAY_LABEL, HOST_LABEL, Job
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.host_files import check_shared, model_digests, write_files
from flowtrain.train.launch.stops import Stops, first_of, say, stopped_by_signals
from flowtrain.train.state import atomic
from flowtrain.train.state.ending import KILLED, code_of, end_of_start, read_starts
from flowtrain.train.state.job_file import JobFile, job_path, read_job, wait_for_job, write_job
from flowtrain.train.state.resume import FINGERPRINT
from flowtrain.train.state.run_folder import CONFIG, EDGES
from flowtrain.train.state.traffic import HostTraffic, traffic_of, write_traffic
from flowtrain_core import Gateway, Pool, PoolExists

_STORE = "store"
_ENDED = "the run has ended: "
_DIED = "the process that hosts the run has died"
_KNOWS = "it knows the job now"
_POLL_S = 0.1
_RETRY_S = 0.5
_RECORD_S = 1.0
_JOB_S = 10.0
# A live peer that has taken no payload for this long is told.
_STALL_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """How this host takes part.

    Attributes:
        name: Name of this host for the others.
        host: Numeric address to listen on, or of the peer.
        port: Its port; 0 lets the system choose one to listen on.
        interface: Numeric address on which peers reach the payload path of this host.
        path: Payload path, the same on all hosts.
        ucx: Path of `libucp.so.0` for the path ucx; by default it is searched.
        token: Of the job.
    """

    name: str
    host: str
    port: int
    interface: str
    token: bytes
    path: Payloads = "tcp"
    ucx: str = ""

    def identity(
        self, nonce: str, digests: Mapping[str, str] | None = None, *, purpose: str = "gateway"
    ) -> Identity:
        """Identity of this host in a job.

        Args:
            nonce: Name of the attempt.
            digests: Of `model_digests`; None before the model is known.
            purpose: Use of the connection.
        """
        digests = digests or {}
        return Identity(
            host=self.name,
            version=flowtrain_core.__version__,
            job=nonce,
            incarnation=nonce,
            tower=digests.get("tower", ""),
            processor=digests.get("processor", ""),
            purpose=purpose,
        )


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
        facts = {
            "nonce": job.nonce,
            "resume": found.resume,
            "of_run": found.of_run,
            "files": {name: folder.joinpath(name).read_text() for name in (CONFIG, FINGERPRINT)},
            "elastic": config.elastic,
            "rings": list(pool.rings),
            "path": at.path,
        }
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
                ASKS: _teller(facts),
                _STORE: to_loopback(int(job.address.rpartition(":")[2])),
            },
        )
        core = gateway.gateway
        facts |= {"max_cells": core.max_cells, "max_lanes": core.max_lanes}
        stops.ranks = gateway.ranks_elsewhere
        try:
            host, port = await gateway.listen(at.host, at.port)
            where = address_of(host, port)
            say(f"host {at.name}: other hosts can join the run at {where}")
            await first_of(
                gateway.failure(),
                _until_ended(folder, start, pool),
                _record_traffic(folder, at.name, core),
            )
        finally:
            _end_record(folder, at.name, core)
            why = _why_ended(folder, start, pool)
            if why == _DIED:
                Pool.unlink(pool.name)  # It can no longer do so.
            await gateway.close(why or f"host {at.name} has ended")
        _tell_end(why, stops, quietly=is_launched)


async def _until_ended(folder: Path, start: int, pool: Pool) -> None:
    """Wait until it is known how the job has ended."""
    while not _why_ended(folder, start, pool):
        await asyncio.sleep(_POLL_S)


async def _until_lost(pool: Pool, *, of_run: bool) -> None:
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


def _why_ended(folder: Path, start: int, pool: Pool) -> str:
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
        return _DIED
    return "" if end is None else f"{_ENDED}{end}"


def _tell_end(why: str, stops: Stops, *, quietly: bool = False) -> None:
    """Say how the run has ended, and let the exit code be that of the run.

    Args:
        why: Of `_why_ended`.
        stops: Has the exit code.
        quietly: Whether others say it.

    Raises:
        RunFailed: The run has failed.
    """
    end = why.removeprefix(_ENDED)
    stops.code = code_of(end)
    if why == _DIED or (stops.code == 1 and not quietly):
        raise RunFailed(why)
    if not quietly:
        say(why)


def _teller(facts: dict[str, Any]) -> Callable[..., Awaitable[None]]:
    async def tell(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
    ) -> None:
        control = Control(
            reader, writer, session, on_message=lambda _: None, on_stall=lambda _: None
        )
        text = json.dumps(facts)
        try:
            await control.run(partial(control.send_text, ASKS, text))
        except HostLeft as left:
            if left.reason != _KNOWS:
                raise

    return tell


async def _record_traffic(folder: Path, host: str, gateway: Gateway) -> None:
    """Write what a gateway moves into the folder, again and again, and say where nothing moves."""
    written, told, stalls = None, False, Stalls()
    while True:
        traffic = _traffic(host, gateway)
        for text in stalls.new(traffic):
            say(text)
        if traffic != written:
            try:
                write_traffic(folder, traffic)
                written = traffic
            except OSError as error:  # Of a full disk, for example; the run goes on.
                if not told:
                    say(f"{error}: `flowtrain top` and reports lack the links of this host")
                told = True
        await asyncio.sleep(_RECORD_S)


class Stalls:
    """Peers that live and take no payloads; each stall is told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def new(self, traffic: HostTraffic) -> Sequence[str]:
        """What to tell of the traffic."""
        stalled = {each.peer: each.stalled_s for each in traffic.peers if each.connected}
        stalled = {peer: since_s for peer, since_s in stalled.items() if since_s >= _STALL_S}
        new = sorted(stalled.keys() - self._told)
        self._told = set(stalled)
        return [
            f"host {peer} has taken no payload for {stalled[peer]:.0f} s: it is stopped, or the "
            "network drops large packets (MTU)"
            for peer in new
        ]


def _end_record(folder: Path, host: str, gateway: Gateway) -> None:
    text, edges = gateway.explain(), folder / EDGES
    say(text)
    try:
        write_traffic(folder, _traffic(host, gateway))
        edges.mkdir(exist_ok=True)
        atomic.write_text(edges / f"{GATEWAY_LABEL}.{host}.txt", text + "\n")
    except OSError as error:
        say(f"{error}: the folder lacks the path and the links of this host")


def _traffic(host: str, gateway: Gateway) -> HostTraffic:
    return traffic_of(host, gateway.explain().partition("\n")[0], gateway.traffic())


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
    at = address_of(to.host, to.port)
    try:
        async with asyncio.timeout(timeout_s):
            first, facts = await _ask(to)
    except TimeoutError as error:
        raise HostError(
            f"--join {at}: no host of a run has answered there within --timeout="
            f"{timeout_s:g} s; start `flowtrain host` with --listen on the host of the run, or "
            "give a longer timeout"
        ) from error
    if facts["path"] != to.path:
        raise ConfigError(
            f"--path {to.path}: payloads of the host that listens at {at} go by {facts['path']}; "
            f"give --path {facts['path']}"
        )
    nonce = facts["nonce"]
    there = read_job(job_path(folder))
    is_shared = there is not None and there.job.nonce == nonce
    if is_shared:
        check_shared(folder, facts["files"])
    elif facts["elastic"]:
        write_files(folder, facts["files"])
    else:
        raise ConfigError(
            f"{folder}: it is not the folder of the run on the host that listens at {at}, to which "
            "ranks of all hosts write checkpoints; put the run on a file system that all hosts "
            "share, at the same path"
        )
    host = to.name if is_shared else None
    digests = model_digests(load(folder / CONFIG).model)

    async def to_store() -> Streams:
        try:
            reader, writer = await connect(to.host, to.port)
        except OSError as error:
            why = error.strerror or error
            raise HostError(f"the job's store at {at} cannot be reached: {why}") from error
        await join(reader, writer, to.token, to.identity(nonce, digests, purpose=_STORE))
        return reader, writer

    store = Forward(to_store, say)
    job = Job(await store.start(), nonce)
    try:
        made = Pool.create(
            job.pool,
            rings=facts["rings"],
            max_cells=facts["max_cells"],
            max_lanes=facts["max_lanes"],
            label=HOST_LABEL,
        )
    except PoolExists as error:
        raise ConfigError(
            f"--join {at}: this host has the pool of the run already, as its own "
            "host or by another `flowtrain host --join`, which connects again by itself; start "
            "its ranks here without another --join"
        ) from error

    def end_store(lost: str) -> None:
        if lost == first:
            store.drop()

    with made as pool:
        gateway = HostGateway(
            pool,
            to.identity(nonce, digests),
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
                resume=facts["resume"],
                of_run=facts["of_run"],
                interface=to.interface,
                host=host,
                name=to.name,
            )
            is_encoder = facts["elastic"] or not facts["of_run"]
            joins = "flowtrain encoder" if is_encoder else "torchrun ... -m flowtrain rank"
            say(f"ranks of this host can join: {joins} --job {folder}")
            if not facts["elastic"]:
                ends.append(partial(_until_lost, pool, of_run=facts["of_run"]))
            await first_of(
                _record_traffic(folder, to.name, gateway.gateway), *(end() for end in ends)
            )
        except HostLeft as left:
            if not left.reason.startswith((_ENDED, _DIED)):
                raise
            _tell_end(left.reason, stops)
        finally:
            _end_record(folder, to.name, gateway.gateway)
            await store.close()
            await gateway.close(f"host {to.name} has ended")
            if (there := read_job(job_path(folder, host))) is not None and there.job == job:
                job_path(folder, host).unlink(missing_ok=True)


async def _reached(to: Endpoint) -> tuple[Streams, Session]:
    """A connection to the other host, once that answers.

    Raises:
        HostError: It refuses this one, or closes the connection.
    """
    told_wait = False
    while True:
        try:
            streams = await connect(to.host, to.port)
            session = await join(*streams, to.token, to.identity("", purpose=ASKS))
            return streams, session
        except HostError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            why = cause_of(error.__cause__)
        except OSError as error:
            why = error.strerror or str(error)
        if not told_wait:
            say(f"waits for {address_of(to.host, to.port)} ({why})")
        told_wait = True
        await asyncio.sleep(_RETRY_S)


async def _ask(to: Endpoint) -> tuple[str, dict[str, Any]]:
    """Name of the other host, and the facts of its run, once that host can be reached."""
    (reader, writer), session = await _reached(to)
    told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    text = LongText(ASKS)

    def take(message: dict[str, Any]) -> None:
        if (whole := text.take(message)) is not None and not told.done():
            told.set_result(json.loads(whole))

    control = Control(reader, writer, session, on_message=take, on_stall=lambda _: None)
    runs = asyncio.ensure_future(control.run())
    either: set[asyncio.Future[Any]] = {told, runs}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    control.close(_KNOWS)
    await runs
    return session.peer.host, told.result()


def _labels(gateway: HostGateway) -> Sequence[str]:
    return [label for label, _ in gateway.ranks_here()]


def _ask_to_leave(gateway: HostGateway) -> None:
    for _, pid in gateway.ranks_here():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

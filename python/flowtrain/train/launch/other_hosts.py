"""Encoder ranks of a run on other hosts: the two sides of `flowtrain host`, without torch."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import flowtrain_core
from flowtrain.config.checks import ConfigError
from flowtrain.config.load import load
from flowtrain.data.model_files import changed_names
from flowtrain.hosts import Control, HostError, HostGateway, HostLeft, Identity, join
from flowtrain.hosts.forward import Forward, to_loopback
from flowtrain.hosts.handshake import ASKS, Session
from flowtrain.signals import STOPS
from flowtrain.train.control.job import GATEWAY_LABEL, HOST_LABEL, Job
from flowtrain.train.launch.job_file import JobFile, wait_for_job, write_job
from flowtrain.train.state import atomic
from flowtrain.train.state.resume import FINGERPRINT, fingerprint
from flowtrain.train.state.run_folder import CONFIG
from flowtrain_core import Pool

_STORE = "store"
_ENDED = "the run has ended"
_POLL_S = 0.1
_JOB_S = 10.0
# Letters, digits and what else tokens have; a shorter one could be guessed.
_MIN_TOKEN = 16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """How this host takes part.

    Attributes:
        name: Name of this host for the others.
        host: Numeric address to listen on, or of the peer.
        port: Its port; 0 lets the system choose one to listen on.
        interface: Numeric address on which peers reach the payload path of this host.
        token: Of the job.
    """

    name: str
    host: str
    port: int
    interface: str
    token: bytes

    def identity(self, nonce: str, *, purpose: str = "gateway") -> Identity:
        """Identity of this host in a job."""
        return Identity(
            host=self.name,
            version=flowtrain_core.__version__,
            job=nonce,
            incarnation=nonce,
            tower="",
            processor="",
            purpose=purpose,
        )


def read_token(path: Path) -> bytes:
    """The token in a file, which only its owner can read.

    Raises:
        ConfigError: Others can read it, or it is too short.
    """
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"--token {path}: others can read it; run: chmod 600 {path}")
    token = path.read_bytes().strip()
    if len(token) < _MIN_TOKEN:
        raise ConfigError(
            f"--token {path}: {len(token)} characters, at least {_MIN_TOKEN}; "
            f"make one: openssl rand -hex 32 > {path}"
        )
    return token


def say(text: str) -> None:
    """Print a line on standard error."""
    print(f"flowtrain: {text}", file=sys.stderr, flush=True)


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
    files = {name: folder.joinpath(name).read_text() for name in (CONFIG, FINGERPRINT)}
    return asyncio.run(_stopped_by_signals(_host(found, files, at)))


async def _host(found: JobFile, files: dict[str, str], at: Endpoint) -> None:
    job = found.job
    with Pool.open(job.pool, label=GATEWAY_LABEL, timeout_s=_JOB_S) as pool:
        facts = {
            "nonce": job.nonce,
            "resume": found.resume,
            "of_run": found.of_run,
            "files": files,
            "rings": list(pool.rings),
        }
        gateway = HostGateway(
            pool,
            at.identity(job.nonce),
            at.token,
            interface=at.interface,
            tell=say,
            serves={
                ASKS: _teller(facts),
                _STORE: to_loopback(int(job.address.rpartition(":")[2])),
            },
        )
        core = gateway.gateway
        facts |= {"max_cells": core.max_cells, "max_lanes": core.max_lanes}
        why = f"host {at.name} has ended"
        try:
            host, port = await gateway.listen(at.host, at.port)
            say(f"host {at.name}: other hosts can join the run at {host}:{port}")
            await _first(gateway.failure(), _until_left(pool))
            why = _ENDED
        finally:
            say(core.explain())
            await gateway.close(why)


async def _until_left(pool: Pool) -> None:
    """Wait until the process that hosts the job has left its pool."""
    while any(lane.label == HOST_LABEL and lane.state == "alive" for lane in pool.lanes()):
        await asyncio.sleep(_POLL_S)


def _teller(facts: dict[str, Any]) -> Callable[..., Awaitable[None]]:
    async def tell(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
    ) -> None:
        control = _silent(reader, writer, session)
        control.send({ASKS: facts})
        with suppress(HostError):
            await control.run()

    return tell


def _silent(*connection: Any) -> Control:
    return Control(*connection, on_message=lambda _: None, on_stall=lambda _: None)


def join_host(folder: Path, to: Endpoint, *, timeout_s: float) -> int:
    """Let encoder ranks of this host join a run of another one, until it has ended.

    Args:
        folder: Folder for the run on this host, for `flowtrain encoder --job`.
        to: The other host.
        timeout_s: Time without a connection after which this ends.

    Returns:
        Exit code.
    """
    return asyncio.run(_stopped_by_signals(_join(folder, to, timeout_s=timeout_s)))


async def _join(folder: Path, to: Endpoint, *, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        facts = await _ask(to, timeout_s=timeout_s)
    nonce = facts["nonce"]
    write_files(folder, facts["files"])

    async def connect() -> Streams:
        reader, writer = await asyncio.open_connection(to.host, to.port)
        await join(reader, writer, to.token, to.identity(nonce, purpose=_STORE))
        return reader, writer

    store = Forward(connect, say)
    job = Job(await store.start(), nonce)
    with Pool.create(
        job.pool,
        rings=facts["rings"],
        max_cells=facts["max_cells"],
        max_lanes=facts["max_lanes"],
        label=HOST_LABEL,
    ) as pool:
        gateway = HostGateway(pool, to.identity(nonce), to.token, interface=to.interface, tell=say)
        write_job(folder, job, resume=facts["resume"], of_run=facts["of_run"])
        say(f"encoder ranks of this host can join: flowtrain encoder --job {folder}")
        try:
            joined = gateway.join(to.host, to.port, timeout_s=timeout_s)
            await _first(gateway.failure(), asyncio.shield(joined))
        except HostLeft as left:
            if left.reason != _ENDED:
                raise
            say(_ENDED)
        finally:
            say(gateway.gateway.explain())
            await store.close()
            await gateway.close(f"host {to.name} has ended")


async def _ask(to: Endpoint, *, timeout_s: float) -> dict[str, Any]:
    """The facts of the other host's run, once that host can be reached."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(to.host, to.port)
            break
        except OSError as error:
            say(f"waits for {to.host}:{to.port} ({error.strerror or error})")
            await asyncio.sleep(1.0)
    session = await join(reader, writer, to.token, to.identity("", purpose=ASKS))
    told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def take(message: dict[str, Any]) -> None:
        if not told.done():
            told.set_result(message[ASKS])

    control = Control(reader, writer, session, on_message=take, on_stall=lambda _: None)
    runs = asyncio.ensure_future(control.run())
    either: set[asyncio.Future[Any]] = {told, runs}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    control.close("it knows the job now")
    await runs
    return told.result()


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write the run as one of this host, for its encoder ranks.

    Raises:
        ConfigError: Models or data of this host are others; the message names them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tree = yaml.safe_load(files[CONFIG]) | {"run": str(folder)}
    atomic.write_text(folder / CONFIG, yaml.safe_dump(tree, sort_keys=False))
    there, here = json.loads(files[FINGERPRINT]), fingerprint(load(folder / CONFIG))
    if changed := changed_names(there["files"], here["files"]):
        raise ConfigError(
            f"{folder / CONFIG}: the files of this host are not those of the run: "
            f"{', '.join(changed)}; copy them, to the same paths"
        )
    # With which encoder ranks make sure that they read what was hashed here.
    atomic.write_text(folder / FINGERPRINT, json.dumps(here))


async def _first(*works: Awaitable[Any]) -> None:
    """Wait until one has ended, and end the others. Raises its error."""
    tasks = {asyncio.ensure_future(work) for work in works}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stopped_by_signals(work: Awaitable[None]) -> int:
    """Run until the end, or until a signal; then end what it has begun.

    Returns:
        Exit code.
    """
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def note(number: int) -> None:
        if not stop.done():
            stop.set_result(number)

    for number in STOPS:
        loop.add_signal_handler(number, note, number)
    await _first(work, stop)
    return 128 + stop.result() if stop.done() and not stop.cancelled() else 0

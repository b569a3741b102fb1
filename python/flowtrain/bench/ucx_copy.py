"""The copy of UCX that is measured, and its `ucx_perftest`."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from flowtrain.bench.isolated import call_async, program
from flowtrain.hosts.ucx import copies_in_packages

_TIMEOUT_S = 60.0
_LISTENING = "0A"
_PREFIX = "UCX_"
# Names of devices of a host.
_OF_HOST = "NET_DEVICES"


@dataclass(frozen=True, kw_only=True, slots=True)
class UcxCopy:
    """A copy of UCX on one host, as it is used with an address of this host."""

    address: str
    library: str
    """Path of `libucp`."""
    version: str
    settings: dict[str, str]
    """Without their prefix; those of the transport, and others from the environment."""
    perftest: str
    """Path of `ucx_perftest`, installed with the library; empty if it is not there."""

    def unlike(self, other: UcxCopy) -> str:
        """How another host's copy differs; empty if the two can be measured with each other."""
        if self.version != other.version:
            return (
                f"UCX is {self.version} at {self.address} ({self.library}) and {other.version} at "
                f"{other.address} ({other.library}); give --ucx, so that both are of one version"
            )
        for name in sorted((self.settings.keys() | other.settings.keys()) - {_OF_HOST}):
            here, there = (copy.settings.get(name, "not set") for copy in (self, other))
            if here != there:
                return (
                    f"{_PREFIX}{name} is {here} at {self.address} and {there} at {other.address}; "
                    "set it alike on both hosts"
                )
        return ""


async def find(address: str, library: str) -> UcxCopy:
    """The copy that this host uses, for an address of one of its interfaces.

    Args:
        address: Numeric address.
        library: Path of `libucp`; by default it is searched.

    Raises:
        RuntimeError: There is none that can be used.
    """
    found = await call_async("find_ucx", host=address, library=library, others=copies_in_packages())
    environment = {
        name.removeprefix(_PREFIX): value
        for name, value in os.environ.items()
        if name.startswith(_PREFIX)
    }
    found["settings"] = environment | found["settings"]
    folders = list(Path(found["library"]).parents)[:4]
    programs = [folder / "bin" / "ucx_perftest" for folder in folders]
    perftest = next((str(path) for path in programs if path.is_file()), "")
    return UcxCopy(address=address, perftest=perftest, **found)


@asynccontextmanager
async def perftest_server(copy: UcxCopy, item_bytes: int, count: int) -> AsyncIterator[int]:
    """Run the receiving `ucx_perftest` within the block; its port."""
    port = _free_port(copy.address)
    first, *others = sorted(os.sched_getaffinity(0))
    core = others[0] if others else first
    async with _perftest(copy, item_bytes, count, port, "-c", str(core)) as server:
        await _await_listener(port, server)
        yield port


async def perftest_bytes_per_s(
    copy: UcxCopy, item_bytes: int, count: int, to: tuple[str, int]
) -> float:
    """Rate of active messages to a process that sleeps while it waits, as this one does.

    Args:
        copy: Copy of UCX of this host.
        item_bytes: Size of a message.
        count: Messages that are measured.
        to: Address and port of the server.

    Raises:
        RuntimeError: The program failed, with its output.
    """
    address, port = to
    words = (address, "-c", str(min(os.sched_getaffinity(0))), "-f", "-v")
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            _perftest(copy, item_bytes, count, port, *words) as client,
        ):
            out, err = await client.communicate()
    except TimeoutError as error:
        text = f"{copy.perftest} to {address} has not ended within {_TIMEOUT_S:g} s"
        raise RuntimeError(text) from error
    lines = out.decode().strip().splitlines()
    if client.returncode != 0 or len(lines) < 2:
        said = (out + err).decode().strip()
        raise RuntimeError(f"{copy.perftest} to {address} failed: {said}")
    columns = dict(zip(lines[-2].split(","), lines[-1].split(","), strict=True))
    return float(columns["overall_bw"]) * (1 << 20)


def _perftest(
    copy: UcxCopy, item_bytes: int, count: int, port: int, *words: str
) -> AbstractAsyncContextManager[Process]:
    environment = os.environ | {_PREFIX + name: value for name, value in copy.settings.items()}
    environment["LD_LIBRARY_PATH"] = str(Path(copy.library).parent)
    load = ("-s", str(item_bytes), "-n", str(count), "-w", str(max(2, count // 5)))
    family = ("-6",) if _family(copy.address) == socket.AF_INET6 else ()
    common = ("-t", "ucp_am_bw", "-E", "sleep", "-p", str(port), *family, *load)
    return program(Path(copy.perftest), *common, *words, env=environment)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _free_port(address: str) -> int:
    with socket.socket(_family(address)) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port


async def _await_listener(port: int, server: Process) -> None:
    """Wait until a port is listened on; to connect would count as the client."""
    end = time.monotonic() + _TIMEOUT_S
    wanted = f":{port:04X}"
    while time.monotonic() < end and server.returncode is None:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if local.endswith(wanted) and state == _LISTENING:
                    return
        await asyncio.sleep(0.01)
    raise RuntimeError(f"ucx_perftest does not listen on port {port}")

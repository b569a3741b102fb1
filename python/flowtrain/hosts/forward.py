"""Connections to a service on the loopback interface of another host, such as the job's store."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from flowtrain.hosts.entrance import Port
from flowtrain.hosts.handshake import HostError, Session

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_LOOPBACK = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
# A connection to a host that has vanished would stay for ever: no packet tells of its end.
_IDLE_S, _PROBE_S, _PROBES = 30, 10, 3


def _probe(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


async def pipe(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    other_reader: asyncio.StreamReader,
    other_writer: asyncio.StreamWriter,
) -> None:
    """Pass bytes on in both directions until one connection ends; then end the other."""

    async def one_way(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK_BYTES):
            target.write(data)
            await target.drain()

    with suppress(OSError):  # One has ended already.
        _probe(writer)
        _probe(other_writer)
    ways = {
        asyncio.create_task(one_way(reader, other_writer)),
        asyncio.create_task(one_way(other_reader, writer)),
    }
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        writer.close()
        other_writer.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


def to_loopback(port: int) -> Callable[..., Awaitable[None]]:
    """Serves admitted connections: each leads to a port of this host's loopback interface."""

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _session: Session
    ) -> None:
        try:
            there = await asyncio.open_connection(_LOOPBACK, port)
        except OSError:
            writer.close()  # The service has ended; so does the connection to it.
            return
        await pipe(reader, writer, *there)

    return serve


class Forward:
    """A port of this host's loopback interface that leads to another host.

    Args:
        connect: Makes the connection there for each one here.
        tell: Takes what people should know.
    """

    def __init__(self, connect: Connect, tell: Callable[[str], None]) -> None:
        self._connect, self._tell = connect, tell
        self._port: Port | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def drop(self) -> None:
        """End all connections that there are; others can follow.

        For the loss of the other host: what was sent there has no answer, and the kernel would try
        for many minutes to deliver it.
        """
        for task in self._tasks:
            task.cancel()

    async def start(self) -> str:
        """Listen; returns `address:port`."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._accept(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._port = Port(_LOOPBACK, 0, accept, self._tell)
        return "{}:{}".format(*self._port.address)

    async def close(self) -> None:
        """End all connections."""
        if self._port is not None:
            await self._port.close()
        self.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await pipe(reader, writer, *await self._connect())
        except (HostError, OSError) as error:
            self._tell(str(error))
        finally:
            writer.close()  # Also if it is dropped before there is a connection to the other host.

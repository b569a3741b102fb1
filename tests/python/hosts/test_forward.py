"""Connections that are passed on between hosts."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from flowtrain.hosts import forward

# Linux: a socket in this state is closed without a word to its peer.
_TCP_REPAIR = 19


def test_the_end_of_a_host_that_vanishes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_IDLE_S", 1)

    async def passed_on() -> None:
        vanishing, stays = socket.socket(), socket.socket()
        streams = []
        for end in (vanishing, stays):
            with socket.create_server(("127.0.0.1", 0)) as server:
                end.connect(server.getsockname())
                streams += await asyncio.open_connection(sock=server.accept()[0])
        with stays:
            try:
                vanishing.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
            except PermissionError:
                pytest.skip("this user may not take a host away")
            vanishing.close()
            async with asyncio.timeout(30):
                await forward.pipe(*streams)

    asyncio.run(passed_on())


def test_dropped_connections_end_on_this_host_whatever_the_other_one_does() -> None:
    reached = asyncio.Queue[str]()

    async def takes_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reached.put("store")
        while await reader.read(100):
            pass
        writer.close()

    async def dropped() -> None:
        server = await asyncio.start_server(takes_all, "127.0.0.1", 0)
        there = server.sockets[0].getsockname()

        async def reach() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            if not streams:
                return await asyncio.open_connection(*there)
            await reached.put("handshake")
            await asyncio.sleep(60)
            raise AssertionError

        passes = forward.Forward(reach, print)
        host, _, port = (await passes.start()).rpartition(":")
        streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        async with asyncio.timeout(30):
            for awaited in ("store", "handshake"):
                stream = await asyncio.open_connection(host, int(port))
                assert await reached.get() == awaited
                stream[1].write(b"a question")
                streams.append(stream)
            passes.drop()
            for reader, writer in streams:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
                with suppress(ConnectionResetError):
                    await writer.wait_closed()
            await passes.close()
        server.close()
        await server.wait_closed()

    asyncio.run(dropped())

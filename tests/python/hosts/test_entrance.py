"""Ports that strangers use up, and ports of a process without descriptors."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from flowtrain.hosts import Identity, entrance, join
from flowtrain.hosts.entrance import Entrance, Port

OWN = Identity(host="a", version="1", job="j", incarnation="1", tower="t", processor="p")
TOKEN = b"token"


def test_silent_strangers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "MAX_STRANGERS", 4)
    told: list[str] = []
    entered: list[str] = []

    async def serve(_: Any, writer: asyncio.StreamWriter, session: Any) -> None:
        entered.append(session.peer.host)
        writer.close()

    async def work() -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            admits = Entrance(TOKEN, OWN, serve, told.append, tasks.create_task)
            port = Port("127.0.0.1", 0, admits.take, told.append)
            silent = [await asyncio.open_connection(*port.address) for _ in range(9)]
            for reader, _ in silent[:5]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            streams = await asyncio.open_connection(*port.address)
            await join(*streams, TOKEN, replace(OWN, host="b"))
            assert await streams[0].read() == b""
            assert not silent[-1][0].at_eof()
            await port.close()
            for _, writer in [*silent, streams]:
                writer.close()

    asyncio.run(work())
    assert entered == ["b"]
    assert [text for text in told if "more than 4 connections" in text] == told[:1]


def test_a_port_without_descriptors_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entrance, "_RETRY_S", 0.01)
    told: list[str] = []

    async def work() -> None:
        taken: asyncio.Queue[Any] = asyncio.Queue()
        port = Port("127.0.0.1", 0, lambda *streams: taken.put_nowait(streams), told.append)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as client:
            client.setblocking(False)
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
            try:
                client.connect_ex(port.address)
                await asyncio.sleep(0.2)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            async with asyncio.timeout(30):
                _, writer = await taken.get()
            writer.close()
        await port.close()

    asyncio.run(work())
    assert len(told) == 1 and "ulimit -n" in told[0]


def test_many_strangers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def serve(*_: object) -> None:
        raise AssertionError

    async def work() -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            admits = Entrance(TOKEN, OWN, serve, told.append, tasks.create_task)
            port = Port("127.0.0.1", 0, admits.take, told.append)

            async def scan(count: int) -> None:
                for _ in range(count):
                    reader, writer = await asyncio.open_connection(*port.address)
                    writer.write(b"GET / HTTP/1.1\r\n\r\n")
                    with suppress(ConnectionResetError):
                        assert await reader.read() == b""
                    writer.close()

            await scan(20)
            assert len(told) == 5 and "are counted" in told[-1]
            monkeypatch.setattr(entrance, "_COUNT_S", 0.0)
            await scan(1)
            await port.close()

    asyncio.run(work())
    assert len(told) == 6 and "so were 15 others before" in told[-1]
    assert all("does not speak FlowTrain's protocol" in text for text in told)

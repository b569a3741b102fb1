"""Connections that are passed on between hosts."""

from __future__ import annotations

import asyncio
import socket

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

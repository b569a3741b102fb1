"""A gateway in this process: how it joins, is lost and fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from core.conftest import eventually, name, pool, spawn
from two_gateways import (
    OWN,
    Host,
    hosts,
    told,
)

from flowtrain.hosts import (
    HostError,
    HostGateway,
    connect,
    host_gateway,
    join,
    peering,
)
from flowtrain_core import Pool

__all__ = ["eventually", "hosts", "name", "pool", "spawn"]


async def in_process(
    pool: Pool,
    work: Callable[[HostGateway], Awaitable[None]],
    *,
    tell: Callable[[str], object] = print,
    **more: Any,
) -> None:
    gateway = HostGateway(pool, OWN, b"token", interface="127.0.0.1", tell=tell, **more)
    try:
        async with asyncio.timeout(30):
            await work(gateway)
    finally:
        await gateway.close("the test has ended")


def test_a_host_that_takes_no_connection_is_given_up_in_time(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "CONNECT_S", 0.1)

    async def joins(gateway: HostGateway) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
            for _ in range(2):  # The kernel takes one, and drops the packets of others.
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            with pytest.raises(HostError, match=r"for 0.3 s: it takes no connection"):
                await gateway.join(*full.getsockname(), timeout_s=0.3)

    asyncio.run(in_process(pool, joins))


def test_a_peer_whose_payload_port_is_blocked_is_never_connected_and_given_up_in_time(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = hosts
    listening = b.gateway("listen", 0)
    port = int(told(listening, r"port (\d+)")[1])
    said: list[str] = []

    async def blocked(_: str) -> None:
        await connect.check_reach("127.0.0.1:1")

    monkeypatch.setattr(peering, "check_reach", blocked)

    async def joins(gateway: HostGateway) -> None:
        with pytest.raises(HostError, match=r"no connection to .* for 1 s: .* 127.0.0.1:1 for pay"):
            await gateway.join("127.0.0.1", port, timeout_s=1.0)

    asyncio.run(in_process(a.pool, joins, tell=said.append))
    assert len(said) == 1 and "is lost: its port 127.0.0.1:1 for payloads" in said[0]
    assert "it leaves: its port 127.0.0.1:1 for payloads" in listening.line()


def test_any_error_of_the_thread_that_moves_items_is_a_failure(pool: Pool) -> None:
    class Failing:
        def wait(self, _: float) -> None:
            raise MemoryError

    async def fails(gateway: HostGateway) -> None:
        core = gateway.gateway
        gateway.gateway = Failing()  # type: ignore[assignment]
        try:
            core.wake()
            with pytest.raises(MemoryError):
                await gateway.failure()
        finally:
            gateway.gateway = core

    asyncio.run(in_process(pool, fails))


def test_the_store_is_let_go_with_the_host_that_it_was_for(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_gateway, "RETURN_S", 0.2)
    a, b = hosts
    lost: asyncio.Queue[str] = asyncio.Queue()

    async def never_ends(_: object, writer: asyncio.StreamWriter, *__: object) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            writer.close()
            lost.put_nowait("the store")

    async def serves(gateway: HostGateway) -> None:
        at, port = await gateway.listen("127.0.0.1", 0)
        joining = b.gateway("join", port)
        await gateway.connected()
        reader, writer = await asyncio.open_connection(at, port)
        await join(reader, writer, b"token", replace(OWN, host="b", purpose="store"))
        joining.kill()
        assert {await lost.get(), await lost.get()} == {"the store", "b"}
        writer.close()
        await writer.wait_closed()

    more: Any = {"serves": {"store": never_ends}, "lost": lost.put_nowait}
    asyncio.run(in_process(a.pool, serves, **more))


def test_a_host_that_does_not_answer_at_first_is_joined_until_the_timeout(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowtrain.hosts.handshake.TIMEOUT_S", 0.1)

    async def joins(gateway: HostGateway) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            pytest.raises(HostError, match=r"no connection to .* for 0.3 s: .*no answer within"),
        ):
            await gateway.join(*silent.getsockname(), timeout_s=0.3)

    asyncio.run(in_process(pool, joins))

"""The receiving side of a measurement between hosts, which does what an admitted peer asks for."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from flowtrain.bench import ucx_copy
from flowtrain.bench.conditions import conditions
from flowtrain.bench.isolated import failure_of, telling
from flowtrain.bench.peer import BUSY, ERROR, PURPOSE, READY, Endpoint, identity, plain
from flowtrain.bench.ucx_copy import UcxCopy
from flowtrain.hosts import Control, HostError, HostLeft
from flowtrain.hosts.entrance import Entrance, Port
from flowtrain.hosts.handshake import Session
from flowtrain.hosts.ucx import copies_in_packages
from flowtrain.train.launch.stops import first_of

# For a receiver to end, once its sender has.
_END_S = 1.0


@asynccontextmanager
async def listening(
    at: Endpoint, ucx: str, tell: Callable[[str], None]
) -> AsyncIterator[tuple[str, int]]:
    """Serve one peer after the other within the block.

    Args:
        at: Where to listen; port 0 lets the system choose. Whoever has the token is served.
        ucx: Path of `libucp` of this host; by default it is searched.
        tell: Takes what people should know.

    Returns:
        Address and port.
    """
    listener = _Listener(ucx, tell)
    tasks: set[asyncio.Task[None]] = set()

    def start(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    entrance = Entrance(at.token, identity(), listener.serve, tell, start)
    port = Port(at.host, at.port, entrance.take, tell)
    try:
        yield port.address
    finally:
        await port.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Listener:
    """Peers that have connected, of which one is served at a time."""

    def __init__(self, ucx: str, tell: Callable[[str], None]) -> None:
        self._ucx, self._tell = ucx, tell
        self._turn = asyncio.Lock()
        self._served = ""

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
    ) -> None:
        try:
            if session.peer.purpose != PURPOSE:
                writer.close()  # A gateway, of a run with the same token.
                return
            asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            control = Control(
                reader, writer, session, on_message=asked.put_nowait, on_stall=lambda _: None
            )
            peer = f"{session.peer.host} {writer.get_extra_info('peername')[0]}"
            interface = writer.get_extra_info("sockname")[0]
            await first_of(control.run(), self._answer(control, asked, peer, interface))
        except HostLeft as left:
            self._tell(f"host {left.reason}")
        except HostError as error:
            self._tell(str(error))

    async def _answer(
        self, control: Control, asked: asyncio.Queue[dict[str, Any]], peer: str, interface: str
    ) -> None:
        if self._turn.locked():
            control.send({BUSY: self._served})
        async with self._turn, AsyncExitStack() as stack:
            self._served = peer
            self._tell(f"host {peer} measures")
            control.send({READY: conditions()})
            service = _Service(interface, self._ucx, stack)
            while True:
                control.send(await service.answer(await asked.get()))


class _Service:
    """Answers the requests of a peer. Each ends the processes that the one before has started.

    Args:
        interface: Address of this host at which the peer reaches it.
        ucx: Path of `libucp`; by default it is searched.
        stack: Of what has been started.
    """

    def __init__(self, interface: str, ucx: str, stack: AsyncExitStack) -> None:
        self._interface, self._ucx, self._stack = interface, ucx, stack
        self._copy: UcxCopy | None = None
        self._receiver: Process | None = None
        self._does: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "find_ucx": self._find_ucx,
            "receive": self._receive,
            "perftest": self._perftest,
            "end": self._end,
        }

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            said = await self._said()
            await self._stack.aclose()
            return {"said": said} | await self._does[request.pop("does")](**request)
        except (RuntimeError, ValueError, OSError, LookupError, TypeError) as error:
            return {ERROR: plain(error)}

    async def _find_ucx(self) -> dict[str, Any]:
        self._copy = await ucx_copy.find(self._interface, self._ucx)
        return {"ucx": asdict(self._copy)}

    async def _receive(self, **flow: object) -> dict[str, Any]:
        library = {"library": self._ucx, "others": copies_in_packages()}
        started = telling("receive_placements", host=self._interface, **library, **flow)
        self._receiver, facts = await self._stack.enter_async_context(started)
        return dict(facts)

    async def _perftest(self, item_bytes: int, count: int) -> dict[str, Any]:
        if self._copy is None:
            raise ValueError("perftest: find_ucx comes first")
        started = ucx_copy.perftest_server(self._copy, item_bytes, count)
        return {"port": await self._stack.enter_async_context(started)}

    async def _end(self) -> dict[str, Any]:
        return {}

    async def _said(self) -> str:
        """Why the receiver has failed; empty if it has not."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    return await failure_of(receiver)
        return ""

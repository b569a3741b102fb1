"""Ports that take connections, however many strangers come and however few descriptors are left."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from flowtrain.hosts.connect import address_of
from flowtrain.hosts.handshake import HostError, Identity, Session, admit, cause_of

MAX_STRANGERS = 256
_RETRY_S = 1.0
_BACKLOG = 128
# Of connections that are refused for one cause, those that are told, and then the time between
# their counts.
_TOLD = 5
_COUNT_S = 60.0

Take = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Session], Awaitable[None]]
Start = Callable[[Coroutine[Any, Any, None]], object]


class Port:
    """A port whose connections are taken while its loop runs.

    A server of asyncio logs an accept that fails for lack of descriptors, up to a hundred times a
    second for as long as the lack lasts.

    Args:
        host: Numeric address to listen on.
        port: Port; 0 lets the system choose.
        take: Takes each connection.
        tell: Takes what people should know.
    """

    def __init__(self, host: str, port: int, take: Take, tell: Callable[[str], None]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._take, self._tell = take, tell
        self._accepts = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Take no more connections."""
        self._accepts.cancel()
        await asyncio.wait({self._accepts})
        self._socket.close()

    async def _accept(self) -> None:
        has_told = False
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
            except OSError as error:  # For lack of descriptors: the next one would fail, too.
                if not has_told:
                    self._tell(
                        f"port {address_of(*self.address)} takes no connections: {error}; "
                        "they wait until it can; raise the limit of descriptors (ulimit -n)"
                    )
                has_told = True
                await asyncio.sleep(_RETRY_S)
            else:
                with suppress(OSError):  # It has ended already.
                    self._take(*await asyncio.open_connection(sock=connection))


class _Refused:
    """Connections that were refused for one cause: the first are told, others are counted."""

    def __init__(self) -> None:
        self._count = self._untold = 0
        self._told_s = 0.0

    def add(self, text: str) -> str:
        """Count a connection; what to tell, or nothing."""
        self._count += 1
        now_s = time.monotonic()
        if self._count > _TOLD and now_s - self._told_s < _COUNT_S:
            self._untold += 1
            return ""
        if self._untold:
            text += f"; so were {self._untold} others before"
        elif self._count == _TOLD:
            text += f"; from now on they are counted, and told every {_COUNT_S:g} s"
        self._told_s, self._untold = now_s, 0
        return text


class Entrance:
    """Admits connections, and serves those that have the token.

    Of too many that are being admitted the oldest is dropped: a peer proves itself within three
    round trips, and so gets in whatever comes beside it.

    Args:
        token: Of the job.
        own: Identity of this process.
        serve: Serves an admitted connection.
        tell: Takes what people should know.
        start: Starts the work for a connection, and ends it when this process leaves.
    """

    def __init__(
        self, token: bytes, own: Identity, serve: Serve, tell: Callable[[str], None], start: Start
    ) -> None:
        self._token, self._own = token, own
        self._serve, self._tell, self._start = serve, tell, start
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # The oldest first.
        self._has_told = False
        self._refused: dict[str, _Refused] = {}  # By the cause.

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Admit a connection, and serve it."""
        self._strangers[writer] = None
        if len(self._strangers) > MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
            if not self._has_told:
                self._tell(
                    f"host {self._own.host}: more than {MAX_STRANGERS} connections at a time prove "
                    "nothing; the oldest are dropped; keep strangers away from this port"
                )
            self._has_told = True
        self._start(self._enter(reader, writer))

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            session = await admit(reader, writer, self._token, self._own)
        except HostError as error:
            if writer in self._strangers:  # Otherwise it was dropped, which has been told.
                cause = cause_of(error.__cause__)
                if text := self._refused.setdefault(cause, _Refused()).add(str(error)):
                    self._tell(text)
            return
        finally:
            self._strangers.pop(writer, None)
        await self._serve(reader, writer, session)

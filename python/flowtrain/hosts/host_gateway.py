"""The gateway of a host: joins its pool with those of the peers that come, and that it goes to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from flowtrain.hosts.handshake import HostError, Identity, Session, admit, join
from flowtrain.hosts.peering import Facts, Peering
from flowtrain_core import FlowTrainError, Gateway, Pool

RETRY_S = 0.2
# A peer that does not come back in this time is forgotten: what it was to get goes back.
FORGET_S = 60.0
_WAIT_S = 1.0


class HostGateway:
    """Joins a pool with those of other hosts, while its loop runs.

    Items move on a thread without Python's lock; this loop has the control connections, which
    alone decide whether a peer is there.

    Args:
        pool: Pool of this host.
        identity: Of this host.
        token: Of the job; whoever has it may join.
        readers: Rings whose readers are on this host.
        interface: Numeric address on which peers reach it.
        tell: Takes what people should know.
    """

    def __init__(
        self,
        pool: Pool,
        identity: Identity,
        token: bytes,
        *,
        readers: Sequence[str],
        interface: str,
        tell: Callable[[str], None],
    ) -> None:
        self._identity, self._token = identity, token
        self._interface, self._tell = interface, tell
        self.gateway = Gateway(pool, interface=interface)
        self._facts = Facts(
            address=self.gateway.address,
            pool=self.gateway.pool_nonce,
            process=self.gateway.process,
            max_cells=self.gateway.max_cells,
            rings=list(pool.rings),
            readers=list(readers),
        )
        self._peers: dict[str, Peering] = {}
        self._gone: dict[str, asyncio.TimerHandle] = {}
        self._server: asyncio.Server | None = None
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._is_closing = threading.Event()
        self._mover = threading.Thread(target=self._move, name="flowtrain-gateway", daemon=True)
        self._mover.start()

    async def listen(self, port: int) -> tuple[str, int]:
        """Let peers come.

        Returns:
            Address and port.
        """
        self._server = await asyncio.start_server(self._accept, self._interface, port)
        address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return address

    async def join(self, host: str, port: int, *, timeout_s: float) -> None:
        """Go to a peer, and again whenever the connection ends.

        Args:
            host: Its address.
            port: Its port.
            timeout_s: Time without a connection after which this ends.

        Raises:
            HostError: The peer refuses this host, or cannot be reached.
        """
        last_s = time.monotonic()
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                cause: Exception = error
            else:
                session = await join(reader, writer, self._token, self._identity)
                peering = self._peering(reader, writer, session)
                try:
                    await self._last(peering)
                except HostError as error:
                    self._tell(str(error))
                    cause = error
                else:
                    if self._is_closing.is_set():
                        return
                    cause = HostError("the payload path has ended")
                if peering.is_connected:
                    last_s = time.monotonic()
            if time.monotonic() - last_s > timeout_s:
                raise HostError(
                    f"host {self._identity.host}: no connection to {host}:{port} for "
                    f"{timeout_s:g} s: {cause}"
                )
            await asyncio.sleep(RETRY_S)

    async def failure(self) -> None:
        """Wait for an error of the pool or the payload path.

        Raises:
            FlowTrainError: The error.
        """
        await asyncio.shield(self._failure)

    async def close(self, why: str) -> None:
        """End all connections, and tell the peers why. Items for them go back to their rings."""
        if self._server is not None:
            self._server.close()
        for peering in list(self._peers.values()):
            peering.close(why)
        for timer in self._gone.values():
            timer.cancel()
        self._is_closing.set()
        self.gateway.wake()
        await self._loop.run_in_executor(None, self._mover.join)
        self.gateway.close()

    def _peering(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
    ) -> Peering:
        return Peering(
            reader,
            writer,
            session,
            gateway=self.gateway,
            facts=self._facts,
            enter=self._enter,
            tell=self._tell,
        )

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            session = await admit(reader, writer, self._token, self._identity)
            await self._last(self._peering(reader, writer, session))
        except HostError as error:
            self._tell(str(error))

    async def _last(self, peering: Peering) -> None:
        try:
            await peering.run()
        finally:
            if self._peers.get(peering.name) is peering:
                del self._peers[peering.name]
                self._gone[peering.name] = self._loop.call_later(
                    FORGET_S, self._forget, peering.name
                )

    def _enter(self, peering: Peering) -> None:
        """Let a peer in.

        Raises:
            HostError: Another one has its name, and is not lost.
        """
        name = peering.name
        if name == self._identity.host or name in self._peers:
            raise HostError(f"another process is host {name}; give each host its own name")
        if (timer := self._gone.pop(name, None)) is not None:
            timer.cancel()
        self._peers[name] = peering

    def _forget(self, name: str) -> None:
        del self._gone[name]
        self._tell(
            f"host {name} has not come back for {FORGET_S:g} s; what it was to get goes back"
        )
        self.gateway.forget(name)

    def _move(self) -> None:
        try:
            while not self._is_closing.is_set():
                for name, why in self.gateway.wait(_WAIT_S):
                    self._loop.call_soon_threadsafe(self._end, name, why)
        except FlowTrainError as error:
            self._loop.call_soon_threadsafe(self._fail, error)

    def _end(self, name: str, why: str) -> None:
        if name in self._peers:
            self._tell(f"host {name}: {why}")
            self._peers[name].close(why)

    def _fail(self, error: FlowTrainError) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

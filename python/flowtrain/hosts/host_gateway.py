"""The gateway of a host: joins its pool with those of all other hosts of a job.

The others go to the first one, which introduces them to each other.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from flowtrain.error_texts import reason_of
from flowtrain.hosts.connect import connect
from flowtrain.hosts.entrance import Entrance, Port, Serve
from flowtrain.hosts.guests import Guests
from flowtrain.hosts.handshake import (
    HostError,
    HostLeft,
    HostRefused,
    Identity,
    Session,
    join,
)
from flowtrain.hosts.peering import Facts, Peering
from flowtrain.hosts.ucx import copies_in_packages
from flowtrain_core import FlowTrainError, Gateway, Pool

RETRY_S = 0.2
# Between tries at a host that refuses this one, or is too busy to answer.
_REFUSED_S = 1.0
# The ranks of a peer that does not come back in this time have died.
RETURN_S = 2.0
# A peer that does not come back in this time is forgotten: what it was to get goes back.
FORGET_S = 60.0
_WAIT_S = 1.0
_RANKS_S = 0.1
_VERDICT_S = 0.3
# For the peers to be told why this host leaves.
_LEAVE_S = 1.0

Payloads = Literal["tcp", "ucx", "gpudirect"]


class HostGateway:
    """Joins a pool with those of other hosts, while its loop runs.

    Items move on a thread without Python's lock; this loop has the control connections, which
    alone decide whether a peer is there.

    Args:
        pool: Pool of this host.
        identity: Of this host.
        token: Of the job; whoever has it may join.
        interface: Numeric address on which peers reach it.
        tell: Takes what people should know.
        introduces: Whether it introduces its peers to each other.
        path: Payload path, the same for all peers.
        ucx: Path of `libucp.so.0` for the path ucx; by default it is searched.
        serves: What admitted connections of other purposes get, by the purpose. They end when the
            host that they come from is lost.
        lost: Takes the name of a peer that is lost, once its ranks are told to have died.
    """

    def __init__(
        self,
        pool: Pool,
        identity: Identity,
        token: bytes,
        *,
        interface: str,
        tell: Callable[[str], None],
        introduces: bool = False,
        path: Payloads = "tcp",
        ucx: str = "",
        serves: Mapping[str, Serve] | None = None,
        lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._identity, self._token = identity, token
        self._tell = tell
        self._introduces, self._interface = introduces, interface
        others = copies_in_packages() if path != "tcp" else []
        self.gateway = Gateway(pool, interface=interface, path=path, ucx=ucx, ucx_others=others)
        self._facts = Facts(
            address=self.gateway.address,
            path=path,
            pool=self.gateway.pool_nonce,
            process=0,  # Another one for each peer.
            max_cells=self.gateway.max_cells,
            rings=list(pool.rings),
            listens="",
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._guests = Guests(pool, self.gateway)
        self._serves = serves or {}
        self._served: dict[str, set[asyncio.Task[None]]] = {}  # By the name of the peer.
        self._lost = lost
        self._peers: dict[str, Peering] = {}
        self._connected = asyncio.Event()
        self._pools: dict[str, int] = {}  # Nonces, also of hosts that are gone.
        # By name and address: a host that comes again listens elsewhere.
        self._meetings: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._gone: dict[str, list[asyncio.TimerHandle]] = {}
        self._unreached: set[str] = set()  # Names of peers of which it was told why.
        self._port: Port | None = None
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._is_closing = threading.Event()
        self._mover = threading.Thread(target=self._move, name="flowtrain-gateway", daemon=True)
        self._mover.start()
        self._tells_ranks = asyncio.create_task(self._tell_ranks())

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Let peers come.

        Args:
            host: Numeric address to listen on.
            port: Port; 0 lets the system choose.

        Returns:
            Address and port.
        """
        entrance = Entrance(self._token, self._identity, self._entered, self._tell, self._track)
        self._port = Port(host, port, entrance.take, self._tell)
        self._facts = replace(self._facts, listens="{}:{}".format(*self._port.address))
        return self._port.address

    def join(self, host: str, port: int, *, timeout_s: float) -> asyncio.Task[None]:
        """Go to a peer, and again whenever the connection ends.

        Args:
            host: Its address.
            port: Its port.
            timeout_s: Time without a connection after which this ends.

        Returns:
            A task that `close` ends. Otherwise it raises HostLeft if the peer has left for good, or
            the two cannot be joined, and HostError if the peer refuses this host, or cannot be
            reached.
        """
        return self._track(self._join_first(host, port, timeout_s))

    def _track(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _join_first(self, host: str, port: int, timeout_s: float) -> None:
        if self._port is None:
            await self.listen(self._interface, 0)
        await self._join(host, port, timeout_s)

    def _meet(self, listen: dict[str, str]) -> None:
        """Go to the hosts to which this one was introduced, if they do not come themselves."""
        wanted = {(name, at) for name, at in listen.items() if name < self._identity.host}
        for each in self._meetings.keys() - wanted:
            self._meetings.pop(each).cancel()
        for each in wanted - self._meetings.keys():
            self._meetings[each] = self._track(self._join_introduced(each[1]))

    async def _join_introduced(self, at: str) -> None:
        """Join a host for as long as the first one introduces it."""
        host, _, port = at.rpartition(":")
        while True:
            try:
                await self._join(host, int(port), math.inf)
                return
            except HostLeft as left:
                self._tell(str(left))
                return
            except (HostError, ValueError) as error:
                self._tell(str(error))
            await asyncio.sleep(_REFUSED_S)

    def _introductions(self, to: Peering) -> dict[str, str]:
        others = [peer for peer in self._peers.values() if peer is not to]
        return {peer.name: peer.facts.listens for peer in others if peer.facts is not None}

    async def _join(self, host: str, port: int, timeout_s: float) -> None:
        last_s, was_admitted = time.monotonic(), False
        while True:
            try:
                peering = await self._joined(host, port)
            except HostRefused:
                raise
            except HostError as error:
                if not was_admitted and not isinstance(error.__cause__, TimeoutError):
                    raise
                cause: Exception = error
            except OSError as error:
                cause = error
            else:
                was_admitted = True
                try:
                    await self._last(peering)
                except HostLeft:
                    raise
                except HostError as error:
                    self._tell_lost(peering, error)
                    cause = error
                else:
                    if self._is_closing.is_set():
                        return
                    cause = HostError("its payload link has ended")
                if peering.has_stood:
                    last_s = time.monotonic()
            if time.monotonic() - last_s > timeout_s:
                raise HostError(
                    f"host {self._identity.host}: no connection to {host}:{port} for "
                    f"{timeout_s:g} s: {cause}"
                )
            await asyncio.sleep(RETRY_S)

    async def _joined(self, host: str, port: int) -> Peering:
        reader, writer = await connect(host, port)
        session = await join(reader, writer, self._token, self._identity)
        return self._peering(reader, writer, session)

    async def connected(self) -> None:
        """Wait until a peer is connected."""
        await self._connected.wait()

    async def failure(self) -> None:
        """Wait for an error of the pool or the payload path, and raise it."""
        await asyncio.shield(self._failure)

    def ranks_here(self) -> Sequence[tuple[str, int]]:
        """Labels and processes of the ranks of this host that live."""
        return self._guests.own_ranks()

    def ranks_elsewhere(self) -> Sequence[str]:
        """Labels of the ranks of peers."""
        return self._guests.labels()

    async def close(self, why: str) -> None:
        """End all connections, and tell the peers why. Items for them go back to their rings."""
        if self._port is not None:
            await self._port.close()
        self._is_closing.set()
        with suppress(FlowTrainError):  # Of a pool that has failed.
            ranks = self._guests.own()
            for peering in self._peers.values():
                peering.tell_ranks(ranks)  # Those that have left would seem to die with this host.
        for peering in list(self._peers.values()):
            peering.close(why)
        self._tells_ranks.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LEAVE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self._tells_ranks, return_exceptions=True)
        for timers in self._gone.values():
            for timer in timers:
                timer.cancel()
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
            facts=replace(self._facts, process=self.gateway.process(session.peer.host)),
            enter=self._enter,
            guests=self._guests,
            meet=self._meet,
            connected=self._connected.set,
            tell=self._tell,
        )

    async def _entered(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
    ) -> None:
        purpose = session.peer.purpose
        try:
            if purpose == self._identity.purpose:
                peering = self._peering(reader, writer, session)
                try:
                    await self._last(peering)
                except HostError as error:
                    self._tell_lost(peering, error)
            elif purpose in self._serves:
                await self._serve(purpose, reader, writer, session)
            else:
                writer.close()
        except HostError as error:
            self._tell(str(error))
        except Exception as error:  # Of any type: the other peers are served.
            self._tell(f"host {session.peer.host} is not served: {reason_of(error)}")
            writer.close()

    async def _serve(
        self,
        purpose: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session: Session,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        of_peer = self._served.setdefault(session.peer.host, set())
        of_peer.add(task)
        try:
            await self._serves[purpose](reader, writer, session)
        finally:
            of_peer.discard(task)

    def _tell_lost(self, peering: Peering, error: HostError) -> None:
        """Tell why a connection has ended; of those in a row that never connected, the first."""
        is_known = peering.name in self._unreached
        if peering.has_stood:
            self._unreached.discard(peering.name)
        elif not isinstance(error, HostLeft):
            self._unreached.add(peering.name)
            if is_known:
                return
        self._tell(str(error))

    async def _last(self, peering: Peering) -> None:
        try:
            await peering.run()
        finally:
            if self._peers.get(peering.name) is peering:
                del self._peers[peering.name]
                self.gateway.detach(peering.name)
                later, name = self._loop.call_later, peering.name
                self._gone[name] = [
                    later(RETURN_S, self._lose_ranks, name),
                    later(FORGET_S, self._forget, name),
                ]

    def _enter(self, peering: Peering, facts: Facts) -> None:
        """Let a peer in.

        Another process with the pool of an earlier peer takes its place. One with a pool of its
        own is another host, which has to wait until that of its name is gone, and its ranks are.

        Raises:
            HostError: There is a host of this name.
        """
        name = peering.name
        if name == self._identity.host:
            raise HostError(f"both hosts have the name {name}; give each its own")
        before, pool = self._peers.get(name), self._pools.get(name)
        comes_again = pool == facts.pool
        if before is not None and not comes_again and not before.is_stalled:
            raise HostError(f"there is a host {name} already; give each host its own name")
        if before is not None:
            before.close(f"another process has joined as host {name}; give each host its own name")
        if pool is not None and not comes_again:
            self._lose_ranks(name)
        self._pools[name] = facts.pool
        for timer in self._gone.pop(name, []):
            timer.cancel()
        self._peers[name] = peering

    def _lose_ranks(self, name: str) -> None:
        if lost := self._guests.lose(name, died=True):
            self._tell(f"host {name} is gone, and with it {', '.join(lost)}")
        # Nothing acknowledges their data any more: they would last until the kernel gives up.
        for task in self._served.pop(name, ()):
            task.cancel()
        self._lost(name)

    async def _tell_ranks(self) -> None:
        try:
            while True:
                ranks = self._guests.own()
                for peering in self._peers.values():
                    peering.tell_ranks(ranks)
                    if self._introduces:
                        peering.tell_peers(self._introductions(peering))
                await asyncio.sleep(_RANKS_S)
        except Exception as error:
            self._fail(error)

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
        except Exception as error:  # Of any type: without this thread nothing moves.
            self._loop.call_soon_threadsafe(self._fail, error)

    def _end(self, name: str, why: str) -> None:
        """Take in the end of a payload link: the control connection may be about to say why."""
        ended = self._peers.get(name)

        def close() -> None:
            if ended is not None and self._peers.get(name) is ended:
                self._tell(f"host {name}: {why}")
                ended.close(why, for_good=False)

        self._loop.call_later(_VERDICT_S, close)

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

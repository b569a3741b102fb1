"""The host that a measurement sends to, as the sending one sees it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import flowtrain_core
from flowtrain.hosts import Control, HostError, Identity, join
from flowtrain.hosts.connect import address_of, connect
from flowtrain.hosts.handshake import Session
from flowtrain_core import UcxError

PURPOSE = "bench pool"
BUSY, READY, ERROR = "busy", "ready", "error"
"""Keys of what the peer tells unasked, and of a failure in place of an answer."""
_LEAVE_S = 1.0
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where the receiving side listens, and the token of both."""

    host: str
    port: int
    token: bytes


def plain(error: Exception) -> str:
    """Text of an error, without the names of function and type that its process has put before."""
    text = str(error)
    return text.rpartition(f"{UcxError.__name__}: ")[2] or text


def identity() -> Identity:
    """Identity of this process. Only the version has to be the peer's: there is no job."""
    return Identity(
        host=socket.gethostname(),
        version=flowtrain_core.__version__,
        job=PURPOSE,
        incarnation="",
        tower="",
        processor="",
        purpose=PURPOSE,
    )


class Peer:
    """Starts what receives on the other host.

    Attributes:
        name: Name of the other host.
        address: Its numeric address.
        interface: Numeric address of this host on the way there.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session: Session,
        tell: Callable[[str], None],
    ) -> None:
        self.name = session.peer.host
        self.address: str = writer.get_extra_info("peername")[0]
        self.interface: str = writer.get_extra_info("sockname")[0]
        self._tell = tell
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._control = Control(
            reader, writer, session, on_message=self._take, on_stall=self._note_stall
        )
        self._runs = asyncio.create_task(self._control.run())

    def __str__(self) -> str:
        return f"{self.name} {self.address}"

    async def ready(self) -> dict[str, Any]:
        """Wait until it serves nobody else; the conditions there."""
        found: dict[str, Any] = (await self.while_there(self._answers.get()))[READY]
        return found

    async def ask(self, does: str, **given: object) -> dict[str, Any]:
        """Have the other host do something, which ends what it did before.

        Raises:
            RuntimeError: It could not, with the reason.
            HostError: It is lost.
        """
        self._control.send({"does": does, **given})
        answer = await self.while_there(self._answers.get())
        if ERROR in answer:
            raise RuntimeError(f"host {self}: {answer[ERROR]}")
        return answer

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that is cancelled when the peer is lost.

        Raises:
            HostError: It is lost; the message names it, the path and the cause.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task, self._runs}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and task.exception() is not None:
                # The end of the peer may show first in what measures to it.
                await asyncio.wait({self._runs}, timeout=_LEAVE_S)
            if self._runs.done():
                self._runs.result()
            return await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def close(self) -> None:
        """Leave the peer, which then ends what it does for this process."""
        self._control.close(f"{socket.gethostname()} {self.interface} has ended")
        await asyncio.wait({self._runs}, timeout=_LEAVE_S)
        if self._runs.done() and not self._runs.cancelled():
            self._runs.exception()  # Told already, if it was of use.

    def _take(self, message: dict[str, Any]) -> None:
        if BUSY in message:
            self._tell(f"host {self} measures with host {message[BUSY]}; waiting for its end")
        else:
            self._answers.put_nowait(message)

    def _note_stall(self, stalled: bool) -> None:
        does = "does not answer; waiting for it" if stalled else "answers again"
        self._tell(f"host {self} {does}")


@asynccontextmanager
async def connected(to: Endpoint, tell: Callable[[str], None]) -> AsyncIterator[Peer]:
    """Connect to a host that listens, for the block.

    Args:
        to: Where it listens.
        tell: Takes what people should know.

    Raises:
        HostError: It cannot be reached, or refuses this process.
    """
    try:
        reader, writer = await connect(to.host, to.port)
    except OSError as error:
        raise HostError(
            f"{address_of(to.host, to.port)} cannot be reached ({error.strerror or error}); start "
            "`flowtrain bench pool --listen` there"
        ) from error
    peer = Peer(reader, writer, await join(reader, writer, to.token, identity()), tell)
    try:
        yield peer
    finally:
        await peer.close()

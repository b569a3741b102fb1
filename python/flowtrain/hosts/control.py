"""An authenticated connection with heartbeats, which tells a dead peer from a stopped one."""

from __future__ import annotations

import asyncio
import errno
import hmac
import json
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from flowtrain.error_texts import reason_of
from flowtrain.hosts.handshake import MAX_BYTES, HostError, HostLeft, Session
from flowtrain_core import FlowTrainError

BEAT_S = 0.1
STALL_S = 0.7
# Beats to a stopped peer: few, so that they do not fill its buffer, and a cut is still noticed.
# More often than a stall lasts: otherwise a peer that goes on would take this side for stopped.
SLOW_BEAT_S = STALL_S / 2
MAX_QUEUED_BYTES = 1 << 20
_MAC_BYTES = 32
# Keys of the last message of a peer that closes the connection: why, and whether for good.
_LEAVES, _FOR_GOOD = "leaves", "for_good"
# Of a long text, the bytes in one message are at most twice its characters.
_PIECE = MAX_BYTES // 4
_LEFT = "left"  # Key of the number of its messages that follow.
MAX_TEXT = 1 << 26
_MAX_REASON = 4096
_FLUSH_S = 0.5
_ENDED = "its process has ended"


class Control:
    """Messages to and from one admitted peer.

    A killed peer closes the connection. A cut link leaves beats without an acknowledgement of the
    peer's kernel, which ends the connection after STALL_S. A stopped peer's kernel goes on to
    acknowledge: this is a stall, which is told and may end.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session: Session,
        *,
        on_message: Callable[[dict[str, Any]], None],
        on_stall: Callable[[bool], None],
    ) -> None:
        """Take over a connection that has been admitted or has joined.

        Args:
            reader: Of the connection.
            writer: Of the connection.
            session: Of its handshake.
            on_message: Takes each message of the peer. What it raises ends the connection.
            on_stall: Told True when the peer stops to answer, and False when it goes on.
        """
        self.session = session
        self.path = f"{writer.get_extra_info('sockname')} - {writer.get_extra_info('peername')}"
        self._reader, self._writer = reader, writer
        self._on_message, self._on_stall = on_message, on_stall
        self._sent = self._received = 0
        self._heard_s = time.monotonic()
        self._stalled = self._has_told = False
        self._left: str | None = None  # Why the peer, or this side, has ended it for good.
        # Why this side ends the connection; None as result for no reason.
        self._end: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALL_S * 1000))

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message. A peer that takes none while MAX_QUEUED_BYTES wait is given up."""
        if self._end.done():
            return
        if (queued := self._writer.transport.get_write_buffer_size()) > MAX_QUEUED_BYTES:
            self._end.set_result(f"it takes no messages, of which {queued} bytes wait")
            return
        self._write(message)

    async def send_text(self, key: str, text: str) -> None:
        """Send a text of ASCII characters in as many messages as it needs.

        Args:
            key: Of the messages.
            text: At most MAX_TEXT characters.

        Raises:
            ValueError: It is longer.
            OSError: The connection has ended.
        """
        if len(text) > MAX_TEXT:
            raise ValueError(f"its {key} has {len(text)} characters; at most {MAX_TEXT}")
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        for left, piece in zip(reversed(range(len(pieces))), pieces, strict=True):
            self.send({key: piece, _LEFT: left})
            await self._writer.drain()

    def _write(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        if len(body) > MAX_BYTES - _MAC_BYTES:
            raise ValueError(f"a message of {len(body)} bytes; at most {MAX_BYTES - _MAC_BYTES}")
        code = self._code(self.session.send_key, self._sent, body)
        self._sent += 1
        self._writer.write((len(body) + _MAC_BYTES).to_bytes(4, "little") + code + body)

    def close(self, why: str, *, for_good: bool = True) -> None:
        """Tell the peer why, and end the connection; `run` returns.

        Args:
            why: The reason.
            for_good: Whether the peer should not come again.
        """
        if not self._end.done():
            self._tell(why, for_good=for_good)
            self._end.set_result(None)

    def _tell(self, why: str, *, for_good: bool) -> None:
        # Also above the limit of `send`: it is the last message.
        self._write({_LEAVES: why[:_MAX_REASON], _FOR_GOOD: for_good})
        self._has_told = True

    async def run(self, work: Callable[[], Awaitable[None]] | None = None) -> None:
        """Receive until the connection ends; returns after `close`.

        Args:
            work: Done meanwhile. An error of it ends the connection, and the peer is told: for
                good, unless it is a HostError.

        Raises:
            HostLeft: The peer has left for good, or has broken a rule.
            HostError: It is lost; the message names the peer, the path and the cause.
        """
        beats = asyncio.create_task(self._beat())
        receives = asyncio.create_task(self._receive())
        tasks = {beats, receives}
        if work is not None:
            tasks.add(asyncio.create_task(self._do(work)))
        try:
            either: set[asyncio.Future[Any]] = {receives, self._end}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._end.done():
                self._end.set_result(self._cause(receives))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._has_told:
                self._writer.close()  # After what is queued.
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(_FLUSH_S):
                        await self._writer.wait_closed()
            else:
                self._writer.transport.abort()
        if (cause := self._end.result()) is not None:
            text = f"host {self.session.peer.host} ({self.path}) is lost: {cause}"
            raise HostError(text) if self._left is None else HostLeft(text, reason=self._left)

    def _cause(self, receives: asyncio.Task[None]) -> str:
        """Why receiving has ended. A peer that broke a rule is told."""
        try:
            receives.result()
        except HostLeft as error:
            self._left = error.reason
            return str(error)
        except asyncio.IncompleteReadError:
            return _ENDED
        except FlowTrainError as error:  # Of which some are errors of the system, too.
            return self._told(error)
        except OSError as error:
            # Its kernel resets the connection if the process had not read all, or is written to.
            return _ENDED if error.errno in (errno.ECONNRESET, errno.EPIPE) else str(error)
        except Exception as error:
            return self._told(error)
        raise AssertionError("receiving ends with an error")

    def _told(self, error: Exception) -> str:
        """Tell the peer an error for which the connection ends for good."""
        is_named = isinstance(error, (FlowTrainError, ValueError, OSError))
        self._left = str(error) if is_named else reason_of(error)
        self._tell(self._left, for_good=True)
        return self._left

    async def _do(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            if self._end.done() or self._writer.is_closing():
                return  # The end of the connection, which `run` tells, is what has failed it.
            if isinstance(error, HostError):
                self._tell(str(error), for_good=False)
                self._end.set_result(str(error))
            else:
                self._end.set_result(self._told(error))

    async def _receive(self) -> None:
        while True:
            size = int.from_bytes(await self._reader.readexactly(4), "little")
            if not _MAC_BYTES <= size <= MAX_BYTES:
                raise HostError(f"it sent a message of {size} bytes; at most {MAX_BYTES}")
            code = await self._reader.readexactly(_MAC_BYTES)
            body = await self._reader.readexactly(size - _MAC_BYTES)
            expected = self._code(self.session.receive_key, self._received, body)
            if not hmac.compare_digest(code, expected):
                raise HostError("it sent a message that is not of this session, or not in order")
            self._received += 1
            self._heard_s = time.monotonic()
            self._tell_stall(False)
            message = json.loads(body)
            if _LEAVES in message:
                text = f"it leaves: {(why := str(message[_LEAVES]))}"
                if message.get(_FOR_GOOD):
                    raise HostLeft(text, reason=why)
                raise ConnectionResetError(text)
            if message != {}:
                self._on_message(message)

    async def _beat(self) -> None:
        while True:
            self.send({})
            await asyncio.sleep(SLOW_BEAT_S if self._stalled else BEAT_S)
            self._tell_stall(time.monotonic() - self._heard_s > STALL_S)

    def _tell_stall(self, stalled: bool) -> None:
        if stalled != self._stalled:
            self._stalled = stalled
            self._on_stall(stalled)

    @staticmethod
    def _code(key: bytes, number: int, body: bytes) -> bytes:
        return hmac.digest(key, number.to_bytes(8, "little") + body, "sha256")


class LongText:
    """Puts a text of `Control.send_text` together again.

    Args:
        key: Of its messages.
    """

    def __init__(self, key: str) -> None:
        self._key, self._pieces, self._size = key, list[str](), 0

    def take(self, message: dict[str, Any]) -> str | None:
        """Take a message; the text, if it was the last one.

        Raises:
            HostError: It is no such message, or the text is too long.
        """
        piece, left = message.get(self._key), message.get(_LEFT)
        if not isinstance(piece, str) or not isinstance(left, int):
            raise HostError(f"a message that cannot come now: {str(message)[:80]}")
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > MAX_TEXT:
            raise HostError(f"it sent more than {MAX_TEXT} characters of its {self._key}")
        return None if left else "".join(self._pieces)

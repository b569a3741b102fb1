"""An authenticated connection with heartbeats, which tells a dead peer from a stopped one."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from flowtrain.hosts.handshake import MAX_BYTES, HostError, Session

BEAT_S = 0.1
STALL_S = 0.7
# Beats to a stopped peer: few, so that they do not fill its buffer, and a cut is still noticed.
SLOW_BEAT_S = 1.0
_MAC_BYTES = 32


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
            on_message: Takes each message of the peer.
            on_stall: Told True when the peer stops to answer, and False when it goes on.
        """
        self.session = session
        self.path = f"{writer.get_extra_info('sockname')} - {writer.get_extra_info('peername')}"
        self._reader, self._writer = reader, writer
        self._on_message, self._on_stall = on_message, on_stall
        self._sent = self._received = 0
        self._heard_s = time.monotonic()
        self._stalled = False
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALL_S * 1000))

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message."""
        body = json.dumps(message).encode()
        if len(body) > MAX_BYTES - _MAC_BYTES:
            raise ValueError(f"a message of {len(body)} bytes; at most {MAX_BYTES - _MAC_BYTES}")
        code = self._code(self.session.send_key, self._sent, body)
        self._sent += 1
        self._writer.write((len(body) + _MAC_BYTES).to_bytes(4, "little") + code + body)

    async def run(self) -> None:
        """Receive until the connection ends.

        Raises:
            HostError: Always in the end; names the peer, the path and the cause.
        """
        beats = asyncio.create_task(self._beat())
        try:
            await self._receive()
        except asyncio.IncompleteReadError:
            cause = "its process has ended, or closed the connection"
        except (HostError, OSError) as error:
            cause = str(error)
        finally:
            beats.cancel()
            self._writer.close()
        raise HostError(f"host {self.session.peer.host} ({self.path}) is lost: {cause}")

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

"""Admission of a process of another host to a job, by a token that both have."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass, fields
from typing import Any

from flowtrain_core import FlowTrainError

TIMEOUT_S = 5.0
MAX_BYTES = 1 << 16
_NONCE_BYTES = 32
ASKS = "job"
"""Purpose of a joiner that does not know the job yet, and asks for it."""
# Of these, the two sides must have the same.
_SAME = ("version", "job", "incarnation", "tower", "processor")
_COPY = "; copy the files of the model from the host of the run"
_WAYS_OUT = {"version": "; install the same one on all hosts", "tower": _COPY, "processor": _COPY}


class HostError(FlowTrainError, ConnectionError):
    """A peer on another host was refused, or no longer answers; the message names it and why."""


class HostRefused(HostError):
    """A peer does not admit this process, or does not prove that it has the token."""


class HostLeft(HostError):
    """A peer has ended the connection for good.

    Attributes:
        reason: What it has told.
    """

    def __init__(self, text: str, *, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Identity of a process, sent to its peer in the handshake."""

    host: str
    """Name for messages."""
    version: str
    """Of FlowTrain."""
    job: str
    """Name of the run."""
    incarnation: str
    """Number of the attempt to run it."""
    tower: str
    """Digest of the encoder's weights and configuration."""
    processor: str
    """Digest of what makes images of files."""
    purpose: str = "gateway"
    """Use of the connection: a gateway's, the job's store, or ASKS."""


Payload = tuple[int, bytes]
"""Number of a session of the payload path, not 0, and the ticket of 32 bytes that opens its link
once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Secrets that two processes share. Nobody else can derive them without the token."""

    peer: Identity
    send_key: bytes
    receive_key: bytes
    to_peer: Payload
    """Of the payload link that leads to the peer."""
    from_peer: Payload


def _mac(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """HMAC-SHA256 of parts, each with its length, so that no two lists of parts are the same."""
    code = hmac.new(key, purpose.encode() + b"\0", hashlib.sha256)
    for part in parts:
        code.update(len(part).to_bytes(8, "little") + part)
    return code.digest()


async def _receive(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "little")
    if size > MAX_BYTES:
        raise HostError("the other side does not speak FlowTrain's protocol")
    return await reader.readexactly(size)


def cause_of(error: BaseException | None) -> str:
    """Why a handshake has failed."""
    if isinstance(error, TimeoutError) and not str(error):
        return (
            f"no answer within {TIMEOUT_S:g} s; the other side is stopped, or does not speak "
            "FlowTrain's protocol, or the network drops large packets (MTU)"
        )
    if isinstance(error, asyncio.IncompleteReadError):
        return "the other side closed the connection without an answer"
    return str(error) or type(error).__name__


def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(len(body).to_bytes(4, "little") + body)


def _parse(body: bytes) -> Identity:
    try:
        given: dict[str, Any] = json.loads(body)
        found = Identity(**given)
    except (ValueError, TypeError) as error:
        raise HostError("its identity cannot be read; it may have another version") from error
    if not all(isinstance(getattr(found, each.name), str) for each in fields(found)):
        raise HostError("its identity has a field that is not text")
    return found


def _check_same(ours: Identity, theirs: Identity, *, purpose: str) -> None:
    for name in _SAME[:1] if purpose == ASKS else _SAME:
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            way_out = _WAYS_OUT.get(name, "")
            raise HostError(f"its {name} is {there!r}, and here it is {here!r}{way_out}")


def _session(token: bytes, talk: tuple[bytes, ...], peer: Identity, joins: bool) -> Session:
    secret = _mac(token, "session", *talk)
    sends, receives = ("joiner", "host") if joins else ("host", "joiner")
    return Session(
        peer=peer,
        send_key=_mac(secret, f"from {sends}"),
        receive_key=_mac(secret, f"from {receives}"),
        to_peer=_payload(secret, sends),
        from_peer=_payload(secret, receives),
    )


def _payload(secret: bytes, sender: str) -> Payload:
    number = int.from_bytes(_mac(secret, f"payload number of {sender}")[:8], "little")
    return number or 1, _mac(secret, f"payload ticket of {sender}")


async def admit(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, own: Identity
) -> Session:
    """Admit a peer that has connected to this process.

    Both nonces are drawn for this connection and go into every proof, so a recorded handshake is
    worth nothing on another connection.

    Raises:
        HostError: The peer has no token, or another version, job, tower or processor. A peer with
            the token is told why, others nothing.
    """
    path = f"{writer.get_extra_info('peername')} -> {writer.get_extra_info('sockname')}"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            theirs = await _receive(reader)
            ours = secrets.token_bytes(_NONCE_BYTES)
            _send(writer, ours)
            facts = await _receive(reader)
            proof = await _receive(reader)
        expected = _mac(token, "join", theirs, ours, facts)
        if len(theirs) != _NONCE_BYTES or not hmac.compare_digest(proof, expected):
            raise HostError("its proof is not of this job's token and this connection")
        why, peer = "", None
        try:
            peer = _parse(facts)
            _check_same(own, peer, purpose=peer.purpose)
        except HostError as error:
            why = str(error)
        answer = json.dumps({"refused": why, "own": asdict(own)}).encode()
        _send(writer, answer)
        _send(writer, _mac(token, "answer", theirs, ours, facts, answer))
        await writer.drain()
        if peer is None or why:
            raise HostError(why)
    except (HostError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        writer.close()
        raise HostError(f"host {own.host}: refused a peer ({path}): {cause_of(error)}") from error
    return _session(token, (theirs, ours, facts, answer), peer, joins=False)


async def join(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, own: Identity
) -> Session:
    """Join the job of a process that this one has connected to.

    Raises:
        HostRefused: The peer refuses, or does not prove that it has the token.
        HostError: The connection was lost before that.
    """
    path = f"{writer.get_extra_info('sockname')} -> {writer.get_extra_info('peername')}"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            ours = secrets.token_bytes(_NONCE_BYTES)
            _send(writer, ours)
            theirs = await _receive(reader)
            facts = json.dumps(asdict(own)).encode()
            _send(writer, facts)
            _send(writer, _mac(token, "join", ours, theirs, facts))
            try:
                answer = await _receive(reader)
                proof = await _receive(reader)
            except asyncio.IncompleteReadError as error:
                text = "it closed the connection; is the token the same?"
                raise ConnectionResetError(text) from error
        if not hmac.compare_digest(proof, _mac(token, "answer", ours, theirs, facts, answer)):
            raise HostError("its proof is not of this job's token and this connection")
        given = json.loads(answer)
        if given["refused"]:
            raise HostError(f"it refused this process: {given['refused']}")
        peer = _parse(json.dumps(given["own"]).encode())
        _check_same(own, peer, purpose=own.purpose)
    except (HostError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        writer.close()
        kind = HostRefused if isinstance(error, HostError) else HostError
        raise kind(f"host {own.host}: cannot join ({path}): {cause_of(error)}") from error
    return _session(token, (ours, theirs, facts, answer), peer, joins=True)

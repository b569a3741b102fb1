"""Admission and liveness over loopback, with peers that break the rules, are stopped and killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import struct
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from flowtrain.hosts import Control, HostError, HostLeft, Identity, admit, control, join
from flowtrain.hosts.control import MAX_QUEUED_BYTES, LongText
from flowtrain.hosts.handshake import MAX_BYTES, Session

OWN = Identity(host="a", version="1", job="j", incarnation="1", tower="t", processor="p")
THEIRS = replace(OWN, host="b", purpose="store")
T = TypeVar("T")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
TOKEN = b"token"
_writers: list[asyncio.StreamWriter] = []


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run, then close all connections of this process."""

    async def whole() -> T:
        try:
            return await work
        finally:
            while _writers:
                writer = _writers.pop()
                writer.close()
                # Cancelled if a Control has waited for it, and given up.
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await writer.wait_closed()

    return asyncio.run(whole())


async def listen() -> tuple[asyncio.Server, asyncio.Queue[Streams]]:
    streams: asyncio.Queue[Streams] = asyncio.Queue()

    def accepted(*pair: Any) -> None:
        _writers.append(pair[1])
        streams.put_nowait(pair)

    return await asyncio.start_server(accepted, "127.0.0.1", 0), streams


async def connected() -> tuple[Streams, Streams]:
    """Both ends of a connection."""
    server, streams = await listen()
    there = await asyncio.open_connection(*server.sockets[0].getsockname())
    _writers.append(there[1])
    here = await streams.get()
    server.close()
    return here, there


async def handshake(
    token: bytes = TOKEN, changed: dict[str, Any] | None = None
) -> tuple[Any, Any, Streams, Streams]:
    """Results or errors of admit and join, and the streams of both sides."""
    here, there = await connected()
    ends = await asyncio.gather(
        admit(*here, TOKEN, OWN),
        join(*there, token, replace(THEIRS, **(changed or {}))),
        return_exceptions=True,
    )
    return ends[0], ends[1], here, there


def test_both_sides_derive_the_same_secrets_once() -> None:
    host, joiner, *_ = run(handshake())
    assert isinstance(host, Session) and (host.peer, joiner.peer) == (THEIRS, OWN)
    assert (host.send_key, host.receive_key) == (joiner.receive_key, joiner.send_key)
    assert host.send_key != host.receive_key
    assert (host.to_peer, host.from_peer) == (joiner.from_peer, joiner.to_peer)
    again = run(handshake())[0]
    secrets = (host.send_key, host.receive_key, *host.to_peer, *host.from_peer)
    assert (
        len({*secrets, again.send_key, again.receive_key, *again.to_peer, *again.from_peer}) == 12
    )


def test_a_wrong_token_is_refused_and_told_nothing() -> None:
    host, joiner, *_ = run(handshake(token=b"other"))
    assert isinstance(host, HostError) and "token" in str(host)
    assert isinstance(joiner, HostError) and "is the token the same?" in str(joiner)


@pytest.mark.parametrize("name", ["version", "job", "incarnation", "tower", "processor"])
def test_another_identity_is_refused_with_both_values(name: str) -> None:
    host, joiner, *_ = run(handshake(changed={name: "other"}))
    said = f"its {name} is 'other', and here it is '{getattr(OWN, name)}'"
    assert isinstance(host, HostError) and said in str(host)
    assert isinstance(joiner, HostError) and said in str(joiner) and "127.0.0.1" in str(joiner)


class Recorder(asyncio.StreamReader):
    """Keeps a copy of all that arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.all = b""

    def feed_data(self, data: Any) -> None:
        self.all += bytes(data)
        super().feed_data(data)


async def replayed() -> Any:
    recorder, nothing = Recorder(), _Sink()

    async def pass_on(reader: asyncio.StreamReader, into: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            into.feed_data(data)

    here, there = await connected()
    passing = asyncio.create_task(pass_on(here[0], recorder))
    await asyncio.gather(admit(recorder, here[1], TOKEN, OWN), join(*there, TOKEN, THEIRS))
    passing.cancel()
    second = asyncio.StreamReader()
    second.feed_data(recorder.all)
    return await admit(second, nothing, TOKEN, OWN)  # type: ignore[arg-type]


class _Sink:
    """A writer of which nothing is needed."""

    def get_extra_info(self, _: str) -> str:
        return "nowhere"

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


def test_a_replayed_handshake_is_refused() -> None:
    with pytest.raises(HostError, match="proof is not of"):
        run(replayed())


async def controls(received: list[Any]) -> tuple[Control, Control, list[Any]]:
    host, joiner, here, there = await handshake()
    a = Control(*here, host, on_message=received.append, on_stall=received.append)
    b = Control(*there, joiner, on_message=received.append, on_stall=received.append)
    return a, b, [here, there]


async def ended(*, tamper: bool) -> list[Any]:
    """Messages that a control connection receives, and its error after a replayed one."""
    received: list[Any] = []
    a, b, (_, there) = await controls(received)
    copies: list[bytes] = []
    write = there[1].write

    def copied(data: Any) -> None:
        copies.append(bytes(data))
        write(data)

    there[1].write = copied
    b.send({"grant": 1})
    write(copies[0]) if tamper else there[1].close()
    with pytest.raises(HostError) as error:
        async with asyncio.timeout(30):
            await a.run()
    return [*received, str(error.value)]


def test_a_repeated_message_ends_the_session() -> None:
    message, end = run(ended(tamper=True))
    assert message == {"grant": 1} and "host b" in end and "not in order" in end


def test_a_closed_connection_names_peer_and_path() -> None:
    message, end = run(ended(tamper=False))
    assert message == {"grant": 1} and "host b" in end and "127.0.0.1" in end and "ended" in end


async def reset() -> str:
    a, _, (_, there) = await controls([])
    running = asyncio.create_task(a.run())
    await there[0].readexactly(1)
    connection = there[1].get_extra_info("socket")
    # As of a process that was killed before it had read all.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    there[1].close()
    async with asyncio.timeout(30):
        with pytest.raises(HostError) as error:
            await running
    return str(error.value)


def test_a_connection_that_is_reset_is_that_of_a_process_that_has_ended() -> None:
    assert run(reset()).endswith("is lost: its process has ended")


def peer(port: int) -> None:
    async def joined() -> None:
        streams = await asyncio.open_connection("127.0.0.1", port)
        session = await join(*streams, TOKEN, THEIRS)
        await Control(*streams, session, on_message=print, on_stall=lambda _: None).run()

    run(joined())


async def stopped_then_killed() -> tuple[list[bool], str]:
    server, streams = await listen()
    port = server.sockets[0].getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=peer, args=(port,), daemon=True)
    process.start()
    stalls: asyncio.Queue[bool] = asyncio.Queue()
    told: list[bool] = []
    try:
        async with asyncio.timeout(60):
            here = await streams.get()
            session = await admit(*here, TOKEN, OWN)
            control = Control(*here, session, on_message=print, on_stall=stalls.put_nowait)
            running = asyncio.create_task(control.run())
            for number in (signal.SIGSTOP, signal.SIGCONT):
                os.kill(process.pid or 0, number)
                told.append(await stalls.get())
            process.kill()
            with pytest.raises(HostError) as error:
                await running
    finally:
        process.kill()
        server.close()
    return told, str(error.value)


def test_a_stopped_peer_is_a_stall_and_a_killed_one_is_lost() -> None:
    told, end = run(stopped_then_killed())
    assert told == [True, False] and "host b" in end and "is lost" in end


async def closed() -> str:
    a, b, _ = await controls([])
    ends = asyncio.gather(a.run(), b.run(), return_exceptions=True)
    await asyncio.sleep(0)
    a.close("the run has ended")
    async with asyncio.timeout(30):
        own, theirs = await ends
    assert own is None
    return str(theirs)


def test_a_peer_that_closes_is_told_apart_from_one_that_is_lost() -> None:
    assert run(closed()).endswith("it leaves: the run has ended")


async def overflown() -> str:
    a, _, (here, _) = await controls([])
    running = asyncio.create_task(a.run())
    for _ in range(MAX_QUEUED_BYTES // 1000 * 100):
        a.send({"text": "x" * 1000})  # Nobody reads.
    assert here[1].transport.get_write_buffer_size() < MAX_QUEUED_BYTES + 2000
    async with asyncio.timeout(30):
        with pytest.raises(HostError) as error:
            await running
    return str(error.value)


def test_a_peer_that_takes_no_messages_is_given_up() -> None:
    assert "host b" in (end := run(overflown())) and "it takes no messages, of which" in end


async def breached_while_full() -> str:
    a, _, (here, there) = await controls([])
    running = asyncio.create_task(a.run())
    await asyncio.sleep(0.01)
    while here[1].transport.get_write_buffer_size() <= MAX_QUEUED_BYTES:
        a.send({"text": "x" * 50_000})  # Nobody reads.
    there[1].write(bytes(4))
    async with asyncio.timeout(30):
        with pytest.raises(HostError) as error:
            await running
    return str(error.value)


def test_a_breach_is_named_whatever_waits_for_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BEAT_S", 30.0)  # A beat would find the queue full.
    assert "host b" in (end := run(breached_while_full())) and "a message of 0 bytes" in end


async def told_text(text: str) -> str:
    a, b, _ = await controls([])
    told, whole = LongText("job"), asyncio.get_running_loop().create_future()

    def take(message: dict[str, Any]) -> None:
        if (found := told.take(message)) is not None:
            whole.set_result(found)

    b._on_message = take
    ends = asyncio.gather(a.run(partial(a.send_text, "job", text)), b.run(), return_exceptions=True)
    async with asyncio.timeout(30):
        await asyncio.wait({ends, whole}, return_when=asyncio.FIRST_COMPLETED)
        b.close("it knows the job now")
        await ends
    return str(await whole)


def test_a_text_is_longer_than_a_message() -> None:
    names = {f'data/{number:05d}."\\': "0123456789abcdef" * 8 for number in range(2000)}
    text = json.dumps({"fingerprint.json": json.dumps(names)})
    assert len(text) > 3 * MAX_BYTES
    assert run(told_text(text)) == text


async def work_that_fails(error: Exception) -> list[Any]:
    a, b, _ = await controls([])

    async def fail() -> None:
        raise error

    async with asyncio.timeout(30):
        return await asyncio.gather(a.run(fail), b.run(), return_exceptions=True)


@pytest.mark.parametrize(
    ("error", "told", "for_good"),
    [
        (ValueError("too long"), "too long", True),
        (KeyError("nonce"), "KeyError: 'nonce'", True),
        (HostError("no way to its port"), "no way to its port", False),
    ],
)
def test_an_error_while_a_peer_is_served_is_told_to_it(
    error: Exception, told: str, for_good: bool
) -> None:
    for end in run(work_that_fails(error)):
        assert isinstance(end, HostError) and str(end).endswith(told)
        assert isinstance(end, HostLeft) == for_good


async def joined_to(answer: bytes) -> str:
    here, there = await connected()
    here[1].write(answer)
    with pytest.raises(HostError) as error:
        await join(*there, TOKEN, THEIRS)
    return str(error.value)


def test_a_port_that_is_not_of_flowtrain_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowtrain.hosts.handshake.TIMEOUT_S", 0.1)
    silent = run(joined_to(b""))
    assert "no answer within 0.1 s" in silent and "does not speak FlowTrain's protocol" in silent
    web = run(joined_to(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    assert web.endswith("the other side does not speak FlowTrain's protocol")

"""Two hosts on this machine: pools in two folders, and only loopback TCP between them."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core.conftest import eventually, name, pool, spawn
from core.fake_driver import environment, needs_fake_driver
from core.processes import Process, Spawn, in_use

from flowtrain.hosts import (
    HostError,
    HostGateway,
    Identity,
    connect,
    host_gateway,
    join,
    peering,
)
from flowtrain_core import Consumer, Pool, PoolTimeout, Producer

__all__ = ["eventually", "name", "pool", "spawn"]
Eventually = Callable[[Callable[[], object]], None]

RINGS = ("there", "back")
OWN = Identity(host="a", version="1", job="j", incarnation="1", tower="t", processor="p")
# Arguments: name of the host and its pool, whether it joins, port, UCX for payloads or "". Explains
# itself for each line that it is sent.
HOST = """
import asyncio, threading
def explain(gateway):
    for _ in sys.stdin:
        print(gateway.explain().replace("\\n", "; "))
from flowtrain.hosts import HostGateway, HostError, Identity
async def main(host, does, port, ucx):
    pool = Pool.open(host, label="gateway", timeout_s=30)
    own = Identity(host=host, version="1", job="j", incarnation="1", tower="t", processor="p")
    gateway = HostGateway(
        pool, own, b"token", interface="127.0.0.1", tell=print, introduces=does == "listen",
        path="ucx" if ucx else "tcp", ucx=ucx,
    )
    threading.Thread(target=explain, args=(gateway.gateway,), daemon=True).start()
    if does == "join":
        await gateway.join("127.0.0.1", port, timeout_s=60)
    else:
        _, port = await gateway.listen("127.0.0.1", port)
        print(f"port {port}")
        await gateway.failure()
try:
    asyncio.run(main(*sys.argv[1:3], int(sys.argv[3]), sys.argv[4]))
except HostError as error:
    print(error)
"""
ARRAY_OF = """
from array import array as array_type
def array_of(key):  # Up to 128 KiB.
    return array_type('Q', [key * 0x9E3779B97F4A7C15 & (1 << 64) - 1]) * (1 + key * 7919 % 16384)
"""
# Arguments: pool, ring, ledger, first key, end of keys.
PRODUCE = """
import os
pool = Pool.open(sys.argv[1]); pool.add_segment(classes=[(4096, 4), (1 << 17, 4)])
producer = Producer(pool, ring=sys.argv[2])
ledger = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for key in range(int(sys.argv[4]), int(sys.argv[5])):
    array = array_of(key)
    lease = producer.lease((len(array),), 'uint64', timeout_s=100)
    memoryview(lease)[:] = array
    lease.publish(key)
    os.write(ledger, key.to_bytes(8, 'little'))
producer.drain(timeout_s=100)
"""
# As PRODUCE. A stream of the fake device, which delays its work, writes the items; SIGTERM waits
# for it.
PRODUCE_ON_DEVICE = """
import ctypes, os, signal
from flowtrain_core import cuda
def finish(*_):
    cuda.synchronize(device=0, stream=16)
    os._exit(0)
signal.signal(signal.SIGTERM, finish)
pool = Pool.open(sys.argv[1]); pool.add_segment(classes=[(4096, 4), (1 << 17, 4)], tier="vmm")
producer = Producer(pool, ring=sys.argv[2])
ledger = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
for key in range(int(sys.argv[4]), int(sys.argv[5])):
    array = array_of(key)
    lease = producer.lease((len(array),), 'uint64', timeout_s=100)
    capsule = lease.__dlpack__(stream=16, max_version=(1, 0))
    tensor = pointer_of(capsule, b"dltensor_versioned")
    target = ctypes.c_uint64.from_address(tensor + 32).value
    del capsule
    cuda.copy_to_device(target, array.buffer_info()[0], 8 * len(array), device=0, stream=16)
    lease.publish(key)
    os.write(ledger, key.to_bytes(8, 'little'))
producer.drain(timeout_s=100)
"""
# Arguments: pool, ring, ledger.
CONSUME = """
import os
pool = Pool.open(sys.argv[1]); consumer = Consumer(pool, ring=sys.argv[2])
ledger = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready")
while True:
    item = consumer.get(timeout_s=100)
    view = memoryview(item)
    is_whole = view.tolist() == array_of(item.key).tolist()
    os.write(ledger, (item.key if is_whole else 1 << 60).to_bytes(8, 'little'))
    del view
    item.release()
"""


def read_ledger(path: Path) -> list[int]:
    data = path.read_bytes() if path.exists() else b""
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


class Host:
    """A host: a folder for its pool, which this process owns, and its processes.

    Args:
        name: Of the host, and of its pool.
    """

    def __init__(self, name: str, spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.ucx = name, ""
        self._spawn = spawn
        self.folder = tempfile.mkdtemp(prefix="flowtrain-test-", dir="/dev/shm")
        monkeypatch.setenv("FLOWTRAIN_POOL_DIR", self.folder)
        self.pool = Pool.create(name, rings=RINGS, max_lanes=64, label="owner")
        self.env = {"FLOWTRAIN_POOL_DIR": self.folder}

    def start(self, code: str, *args: object) -> Process:
        return self._spawn(code, *args, env=os.environ | self.env)

    def gateway(self, does: str, port: int) -> Process:
        return self.start(HOST, self.name, does, port, self.ucx)

    def close(self) -> None:
        self.pool.close()
        shutil.rmtree(self.folder)


@pytest.fixture
def hosts(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, Host]]:
    """The producers of ring "there" are at the first host, its readers at the second."""
    a, b = Host("a", spawn, monkeypatch), Host("b", spawn, monkeypatch)
    yield a, b
    a.close()
    b.close()


@pytest.fixture
def devices(hosts: tuple[Host, Host], driver: Path) -> tuple[Host, Host]:
    """Such hosts, of which the first has a device."""
    a, _ = hosts
    a.env = environment(driver, seed=6, delay_us=4000) | a.env
    return hosts


@pytest.fixture
def ucx() -> str:
    wheel = pytest.importorskip("libucx", reason="make bench-setup installs libucx-cu12")
    return str(Path(wheel.__path__[0]) / "lib" / "libucp.so.0")


def told(process: Process, pattern: str) -> re.Match[str]:
    """The next line of a process that has a pattern."""
    while line := process.line():
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"it ended without a line that has {pattern}")


def joined(hosts: tuple[Host, Host]) -> tuple[Process, Process, int]:
    """The gateways of both, once they are connected, and the port of the second."""
    a, b = hosts
    listening = b.gateway("listen", 0)
    port = int(told(listening, r"port (\d+)")[1])
    joining = a.gateway("join", port)
    told(joining, "host b is connected")
    told(listening, "host a is connected")
    return joining, listening, port


def test_hosts_that_have_joined_meet_each_other(
    hosts: tuple[Host, Host],
    spawn: Spawn,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    a, b = hosts
    c = Host("c", spawn, monkeypatch)
    try:
        *_, port = joined(hosts)
        joining = c.gateway("join", port)
        told(joining, "host a is connected")
        a.pool.add_segment(classes=[(4096, 1)])
        producer, consumer = Producer(a.pool, ring="there"), Consumer(c.pool, ring="there")
        for key in range(4):
            producer.lease((1024,), "float32", timeout_s=60).publish(key)
            item = consumer.get(timeout_s=60)
            assert item.key == key
            item.release()
            # An item whose release was not told comes twice.
            eventually(lambda: in_use(a.pool) == 0)
            if key == 1:  # It comes again at another address.
                joining.kill()
                told(c.gateway("join", port), "host a is connected")
        assert in_use(b.pool) == 0
    finally:
        c.close()


def test_a_host_that_is_lost_within_the_handshake_is_joined_again(
    hosts: tuple[Host, Host],
) -> None:
    joining, listening, port = joined(hosts)
    listening.kill()
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(60)
        server.accept()[0].close()
    hosts[1].gateway("listen", port)
    told(joining, "host b is connected")


def test_a_host_has_its_name_until_it_is_gone_and_its_ranks_are_dead(
    hosts: tuple[Host, Host],
    spawn: Spawn,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    joining, _, port = joined(hosts)
    b = hosts[1].pool

    def guests() -> list[str]:
        lanes = [lane for lane in b.lanes() if lane.label == "owner" and lane.index != b.lane]
        return [lane.state for lane in lanes if lane.state == "alive"]

    eventually(guests)
    other = Host("a", spawn, monkeypatch)
    try:
        told(other.gateway("join", port), "there is a host a already; give each host its own name")
        assert guests() and b.wait_dead(timeout_s=0) is None
        joining.kill()
        told(other.gateway("join", port), "host b is connected")
        dead = b.wait_dead(timeout_s=30)
        assert dead is not None and dead.label == "owner"
    finally:
        other.close()


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


def test_a_reader_that_stops_bounds_both_hosts(
    hosts: tuple[Host, Host], eventually: Eventually
) -> None:
    a, b = hosts
    joined(hosts)
    a.pool.add_segment(classes=[(1 << 16, 6)])
    producer, consumer = Producer(a.pool, ring="there"), Consumer(b.pool, ring="there")
    for key in range(6):
        producer.lease((1 << 14,), "float32", timeout_s=60).publish(key)
    eventually(lambda: in_use(b.pool) == 6)
    with pytest.raises(PoolTimeout):
        producer.lease((1 << 14,), "float32", timeout_s=1.0)
    assert (in_use(a.pool), in_use(b.pool)) == (6, 6)
    keys = []
    for _ in range(6):
        item = consumer.get(timeout_s=60)
        keys.append(item.key)
        item.release()
    assert sorted(keys) == list(range(6))
    producer.drain(timeout_s=60)
    eventually(lambda: in_use(b.pool) == 0)


def test_a_stopped_gateway_is_a_stall_that_is_told_and_ends(
    hosts: tuple[Host, Host], tmp_path: Path, eventually: Eventually
) -> None:
    a, b = hosts
    joining, listening, _ = joined(hosts)
    b.start(ARRAY_OF + CONSUME, "b", "there", tmp_path / "read")
    a.start(ARRAY_OF + PRODUCE, "a", "there", tmp_path / "sent", 0, 400)
    eventually(lambda: len(read_ledger(tmp_path / "read")) > 20)
    listening.stop()
    told(joining, "host b does not answer; waiting for it")
    time.sleep(1)
    listening.popen.send_signal(signal.SIGCONT)
    told(joining, "host b answers again")
    eventually(lambda: sorted(read_ledger(tmp_path / "read")) == list(range(400)))


def random_kills(
    hosts: tuple[Host, Host],
    folder: Path,
    *,
    seed: int,
    kills: int,
    kinds: tuple[str, ...] = ("joining", "listening", "producer", "reader"),
    producer: str = PRODUCE,
) -> None:
    """Kill every kind of process at random, and replace it, while items cross."""
    a, b = hosts
    rng = random.Random(seed)
    joining, listening, port = joined(hosts)
    sent, read, end = folder / "sent", folder / "read", 1 << 40
    produce, consume = ARRAY_OF + producer, ARRAY_OF + CONSUME
    processes = {
        "joining": joining,
        "listening": listening,
        "producer": a.start(produce, "a", "there", sent, 0, end),
        "reader": b.start(consume, "b", "there", read),
    }
    for _ in range(kills):
        goal = len(read_ledger(read)) + rng.randrange(60)
        deadline = time.monotonic() + 60
        while len(read_ledger(read)) < goal:
            assert time.monotonic() < deadline, "no item comes"
            time.sleep(0.002)
        kind = rng.choice(kinds)
        processes[kind].kill()
        if kind == "listening":
            processes["listening"] = b.gateway("listen", port)
        elif kind == "joining":
            processes["joining"] = a.gateway("join", port)
        elif kind == "producer":
            first = max(read_ledger(sent), default=-1) + 1
            processes["producer"] = a.start(produce, "a", "there", sent, first, end)
        elif kind == "reader":
            processes["reader"] = b.start(consume, "b", "there", read)
    processes["producer"].popen.terminate()
    processes["producer"].wait()
    deadline = time.monotonic() + 60
    while in_use(a.pool) or in_use(b.pool) or set(read_ledger(sent)) - set(read_ledger(read)):
        assert time.monotonic() < deadline, (in_use(a.pool), in_use(b.pool))
        time.sleep(0.01)
    assert max(read_ledger(read)) <= max(read_ledger(sent)) + 1  # None was damaged.


def test_random_kills_lose_nothing(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    random_kills(hosts, tmp_path, seed=1, kills=12)


@pytest.mark.deep
def test_random_kills_lose_nothing_over_ucx(
    hosts: tuple[Host, Host], tmp_path: Path, ucx: str
) -> None:
    for host in hosts:
        host.ucx = ucx
    random_kills(hosts, tmp_path, seed=1, kills=12)


@needs_fake_driver
@pytest.mark.parametrize(
    "kills", [6, pytest.param(60, marks=[pytest.mark.deep, pytest.mark.limit(900)])]
)
def test_items_of_a_device_go_by_memory_of_the_host(
    devices: tuple[Host, Host], tmp_path: Path, kills: int
) -> None:
    """A killed producer loses what its stream has not written: it lives on here."""
    kinds = ("joining", "listening", "reader")
    random_kills(devices, tmp_path, seed=6, kills=kills, kinds=kinds, producer=PRODUCE_ON_DEVICE)


@needs_fake_driver
def test_an_item_that_a_dead_producer_has_not_written_does_not_cross(
    devices: tuple[Host, Host], tmp_path: Path, eventually: Eventually
) -> None:
    a, b = devices
    joining, *_ = joined(devices)
    b.start(ARRAY_OF + CONSUME, "b", "there", tmp_path / "read")
    for first in range(0, 4000, 1000):
        sent = tmp_path / f"sent {first}"
        producer = a.start(ARRAY_OF + PRODUCE_ON_DEVICE, "a", "there", sent, first, first + 1000)
        eventually(lambda sent=sent: len(read_ledger(sent)) > 8)
        producer.kill()
    eventually(lambda: in_use(a.pool) == in_use(b.pool) == 0)
    assert max(read_ledger(tmp_path / "read")) < 1 << 60  # None was damaged.
    joining.tell()
    told(joining, r"b: sent \d+ items .*, [1-9]\d* of a device .*, [1-9]\d* lost with a producer")


@pytest.mark.deep
def test_hosts_with_other_paths_are_told_so(hosts: tuple[Host, Host], ucx: str) -> None:
    a, b = hosts
    a.ucx = ucx
    listening = b.gateway("listen", 0)
    port = int(told(listening, r"port (\d+)")[1])
    joining = a.gateway("join", port)
    told(joining, "payloads go by tcp, and those of this host by ucx; give .* the same --path")


@pytest.mark.deep
@pytest.mark.limit(900)
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_many_random_kills_lose_nothing(
    hosts: tuple[Host, Host], tmp_path: Path, seed: int
) -> None:
    random_kills(hosts, tmp_path, seed=seed, kills=60)


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

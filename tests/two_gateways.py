"""Two hosts on this machine: pools in two folders, and only loopback TCP between them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from core.fake_driver import environment
from core.processes import Process, Spawn

from flowtrain.hosts import (
    Identity,
)
from flowtrain_core import Pool

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

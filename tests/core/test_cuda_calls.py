"""The calls of a CUDA driver that the core makes, their order, and how it undoes them on errors.

The driver is the fake one, whose device memory is host memory: it tests calls and lifetimes, not
devices.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from core.fake_driver import environment, needs_fake_driver

pytestmark = needs_fake_driver

PRELUDE = """
import ctypes, os, sys
import numpy
from flowtrain_core import *
from flowtrain_core import cuda
assert not cuda.why_not(), cuda.why_not()

def bytes_at(address, nbytes):
    return numpy.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=numpy.uint8)

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

def address_of(slab):
    tensor = pointer_of(slab.__dlpack__(max_version=(1, 0)), b"dltensor_versioned")
    address, device = (ctypes.c_uint64 * 2).from_address(tensor + 32)
    assert device == 2  # CUDA device 0.
    return address
"""
UNDONE = ["cuMemUnmap", "cuMemAddressFree", "cuMemRelease"]

RunCode = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> RunCode:
    """Runs code with the fake driver. Returns its output and its calls of the driver."""

    def start(code: str, *args: object, refuse: str = "") -> tuple[str, list[str]]:
        log = tmp_path / "calls"
        log.write_text("")
        env = environment(driver, log=log, refuse=refuse)
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + code, *map(str, args)],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), log.read_text().split()

    return start


@pytest.mark.parametrize(
    ("tier", "ended"),
    [
        ("vmm", UNDONE * 2),
        # The process that made it shares it with itself: a driver opens it only in others.
        ("ipc", ["cuMemFree"]),
    ],
)
def test_an_item_in_device_memory_reaches_another_handle_and_is_undone_in_order(
    tier: str, ended: list[str], run: RunCode
) -> None:
    code = """
pool = Pool.create(f"fake-{os.getpid()}")
other = Pool.open(pool.name)
consumer = Consumer(other)
number = pool.add_segment(bytes=3 << 20, tier=sys.argv[1])
lease = Producer(pool, segment=number).lease((4096,), "uint8", timeout_s=30)
bytes_at(address_of(lease), 4096)[:] = 7
lease.publish(1)
del lease
item = consumer.get(timeout_s=30)
assert item.__dlpack_device__() == (2, 0)
assert (bytes_at(address_of(item), 4096) == 7).all()
for refused in (numpy.asarray, memoryview):
    try:
        refused(item)
    except BufferError as error:
        print(error)
(segment,) = consumer.explain().segments
print(segment.tier, segment.kind, segment.device)
item.release()
del item
pool.close()
other.close()
"""
    printed, calls = run(code, tier)
    refusal = (
        "the buffer protocol cannot access the memory of CUDA device 0; use DLPack "
        "(torch.from_dlpack), and copy on the device"
    )
    uuid = "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"
    assert printed.splitlines() == [refusal, refusal, f"device {tier} {uuid}"]
    undone = [call for call in calls if call != "cuMemHostUnregister"]  # Of the stream words.
    assert undone[-len(ended) :] == ended


@pytest.mark.parametrize(
    ("refuse", "undone"),
    [
        ("cuMemAddressReserve", UNDONE[2:]),
        ("cuMemMap", UNDONE[1:]),
        ("cuMemSetAccess", UNDONE),
    ],
)
def test_a_refusal_names_the_call_and_leaves_nothing(
    refuse: str, undone: list[str], run: RunCode
) -> None:
    code = """
pool = Pool.create(f"fake-{os.getpid()}")
try:
    pool.add_segment(bytes=1 << 20, tier="vmm")
except CudaError as error:
    print(str(error).replace(pool.name, "p"), pool.stats()["segments"])
"""
    printed, calls = run(code, refuse=refuse)
    assert printed == (
        f"segment 'p.1' of 2097152 bytes on device 0: {refuse}: CUDA_ERROR_NOT_SUPPORTED "
        "(said the fake) []"
    )
    assert calls == [*calls[: calls.index(refuse) + 1], *undone]


def test_memory_for_network_cards_is_requested_and_optional(run: RunCode) -> None:
    code = 'Pool.create(f"fake-{os.getpid()}", bytes=4096, tier="device")'
    assert run(code)[1].count("cuMemCreate") == 1
    assert run(code, refuse="cuMemCreate")[1].count("cuMemCreate") == 2


def test_registrations_end_before_their_memory_and_with_its_views(run: RunCode) -> None:
    code = """
def log(): return open(os.environ["FAKE_CUDA_LOG"]).read().split().count("cuMemHostUnregister")
pool = Pool.create(f"fake-{os.getpid()}", classes=[(4096, 1)])
other = Pool.open(pool.name)
assert cuda.register_host(pool, device=0) == cuda.register_host(pool, device=0) == 4096
theirs = other.add_segment(classes=[(8192, 1)])
lease = Producer(pool, segment=theirs).lease((8192,), "uint8", timeout_s=5)
view = numpy.asarray(lease)
assert cuda.register_host(pool, device=0) == 4096 + 8192
assert log() == 0
pool.close()
# The view may be one end of a copy.
assert log() == 1
del view, lease
other.close()
del pool, other
import gc, time; gc.collect()
while log() < 2: time.sleep(0.001)  # Ends on another thread.
print(log())
"""
    printed, calls = run(code)
    assert printed == "2"
    assert calls.count("cuMemHostRegister") == 2


def test_python_goes_on_while_a_segment_is_registered(run: RunCode, tmp_path: Path) -> None:
    code = """
import threading, time
pool = Pool.create(f"fake-{os.getpid()}", classes=[(4096, 1)])
cuda.register_host(pool, device=0)
other, consumer = Pool.open(pool.name), Consumer(pool)
def registrations(): return open(os.environ["FAKE_CUDA_LOG"]).read().count("cuMemHostRegister")
def open_gate(gate, before):
    while registrations() == before: time.sleep(0.001)
    open(gate, "w").close()
def try_get():
    while (item := consumer.try_get()) is None: time.sleep(0.001)
    return item
calls = {
    "try_get": lambda theirs: try_get(),
    "get": lambda theirs: consumer.get(timeout_s=30),
    "get_many": lambda theirs: consumer.get_many(1, timeout_s=30),
    "lease": lambda theirs: Producer(pool, segment=theirs).lease((9,), "uint8", timeout_s=30),
}
for name, call in calls.items():
    os.environ["FAKE_CUDA_GATE"] = gate = sys.argv[1] + name
    thread = threading.Thread(target=open_gate, args=(gate, registrations()))
    thread.start()
    theirs = other.add_segment(classes=[(4096, 2)])
    Producer(other, segment=theirs).lease((9,), "uint8").publish(1)
    # Sends the owner a request. After its answer the next call maps the segment, unless this thread
    # was delayed and the pool's own thread mapped it before.
    if consumer.try_get() is None:
        time.sleep(0.002)
        call(theirs)
    thread.join()
print("done")
"""
    assert run(code, tmp_path / "gate-")[0] == "done"


def test_a_pool_that_nobody_closed_ends_without_the_gil(run: RunCode, tmp_path: Path) -> None:
    code = """
import threading, time
def ends(): return open(os.environ["FAKE_CUDA_LOG"]).read().count("cuMemHostUnregister")
def open_gate(gate, before):
    while ends() == before: time.sleep(0.001)
    open(gate, "w").close()
for last in (lambda pool: pool, Producer, Consumer):
    pool = Pool.create(f"fake-{os.getpid()}", classes=[(4096, 1)])
    cuda.register_host(pool, device=0)
    os.environ["FAKE_CUDA_END_GATE"] = gate = sys.argv[1] + str(ends())
    thread = threading.Thread(target=open_gate, args=(gate, ends()))
    thread.start()
    handle = last(pool)
    del pool
    del handle
    thread.join()
print(ends())
"""
    assert run(code, tmp_path / "gate-")[0] == "3"


def test_a_refused_registration_is_forgotten(run: RunCode) -> None:
    code = """
pool = Pool.create(f"fake-{os.getpid()}", classes=[(4096, 1)])
try:
    cuda.register_host(pool, device=0)
except CudaError as error:
    print(error)
pool.add_segment(classes=[(4096, 1)])
"""
    printed, calls = run(code, refuse="cuMemHostRegister")
    assert "segment 'fake-" in printed
    assert "(4096 bytes, device 0): cuMemHostRegister: CUDA_ERROR_NOT_SUPPORTED" in printed
    assert calls == ["cuMemHostRegister"]


def test_a_forked_child_leaves_the_device_to_its_parent(run: RunCode) -> None:
    code = """
pool = Pool.create(f"fake-{os.getpid()}", classes=[(4096, 1)])
cuda.register_host(pool, device=0)
device = pool.add_segment(bytes=4096, tier="vmm")
Producer(pool, segment=device).lease((4096,), "uint8").publish(1, 0)  # Registers the words.
if os.fork() == 0:
    del pool
    import gc; gc.collect()
    os._exit(0)
os.wait()
print(open(os.environ["FAKE_CUDA_LOG"]).read().count("cuMemHostUnregister"))
"""
    printed, calls = run(code)
    assert printed == "0"
    assert calls.count("cuMemRelease") == 1


def test_copies_reach_both_sides_with_a_context(run: RunCode) -> None:
    code = """
import threading
pool = Pool.create(f"fake-{os.getpid()}", classes=[(4096, 1)])
host = numpy.asarray(Producer(pool).lease((4096,), "uint8"))
producer = Producer(pool, segment=pool.add_segment(classes=[(4096, 2)], tier="ipc"))
leases = [producer.lease((4096,), "uint8") for _ in range(2)]
first, also = map(address_of, leases)
def copies():
    host[:] = 5
    there = host.ctypes.data
    cuda.copy_to_device(first, there, 4096, device=0, stream=0)
    cuda.copy_on_device(also, first, 4096, device=0, stream=0)
    host[:] = 0
    cuda.copy_to_host(there, also, 4096, device=0, stream=0)
    cuda.synchronize(device=0, stream=0)
thread = threading.Thread(target=copies); thread.start(); thread.join()
assert (host == 5).all()
"""
    assert run(code)[1].count("cuMemcpyDtoDAsync") == 1


def test_a_gather_refuses_what_its_kernel_could_not_copy(run: RunCode) -> None:
    code = """
pieces = numpy.array([[0, 0, 4, 0]])
def gather(packed=4096, dtype="bfloat16", table=pieces, rows=4):
    given = {"width": 8, "rows": rows, "device": 0, "stream": 0}
    try:
        cuda.gather_rows(packed, dtype, table, [(8192, 32)], "float32", **given)
        print("done")
    except ValueError as error:
        print(error)
gather(packed=4097)
gather(dtype="int8")
gather(rows=5)
gather(table=pieces[:, :3].copy())
gather(table=pieces[:0], rows=0)
"""
    assert run(code)[0].splitlines() == [
        "packed buffer: its address is not a multiple of the 2 bytes of an element",
        "dtype 'int8': must be float32, bfloat16 or float16",
        "the packed buffer's row 4 belongs to no piece; pieces must cover each row once",
        "pieces: must be int64 of shape [pieces, 4]: memory, offset, rows and first row",
        "done",
    ]


def test_a_rotation_refuses_what_its_kernel_could_not_read(run: RunCode) -> None:
    code = """
places = (4096, 64, 8, 8192, 64, 8, 2)
def rotate(queries=places, dtype="bfloat16", cos=12288, head_dim=8, tokens=4):
    given = {"tokens": tokens, "head_dim": head_dim, "back": False, "device": 0, "stream": 0}
    try:
        cuda.rotate(queries, places, dtype, cos, 16384, "float32", **given)
        print("done")
    except ValueError as error:
        print(error)
rotate(queries=places[:6])
rotate(queries=(4097, *places[1:]))
rotate(dtype="float64")
rotate(cos=12290)
rotate(head_dim=7)
rotate(tokens=0)
"""
    assert run(code)[0].splitlines() == [
        "queries and keys: must be tuples of 7 numbers",
        "queries: its address is not a multiple of the 2 bytes of an element",
        "dtype 'float64': must be float32, bfloat16 or float16",
        "angles: its address is not a multiple of the 4 bytes of an element",
        "head_dim=7: must be even",
        "done",
    ]

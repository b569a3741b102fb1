"""A producer and a consumer whose streams write and read slabs of a device, on the fake driver.

Both obey commands of the test, which may kill them at any time. The memory of the fake device is
the host's, and its streams are threads with random delays.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from core.fake_driver import environment
from core.processes import Process, Spawn, in_use

from flowtrain_core import Pool

SLABS = 4
SLAB_BYTES = 4096
CELLS = 64  # The stream words of so many cells fill one page.

PEER = f"""
import ctypes, mmap, os, numpy
from flowtrain_core import cuda
STREAM, OTHER, BYTES, SLABS, CELLS = 16, 17, {SLAB_BYTES}, {SLABS}, {CELLS}

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

def address_of(slab, stream):
    capsule = slab.__dlpack__(stream=stream, max_version=(1, 0))
    tensor = pointer_of(capsule, b"dltensor_versioned")
    return ctypes.c_uint64.from_address(tensor + 32).value
"""
OWNER = """
pool = Pool.open(sys.argv[1])
pool.add_segment(classes=[(BYTES, SLABS)], tier="vmm")
print("ready")
sys.stdin.read()
"""
# A third handle, which may be the one that recovers.
THIRD = """
pool = Pool.open(sys.argv[1])
print("ready")
sys.stdin.read()
"""
PRODUCER = """
producer = Producer(Pool.open(sys.argv[1]), segment=1)
data = numpy.empty(BYTES // 8, dtype=numpy.int64)  # Not registered: staged at the call.
print("ready")
for line in sys.stdin:
    first, count = map(int, line.split())
    for key in range(first, first + count):
        try:
            lease = producer.lease((BYTES // 8,), "int64", timeout_s=0.2)
        except PoolTimeout:
            break
        data[:] = key
        target = address_of(lease, STREAM)
        cuda.copy_to_device(target, data.ctypes.data, BYTES, device=0, stream=STREAM)
        if key % 8 == 0:
            lease.abort()
            continue
        lease.publish(key)
        print(key)
    print("done")
"""
# Gathers into memory of its own. Only a report waits for the stream; it is about all items since
# the last one.
CONSUMER = """
consumer, fault = Consumer(Pool.open(sys.argv[1])), sys.argv[2]
if fault == "stale generation":
    words = Words(sys.argv[1])
ROWS = 64
rows = numpy.zeros((ROWS, BYTES // 8), dtype=numpy.int64)
items = []

def gather(item, stream):
    source, target = address_of(item, stream), rows.ctypes.data + len(items) * BYTES
    cuda.copy_on_device(target, source, BYTES, device=0, stream=STREAM)

def was_poisoned(item):
    try:
        item.confirm()
    except StaleAddress:
        return True

print("ready")
for line in sys.stdin:
    if line == "report\\n":
        cuda.synchronize(device=0, stream=STREAM)
        lost = [item.key for item in items if was_poisoned(item)]
        bad = [item.key for row, item in zip(rows, items)
               if item.key not in lost and (row != item.key).any()]
        print(*(item.key for item in items), ",", *lost, ",", *bad)
        items = []
        continue
    for _ in range(min(int(line), ROWS - len(items))):
        try:
            item = consumer.get(timeout_s=0.02)
        except PoolTimeout:
            break
        print(item.key)
        if fault == "stale generation":
            words.wait(STREAM, words.slab_of(item), -1)
        if fault == "release before the gather":
            source = address_of(item, STREAM)
            item.release()
            target = rows.ctypes.data + len(items) * BYTES
            cuda.copy_on_device(target, source, BYTES, device=0, stream=STREAM)
        else:
            gather(item, -1 if fault else STREAM)
            item.release(STREAM)
        items.append(item)
    print("done")
"""
# The words of slabs without the checks of the core.
WORDS = """
class Words:
    def __init__(self, name):
        file = open(f"/dev/shm/flowtrain-{os.geteuid()}/{name}/control", "r+b")
        nbytes = 64 * CELLS
        offset = os.fstat(file.fileno()).st_size - nbytes  # The last table.
        mapped = mmap.mmap(file.fileno(), nbytes, offset=offset)
        words = numpy.frombuffer(mapped, dtype=numpy.uint64)
        # It ends before the words.
        self.registration = cuda.HostRegistration(words.ctypes.data, nbytes, device=0)
        self.words = words

    def slab_of(self, slab):
        return slab.address % 2**40 // BYTES

    def wait(self, stream, slab, ahead):
        \"\"\"Waits for a generation, counted from the one after that last read.\"\"\"
        generation = (int(self.words[8 * slab + 1]) >> 32) + 1 + ahead
        raw_wait(stream, self.registration.device_address + 64 * slab, generation << 32)

def raw_wait(stream, address, value):
    library = ctypes.CDLL("libcuda.so.1")
    def find(name, *types):
        found, status = ctypes.c_void_p(), ctypes.c_int()
        given = name.encode(), ctypes.byref(found), 0, ctypes.c_uint64(), ctypes.byref(status)
        library.cuGetProcAddress_v2(*given)
        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(found.value)
    push, pop = find("cuCtxPushCurrent", ctypes.c_void_p), find("cuCtxPopCurrent", ctypes.c_void_p)
    wait = find("cuStreamWaitValue64", ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64,
                ctypes.c_uint)
    push(None)
    assert wait(stream, address, value % 2**64, 0) == 0
    pop(None)
"""


@dataclass(slots=True)
class Side:
    """A process of the flow, and whether it has not answered its last command."""

    process: Process
    busy: bool = False


@dataclass(slots=True)
class Seen:
    """Keys of items, by what became of them."""

    published: set[int] = field(default_factory=set)
    taken: list[int] = field(default_factory=list)  # Since the last report.
    gathered: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)
    died: set[int] = field(default_factory=set)  # Taken by a consumer that died before its report.


class Flow:
    def __init__(self, spawn: Spawn, driver: Path, name: str, *, fault: str = "", **fake: int):
        self._spawn, self._env = spawn, environment(driver, **fake)
        self._arguments = name, fault
        self.pool = Pool.create(name, max_cells=CELLS)
        self._start(OWNER)
        self.third = self._start(THIRD)
        self.producer, self.consumer = self._start(PRODUCER), self._start(CONSUMER)
        self.next = 1
        self.seen = Seen()

    def _start(self, code: str) -> Side:
        process = self._spawn(PEER + WORDS + code, *self._arguments, env=self._env)
        assert process.line() == "ready"
        return Side(process)

    def publish(self, count: int) -> None:
        """Has the producer publish items, as far as there are slabs."""
        self.answer(self.producer)
        self.producer.process.tell(f"{self.next} {count}")
        self.producer.busy = True
        self.next += count

    def take(self, count: int) -> None:
        """Has the consumer gather items, as far as there are any."""
        self.answer(self.consumer)
        self.consumer.process.tell(str(count))
        self.consumer.busy = True

    def answer(self, side: Side) -> int:
        """Waits until a process has done its command, or died. Returns the number of items."""
        items = 0
        while side.busy and (line := side.process.line()) not in ("", "done"):
            items += 1
            if side is self.producer:
                self.seen.published.add(int(line))
            else:
                self.seen.taken.append(int(line))
        side.busy = False
        return items

    def report(self) -> None:
        """Waits for the consumer's stream, and compares what it gathered."""
        self.answer(self.consumer)
        self.consumer.process.tell("report")
        items, lost, bad = (
            {int(key) for key in keys.split()} for keys in self.consumer.process.line().split(",")
        )
        seen = self.seen
        assert items == set(seen.taken)
        seen.taken = []
        seen.lost |= lost
        seen.bad |= bad
        seen.gathered |= items - lost - bad

    def kill(self, side: Side) -> None:
        """Kills a process, and starts another one."""
        side.process.kill()
        self.answer(side)
        if side is self.producer:
            self.producer = self._start(PRODUCER)
        elif side is self.third:
            self.third = self._start(THIRD)
        else:
            self.seen.died |= set(self.seen.taken)
            self.seen.taken = []
            self.consumer = self._start(CONSUMER)

    def hand_over(self, items: int) -> None:
        """Hands over items, until a bad one is seen."""
        while len(self.seen.gathered) < items and not self.seen.bad:
            self.publish(2 * SLABS)
            self.take(2 * SLABS)
            self.answer(self.producer)
            self.report()

    def drain(self) -> None:
        """Consumes what is published; every slab must then be free."""
        self.answer(self.producer)
        end = time.monotonic() + 60
        while in_use(self.pool):  # Items of a dead process are delivered again a little later.
            assert time.monotonic() < end, "a slab is not freed"
            self.take(2 * SLABS)
            self.report()
        checker = self._spawn(PEER + ALL_FREE, *self._arguments, env=self._env)
        assert checker.line() == "all free"
        assert checker.wait() == 0


ALL_FREE = """
producer = Producer(Pool.open(sys.argv[1]), segment=1)
leases = [producer.lease((BYTES,), "uint8", timeout_s=10) for _ in range(SLABS)]
print("all free")
"""

"""Two processes whose streams hand over slabs, on the fake driver, and the pool between them.

The pool is played by this process: it knows the state of each slab, passes items on, and recovers
what a killed process held, as the pool's reaper does. Slabs are a file that both processes map: the
memory of the fake device is the host's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from core.fake_driver import environment
from core.processes import Process, Spawn

from flowtrain_core import cuda

SLABS = 4
SLAB_BYTES = 4096
# Wraps soon.
FIRST_GENERATION = 2**32 - 16

PEER = f"""
import numpy
from flowtrain_core import cuda
folder, lane, fault = sys.argv[1], int(sys.argv[2]), sys.argv[3]
STREAM, BYTES = 16, {SLAB_BYTES}
page = cuda.StreamPage.receive(folder + "/page", {SLABS}, device=0)
mapped = numpy.memmap(folder + "/memory", dtype=numpy.uint8)
memory = mapped.ctypes.data
print("ready", flush=True)
"""
PRODUCER = (
    PEER
    + """
data = numpy.empty(BYTES // 8, dtype=numpy.int64)  # Not registered: staged at the call.
for line in sys.stdin:
    slab, generation, item = map(int, line.split())
    data[:] = item
    slab_address = memory + slab * BYTES
    cuda.copy_to_device(slab_address, data.ctypes.data, BYTES, device=0, stream=STREAM)
    page.publish_on(STREAM, slab, generation, lane=lane)
    print(slab, flush=True)
"""
)
# Gathers into memory of its own. Only a report waits for the stream; it is about all items since
# the last one.
CONSUMER = (
    PEER
    + """
ROWS = 64
rows = numpy.zeros((ROWS, BYTES // 8), dtype=numpy.int64)
items = []
for line in sys.stdin:
    if line == "report\\n":
        cuda.synchronize(device=0, stream=STREAM)
        lost = [item for slab, generation, item in items if not page.confirm(slab, generation)]
        bad = [item for row, (_, _, item) in zip(rows, items)
               if item not in lost and (row != item).any()]
        print(len(items), ",", *lost, ",", *bad, flush=True)
        items = []
        continue
    slab, generation, item = map(int, line.split())
    target, source = rows.ctypes.data + len(items) * BYTES, memory + slab * BYTES
    if fault == "no wait":
        pass
    elif fault == "stale generation":
        raw_wait(STREAM, page.address + 64 * slab, generation - 1 << 32)
    else:
        page.wait_written(STREAM, slab, generation)
    if fault == "release before the gather":
        page.release_on(STREAM, slab, generation, lane=lane)
    cuda.copy_on_device(target, source, BYTES, device=0, stream=STREAM)
    if fault != "release before the gather":
        page.release_on(STREAM, slab, generation, lane=lane)
    items.append((slab, generation, item))
    print(slab, flush=True)
"""
)
# A wait that the page does not check.
RAW_WAIT = """
def raw_wait(stream, address, value):
    import ctypes
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
class Cell:
    """A slab's state in the pool: free, leased, published or taken."""

    generation: int
    state: str = "free"
    lane: int = 0
    item: int = 0

    def free(self) -> None:
        self.state, self.generation = "free", (self.generation + 1) % 2**32


@dataclass(slots=True)
class Side:
    """A process of the flow, and the slabs of the commands that it has not answered."""

    process: Process
    lane: int
    unanswered: list[int]


class Flow:
    def __init__(self, spawn: Spawn, driver: Path, folder: Path, *, fault: str = "", **fake: int):
        self.fault, self.folder = fault, str(folder)
        self._spawn, self._env = spawn, environment(driver, **fake)
        self.page = cuda.StreamPage(SLABS)
        self.page.serve(self.folder + "/page")
        self.cells = [Cell(FIRST_GENERATION) for _ in range(SLABS)]
        for slab in range(SLABS):
            self.page.reset(slab, FIRST_GENERATION)
        self._lanes = iter(range(1, 2**31))
        (folder / "memory").write_bytes(bytes(SLABS * SLAB_BYTES))
        self.producer, self.consumer = self._start(PRODUCER), self._start(CONSUMER)
        self.items = 0
        self.unreported: set[int] = set()
        self.gathered: set[int] = set()
        self.lost: set[int] = set()
        self.bad: set[int] = set()
        self.died: set[int] = set()  # Released by a consumer that died before it reported.

    def _start(self, code: str) -> Side:
        lane = next(self._lanes)
        arguments = self.folder, lane, self.fault
        side = Side(self._spawn(RAW_WAIT + code, *arguments, env=self._env), lane, [])
        assert side.process.line() == "ready"
        return side

    def lease(self) -> bool:
        """Has the producer write a slab, if one is free; the answer says that it is published."""
        for slab, cell in enumerate(self.cells):
            if cell.state == "free" and self.page.may_write(slab, cell.generation):
                self.items += 1
                cell.state, cell.lane, cell.item = "leased", self.producer.lane, self.items
                return self._tell(self.producer, slab)
        return False

    def take(self) -> bool:
        """Has the consumer gather a published slab; the answer says that it is released."""
        published = [cell.item for cell in self.cells if cell.state == "published"]
        if not published:
            return False
        slab = next(s for s, cell in enumerate(self.cells) if cell.item == min(published))
        self.cells[slab].state, self.cells[slab].lane = "taken", self.consumer.lane
        return self._tell(self.consumer, slab)

    def _tell(self, side: Side, slab: int) -> bool:
        cell = self.cells[slab]
        side.process.tell(f"{slab} {cell.generation} {cell.item}")
        side.unanswered.append(slab)
        return True

    def answer(self, side: Side, line: str) -> None:
        assert int(line) == side.unanswered.pop(0)
        cell = self.cells[int(line)]
        if side is self.producer:
            cell.state = "published"
        else:
            self.unreported.add(cell.item)
            cell.free()

    def answers(self) -> None:
        for side in (self.producer, self.consumer):
            while side.unanswered:
                self.answer(side, side.process.line())

    def report(self) -> None:
        """Waits for the consumer's stream, and compares what it gathered."""
        self.consumer.process.tell("report")
        count, lost, bad = self.consumer.process.line().split(",")
        assert int(count) == len(self.unreported)
        self.lost |= {int(item) for item in lost.split()}
        self.bad |= {int(item) for item in bad.split()}
        self.gathered |= self.unreported - self.lost - self.bad
        self.unreported = set()

    def report_poisoned(self) -> None:
        """Reports if a free slab was poisoned, as it is not leased before that is known."""
        if self.unreported and any(
            self.page.written(slab, (cell.generation - 1) % 2**32) == "poisoned"
            for slab, cell in enumerate(self.cells)
            if cell.state == "free"
        ):
            self.answers()
            self.report()

    def kill(self, side: Side) -> None:
        """Kills a process, recovers what it held, and starts another one."""
        side.process.kill()  # And waits: its streams write nothing any more.
        while line := side.process.line():
            self.answer(side, line)
        while not self.page.settle(side.lane):
            time.sleep(0.001)
        for slab, cell in enumerate(self.cells):
            if cell.lane != side.lane:
                continue
            if cell.state == "leased":
                assert self.page.finish_read(slab, cell.generation)
                cell.free()
            elif cell.state == "taken" and self.page.read(slab, cell.generation) == "pending":
                cell.state = "published"
            elif cell.state == "taken":
                self.died.add(cell.item)
                cell.free()
        if side is self.producer:
            self.producer = self._start(PRODUCER)
        else:
            self.died |= self.unreported
            self.unreported = set()
            self.consumer = self._start(CONSUMER)

    def drain(self) -> None:
        """Consumes what is published; every slab must then be free for its next generation."""
        self.answers()
        while self.take():
            self.answers()
        self.report()
        assert all(cell.state == "free" for cell in self.cells)
        while not all(self.page.may_write(s, cell.generation) for s, cell in enumerate(self.cells)):
            time.sleep(0.001)

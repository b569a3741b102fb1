"""The compiled core. Every wait releases the GIL and has a deadline."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict

from numpy import int32, int64
from numpy.typing import NDArray
from typing_extensions import Buffer

from flowtrain_core.edges import Explanation
from flowtrain_core.snapshots import FlightEvent, PoolSnapshot

__version__: str
cuda_built: bool

class FlowTrainError(Exception):
    """Base of the errors in docs/errors.md; bad arguments may be plain ValueError or TypeError."""

class CudaError(FlowTrainError, RuntimeError):
    """A call of the CUDA driver failed; the message names the call, its object and the result."""

_Tier = Literal["host", "device", "auto", "vmm", "ipc", "fake"]

class MemoryUnreachable(FlowTrainError, RuntimeError):
    """This process cannot use a segment's memory, such as that of a device that it does not see."""

class PoolClosed(FlowTrainError, ValueError):
    """A handle, lease or item was used after its end, or in a forked child."""

class PoolCorrupt(FlowTrainError, RuntimeError):
    """Invalid data of another process, such as a damaged control file or one of another version."""

class PoolExists(FlowTrainError, FileExistsError):
    """A pool of this name is in use."""

class PoolFull(FlowTrainError, RuntimeError):
    """A lease that may not wait, by when_full="fail" or strict=True, got no slab or credit."""

class PoolNotFound(FlowTrainError, FileNotFoundError):
    """There is no pool of this name, or none of its processes is alive."""

class PoolSpace(FlowTrainError, MemoryError):
    """Too little shared memory, lanes, cells or segments; the message has the numbers."""

class PoolTimeout(FlowTrainError, TimeoutError):
    """A deadline passed; the message names the awaited resource and its holders."""

class StaleAddress(FlowTrainError, LookupError):
    """An address outlived its segment."""

class SystemCallError(FlowTrainError, OSError):
    """A system call failed; the message names the call and its object."""

class UcxError(FlowTrainError, RuntimeError):
    """UCX cannot be opened, or refused a setting; the message names each place that was tried."""

class ViewRefused(FlowTrainError, BufferError):
    """No such view: the owner has ended, or the protocol lacks its dtype or read-only memory."""

class ViewsAlive(FlowTrainError, BufferError):
    """A call that gives up memory over which tensors, arrays or memoryviews live."""

class _Traffic(TypedDict):
    peer: str
    connected: bool
    stalled_s: float
    sent_items: int
    sent_bytes: int
    staged_items: int
    lost_items: int
    unreleased_there: int
    received_items: int
    received_bytes: int
    unreleased_here: int
    waiting: int
    mirrors: int

class Gateway:
    """Joins a pool with those of other hosts; see docs/hosts.md.

    Items of rings whose readers are at a peer go there, and appear in the same ring of the peer's
    pool. Peers agree upon sessions beforehand, as `flowtrain.hosts` does.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        interface: str,
        path: Literal["tcp", "ucx", "gpudirect"] = "tcp",
        ucx: str = "",
        ucx_others: Sequence[str] = (),
    ) -> None:
        """Open the payload path.

        Args:
            pool: Pool of this host.
            interface: Numeric address on which peers reach this host.
            path: The same for all peers. `gpudirect` is UCX that also reads memory of devices.
            ucx: Path of `libucp.so.0`; by default it is searched.
            ucx_others: Further copies, tried after that of the system.

        Raises:
            UcxError: No UCX can be used, or not for this path.
        """

    @property
    def address(self) -> str:
        """Where peers connect to."""
    @property
    def pool_nonce(self) -> int: ...
    @property
    def max_cells(self) -> int:
        """Of the pool."""
    @property
    def max_lanes(self) -> int:
        """Of the pool."""
    def process(self, peer: str) -> int:
        """Number of this process, for a peer. After `forget` it is another one."""

    def admit(
        self,
        name: str,
        *,
        address: str,
        pool: int,
        process: int,
        max_cells: int,
        to_peer: tuple[int, bytes],
        from_peer: tuple[int, bytes],
    ) -> None:
        """Let a peer open a link to here. The links of one of the same name end.

        Args:
            name: Name of the peer, for the other calls and for messages.
            address: `Gateway.address` there.
            pool: `pool_nonce` there.
            process: What `process` returns there.
            max_cells: The same there.
            to_peer: Number and ticket, of 32 bytes, of the session that the peer admits.
            from_peer: Of the session that this gateway admits.
        """

    def route(self, name: str, rings: Sequence[str]) -> None:
        """Let rings lead to a peer that was admitted, beside those that do already.

        Args:
            name: The peer.
            rings: Rings whose readers are there. Both pools have the same rings, in order.

        Raises:
            ValueError: The pool has no such ring, it leads to another host, or the peer was never
                admitted.
        """

    def connect(self, name: str) -> bool:
        """Open the link to a peer that has admitted this gateway.

        Returns:
            False if the peer's own link has ended already, which `wait` tells.
        """

    def detach(self, name: str) -> None:
        """End the links of a peer. What is unfinished goes on over the next ones."""

    def forget(self, name: str) -> None:
        """Detach a peer for good. Items for it go back to their rings."""

    def add_guest(self, label: str, pid: int) -> int:
        """Let a process of another host appear among the lanes of the pool.

        Returns:
            Its lane, which also ends with this process.
        """

    def remove_guest(self, lane: int, *, died: bool) -> None:
        """Let it have left, or died: `Pool.wait_dead` of every handle then tells it."""

    def wait(self, timeout_s: float) -> list[tuple[str, str]]:
        """Move items. Returns when there was something to do, at the latest after the timeout.

        Returns:
            Peers whose links have ended otherwise than by a call, and why.
        """

    def wake(self) -> None:
        """End a wait in another thread."""

    def traffic(self) -> list[_Traffic]:
        """What was moved since the start, by peer, and what is unfinished."""

    def explain(self) -> str:
        """The path, its links and its traffic, for people."""

    def close(self) -> None:
        """End all links."""

class LaneInfo:
    """A participant, at the time of the call."""

    @property
    def index(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def role(self) -> Literal["pool", "producer", "consumer"]: ...
    @property
    def pid(self) -> int: ...
    @property
    def ring(self) -> int | None:
        """Of a producer or consumer: its ring, as an index of `Pool.rings`."""
    @property
    def state(self) -> Literal["alive", "left", "dead"]: ...

class PoolEntry:
    """A pool of this user."""

    @property
    def name(self) -> str: ...
    @property
    def creator_pid(self) -> int: ...
    @property
    def nonce(self) -> int:
        """Random number of the pool, which no pool of another host has."""
    @property
    def alive(self) -> bool:
        """Whether a process has it open."""
    @property
    def error(self) -> str:
        """Why its control file cannot be opened, or empty."""

class _SegmentStats(TypedDict):
    id: int
    owner: str
    bytes: int
    slabs: int
    in_use_slabs: int
    in_use_bytes: int
    unused_bytes: int

class _PoolStats(TypedDict):
    segments: list[_SegmentStats]
    items_published: int
    bytes_published: int
    items_taken: int
    items_released: int
    redelivered: int
    lost: int

class Pool:
    """Handle of a pool of shared memory."""

    @staticmethod
    def create(
        name: str,
        *,
        bytes: int = 0,
        classes: Sequence[tuple[int, int]] | None = None,
        rings: Sequence[str] = ("default",),
        max_cells: int | None = None,
        max_lanes: int = 128,
        label: str = "",
        prefault: bool = True,
        tier: _Tier = "host",
        device: int = 0,
    ) -> Pool:
        """Creates a pool. Closing this handle removes its name and its files.

        The end of the process does this too, and so do SIGTERM, SIGHUP and SIGINT where they end
        the process, unless another process has the pool open: then the last one does. A signal
        handler of the program is left alone, and should exit. After SIGKILL the files stay until a
        new pool takes the name, `Pool.unlink` or `flowtrain clean`.

        Others can open the pool while the first segment is being made; their leases wait for it.

        Args:
            name: Letters, digits, `.`, `_` and `-`; at most 47.
            bytes: Size of a first segment, divided into slabs on demand, for items of any sizes.
                Free slabs merge where a larger one is needed, so an item fits wherever enough
                consecutive pages of 4 KiB are free.
            classes: Instead of bytes, the slabs of the first segment, as (slab_bytes, count). For
                few sizes that are known: a lease never searches for a place.
            rings: Names of the rings. None can be added later.
            max_cells: Maximum slabs over all segments, of which one by bytes can have a quarter. By
                default 4,096 more than the classes have, or four times the pages of bytes, from
                4,096 to 65,536. Each takes 144 bytes of /dev/shm, 64 more in memory of
                a device, and 8 for every further ring.
            max_lanes: Maximum pool handles, producers and consumers at a time.
            label: Name of this process in messages, at most 47 bytes, without control characters.
            prefault: Touch every page of the segment now. Ctrl-C ends this, and leaves no pool.
            tier: Of the first segment, as in `add_segment`.
            device: As in `add_segment`.

        Raises:
            PoolExists: A live process has a pool of this name. A pool left by a crash is replaced,
                and the end of one that is being closed is waited for, at most 1 s.
            PoolSpace: Too little memory.
            PoolTimeout: Another process has been making or removing a pool for ten seconds.
            ValueError: A name or number is out of range.
        """

    @staticmethod
    def open(name: str, *, label: str = "", timeout_s: float = 0.0) -> Pool:
        """Opens a pool, waiting up to timeout_s for it to appear.

        Maps its memory, so that items can be read after the death of their producer. If the owner
        of a segment does not answer within 0.1 s, because it is stopped, mapping is tried again
        later.

        Raises:
            PoolNotFound: No pool of this name with a live process appeared within timeout_s, or
                its creator is closing it.
        """

    @staticmethod
    def exists(name: str) -> bool:
        """Whether a pool of this name can be opened.

        Raises:
            SystemCallError: Its control file cannot be.
        """

    @staticmethod
    def unlink(name: str, *, only_left: bool = False) -> bool:
        """Removes a pool's name, for example after its creator's death.

        Args:
            name: Name of the pool.
            only_left: Remove it only if no process has it open or is making it.

        Returns:
            Whether the name was removed.

        Raises:
            PoolTimeout: Another process has been making or removing a pool for ten seconds.
        """

    def add_segment(
        self,
        *,
        bytes: int | None = None,
        classes: Sequence[tuple[int, int]] | None = None,
        prefault: bool = True,
        tier: _Tier = "host",
        device: int = 0,
    ) -> int:
        """Adds a segment owned by this handle.

        This handle hands its memory to the others. When it ends, every handle that has mapped the
        segment does, except for ipc, whose memory ends with its owner.

        Args:
            bytes: As in `create`.
            classes: As in `create`.
            prefault: Touch every page now. Ctrl-C ends this, and adds no segment.
            tier: Memory of the host, or of a CUDA device (`vmm` or `ipc` by kind; `device` is vmm).
                `auto` is device where the process can have it, and otherwise host. `fake` is memory
                of the host that the pool treats as that of a device, for tests.
            device: Number of the device in this process.

        Returns:
            Number of the segment, for `Producer(segment=)`.

        Raises:
            PoolNotFound: The pool was removed, so that no other handle could map the segment.
            PoolSpace: Too little memory, all 64 segments are in use, or max_cells is too small.
            MemoryUnreachable: This process cannot have memory of this tier.
            PoolTimeout: Another handle has been making slabs or adding a segment for ten seconds.
        """

    def drop_segment(self, segment: int) -> None:
        """Drops a segment that this handle added.

        No more slabs are leased from it. Published items stay; the memory is freed when the last
        slab in use is released.

        Raises:
            ValueError: This handle has no such segment.
        """

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def lane(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def rings(self) -> tuple[str, ...]: ...
    def lanes(self) -> list[LaneInfo]:
        """Participants, including those that left or died, until their lane is reused."""

    def wait_dead(self, timeout_s: float) -> LaneInfo | None:
        """The next pool handle whose process has died since this one opened; None on timeout."""

    def stats(self) -> _PoolStats:
        """Current use of each segment, and counters of the whole pool, which never fall.

        Of `in_use_bytes`, the bytes of slabs in use, `unused_bytes` are beyond their leases or
        items.
        """

    def lost(self) -> int:
        """Items lost because their memory died before another handle mapped it."""

    def close(self) -> None:
        """Leaves the pool. Live items and leases keep their memory.

        Waits until the other live handles have mapped the segments with items that this one maps;
        after 0.1 s one of them is enough. The creator waits until every live handle has mapped
        every segment, because none can be mapped after it. This takes about 20 ms after a segment
        was added, and otherwise no time. A `with` block, garbage collection and the end of the
        interpreter close in the same way.

        Raises:
            PoolTimeout: A handle did not map a segment within ten seconds, for example because its
                process is stopped. This handle is closed nevertheless. Garbage collection warns
                instead. After Ctrl-C it is the context of the KeyboardInterrupt.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Lease:
    """A slab being written, by `numpy.asarray(lease)` or `torch.from_dlpack(lease)`.

    In memory of a device, streams write it: see `publish`. A stream is an integer, torch's
    `stream.cuda_stream` or CuPy's `stream.ptr`; -1 is the host.

    Publish it once, after its views are deleted: the slab is then the reader's. `abort` or garbage
    collection frees it unpublished. Views of views count. `torch.asarray(lease)` ignores dtype and
    shape: it reads the bytes as one row of float32. It raises an error for an empty lease, for
    bytes that are no multiple of 4, and for bfloat16. Use `torch.from_dlpack(lease)`.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int:
        """Global address: generation (16 bits), segment (8), offset (40)."""

    def publish(self, key: int, stream: int | None = None) -> None:
        """Publishes the slab to the ring's consumers.

        In memory of a device it does not wait for the stream: the item is complete once all work
        that the stream has been given so far is done, and a stream of the consumer waits for that.

        Args:
            key: Of the item, 0 <= key < 2**128.
            stream: That writes the slab, or -1 if all writes are complete. By default the one that
                was current when torch took the last view. Memory of the host has none.

        Raises:
            ValueError: A stream for memory of the host.
            PoolClosed: It was already published or aborted, or its pool handle is closed.
            ViewsAlive: Tensors, arrays or memoryviews over it are alive, or another thread is in
                `write`.
        """

    def write(self, source: Buffer | NDArray[Any]) -> None:
        """Copies the bytes of a C-contiguous buffer into the slab; the dtypes may differ.

        Releases the GIL. From 16 MiB on it bypasses the caches, which is faster than `memcpy`.

        Raises:
            ValueError: The buffer and the lease differ in bytes.
            BufferError: The buffer is not C-contiguous.
            TypeError: The source has no buffer, or one of Python objects or pointers.
            PoolClosed: The lease was already published or aborted, or this is a forked child.
        """

    def shrink(self, shape: Sequence[int]) -> None:
        """Shortens the item to its first bytes, before publish: readers see the new shape.

        For items whose size is known only once they are written: lease the largest shape, write,
        delete the views, shrink. Credit beyond the new size returns at once. So does memory, in
        whole pages, in a segment by bytes; a slab of a class keeps its size, see `unused_bytes` of
        `Pool.stats`, and so does one while another process is making a slab.

        Args:
            shape: Of the same dtype, and of at most as many bytes: `(rows, width)` with fewer rows
                keeps the first rows.

        Raises:
            ValueError: The shape has more bytes than the lease; the message has both numbers.
            ViewsAlive: As of publish.
            PoolClosed: As of publish.
        """

    def abort(self, stream: int | None = None) -> None:
        """Frees the slab without publishing it.

        Args:
            stream: As of publish. The slab is leased again once its work is done.

        Raises:
            ViewsAlive: As of publish. A lease that is dropped instead is freed once its views are
                gone.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Called by numpy if the buffer protocol fails.

        Raises:
            PoolClosed: It was published, aborted or released, or this is a forked child.
            ViewRefused: The dtype is bfloat16, which numpy lacks; use torch.from_dlpack.
        """

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Item:
    """A published slab, read-only, by `numpy.asarray(item)` or `torch.from_dlpack(item)`.

    Release it once. An item that is not released is *given back*: when it and its views are gone,
    or its `with` block raises, it returns to the end of its ring, for any consumer, with `attempt`
    increased. To drop an item that no consumer can process, release it.

    Torch has no read-only tensors: a write to one changes the item for its next reader.

    In memory of a device, a stream reads it: `torch.from_dlpack(item)` makes the current stream
    wait until the data is written, and `release` has the slab reused once that stream has done what
    it was given until then. The host waits for nothing. If the producer dies before its stream has
    written the data, the wait ends nevertheless: `confirm` tells.
    """

    @property
    def key(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def attempt(self) -> int:
        """Number of earlier deliveries, to consumers that died or gave the item back."""

    @property
    def producer(self) -> str:
        """Label of the process that published the item."""

    def wait(self, stream: int) -> None:
        """Makes later work of a stream wait until the data is written; returns at once.

        `torch.from_dlpack(item)` does this for the current stream. In memory of the host there is
        nothing to wait for.

        Raises:
            MemoryUnreachable: Streams of the device cannot wait for words.
        """

    def confirm(self) -> None:
        """Checks that the data was there when the stream that waited for it went on.

        Call it once the stream has passed, as after `stream.synchronize()`, before the result is
        used; also after `release`. If the producer had died, its slab is reused only after this
        call, or the end of this consumer. Memory of the host needs no check.

        Raises:
            StaleAddress: The producer died before its stream had written the data.
            ValueError: The stream has not passed yet.
        """

    def release(self, stream: int | None = None) -> None:
        """Frees the slab: the item is consumed.

        Args:
            stream: In memory of a device, the one whose work so far reads the slab, or -1 if all
                reads are complete. By default the one that waited last. Memory of the host has
                none.

        Raises:
            StaleAddress: No stream waited, and the data is not written yet.
            ValueError: A stream for memory of the host.
            ViewsAlive: Tensors, arrays or memoryviews over it are alive.
            PoolClosed: It was already released or given back, or this is a forked child.
            PoolCorrupt: Another process changed the state of its slab; it is not freed.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Releases the item unless it was released, or gives it back if the block raised.

        An item with views is given back once they are gone; the traceback of an error may hold
        some. Without another error, they are one.

        Raises:
            ViewsAlive: The block left tensors, arrays or memoryviews over it.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Called by numpy if the buffer protocol fails.

        Raises:
            PoolClosed: It was published, aborted or released, or this is a forked child.
            ViewRefused: The dtype is bfloat16, which numpy lacks; use torch.from_dlpack.
        """

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A read-only capsule of DLPack 1.0.

        In memory of a device, `stream` waits until the data is written, unless it is -1; None is
        CUDA's legacy default stream.

        Raises:
            ViewRefused: max_version is below (1, 0), which has no read-only flag.
        """

    def __dlpack_device__(self) -> tuple[int, int]: ...

class Producer:
    """Publishes items to one ring."""

    def __init__(
        self,
        pool: Pool,
        ring: str = "default",
        *,
        segment: int | Sequence[int] | None = None,
        max_bytes: int | None = None,
        max_items: int | None = None,
        when_full: Literal["block", "fail"] = "block",
        strict: bool = False,
    ) -> None:
        """Joins the pool.

        Args:
            pool: Pool to join.
            ring: Ring to publish to.
            segment: Segment to lease from, or several in order of preference. A lease for which the
                first has no slab *spills* into the next, and is counted. By default all segments,
                the handle's own ones first. A number that was dropped may be that of a newer one.
            max_bytes: Maximum bytes in flight: leased or published, and not yet released.
            max_items: Maximum items in flight.
            when_full: Without a slab or credit, "block" until the deadline, or "fail" with
                PoolFull.
            strict: Raise PoolFull instead of spilling.

        Raises:
            PoolSpace: All lanes are in use.
            ValueError: A number is out of range, or the pool has no such ring.
        """

    def explain(self, *, measure: bool = False) -> Explanation:
        """Explains the path of this edge, the paths not taken, its limits and its rate.

        Args:
            measure: Also copy 32 MiB, for the rate to expect; takes milliseconds.
        """

    def lease(self, shape: Sequence[int], dtype: object, timeout_s: float | None = None) -> Lease:
        """Leases a slab for an item, waiting for space and credit.

        Args:
            shape: Up to four dimensions, each below 2**32.
            dtype: A name like "bfloat16", or a numpy or torch dtype.
            timeout_s: Seconds to wait; 60 if None.

        Raises:
            PoolTimeout: No slab or credit became free; the message names the holders.
            PoolFull: No slab or credit is free, with when_full="fail"; or the lease would spill,
                with strict=True.
            PoolSpace: There is no segment and none is being made, or it was dropped or lost its
                owner during the wait.
            ValueError: The item can never fit, or the dtype or shape is invalid.
        """

    def publish_many(
        self, leases: Sequence[Lease], keys: Sequence[int], stream: int | None = None
    ) -> None:
        """Publishes leases of this producer in the given order; all of them or, on an error, none.

        Adjacent slabs, as of most successive leases, go through the ring in one operation, which
        makes a batch cheap.

        Args:
            leases: All different.
            keys: One of each lease, 0 <= key < 2**128.
            stream: As of `Lease.publish`, for all of them.

        Raises:
            PoolClosed: A lease was already published or aborted.
            ViewsAlive: A lease has live views, or another thread is writing it.
            ValueError: A lease is another producer's, or leases and keys differ in number.
        """

    def drain(self, timeout_s: float | None = None) -> None:
        """Waits until consumers have released every item that this producer has published.

        Leases count as well, until they are published or aborted. A pool goes with the handle that
        created it, so a process that creates a pool, publishes and ends calls this before.

        Args:
            timeout_s: Seconds to wait; 60 if None.

        Raises:
            PoolTimeout: Items are still in flight; the message names the holders.
            PoolClosed: The producer or its pool was closed.
        """

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Consumer:
    """Takes items from one ring."""

    def __init__(self, pool: Pool, ring: str = "default", *, strict: bool = True) -> None:
        """Joins the pool.

        Args:
            pool: Pool to join.
            ring: Ring to take from.
            strict: Raise StaleAddress for an item whose memory died with its owner, before any
                live process mapped it. Otherwise such an item is only counted, as lost.
        """

    def explain(self, *, measure: bool = False) -> Explanation:
        """Explains the path of this edge and the paths not taken; see Producer.explain."""

    def get(self, timeout_s: float | None = None) -> Item:
        """Waits for the next item, up to timeout_s; 60 seconds if None.

        An item whose memory is not mapped yet, because the live owner is stopped and does not hand
        it over, is skipped and goes to the end of the ring.

        Raises:
            PoolTimeout: No item arrived, or only skipped ones; the message names their owner.
            PoolCorrupt: An invalid item arrived; the next call takes the next item.
            StaleAddress: The memory of an item is gone; the next call takes the next item.
            MemoryUnreachable: This process cannot map the memory of an item, which goes back to
                the end of the ring.
        """

    def try_get(self) -> Item | None:
        """The next item; None if the ring has none in memory that this process has mapped."""

    def get_many(self, max_items: int, timeout_s: float | None = None) -> list[Item]:
        """Waits for the next item, and takes it with those that follow at once, up to max_items.

        Raises:
            PoolTimeout: No item arrived.
            PoolCorrupt, StaleAddress: As `get`, unless there are items before that one.
            ValueError: max_items is less than 1.
        """

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

def list_pools() -> list[PoolEntry]:
    """All pools of this user on this machine."""

def leave_pools() -> None:
    """Leaves all pools of this process: the last call before `os._exit`.

    `os._exit` runs no exit handlers, and so closes no pool. This call does what a signal does that
    ends the process: it removes the files of each pool that this process has created or whose
    creator has left it in this way, unless another process has that pool open; the last one removes
    them then. It waits for nothing. What this process has leased or taken is recovered once it has
    ended. No handle may be used any more.
    """

def inspect(name: str) -> PoolSnapshot:
    """Reads the state of a pool from outside, even after the death of all its processes.

    Times are on the clock of `time.perf_counter_ns`. A producer has `alloc_wait` (request of a slab
    to lease) and `transfer` (lease to publish); a consumer has `queue_wait` (publish to take) and
    `use` (take to release). Counters include all items; of items less than 4 us apart, the
    histograms sample one in 1,024.

    Raises:
        PoolNotFound: There is no such pool.
        PoolCorrupt: Another version made it.
    """

def flight_record(name: str) -> list[FlightEvent]:
    """The last 1,024 events of every lane of a pool, oldest first, even after a crash.

    Of items less than 4 us apart, events sample one in 1,024.

    Raises:
        PoolNotFound: There is no such pool.
        PoolCorrupt: Another version made it.
    """

class packing:  # noqa: N801
    """Kernels of schedulers, on NumPy arrays; a submodule. `flowtrain_core.packing` wraps them.

    Tokens and costs are int64 of shape [num_samples]; an unplaced sample has slot and rank -1.
    Wrong input is a ValueError that names sample, value and limit.
    """

    @staticmethod
    def integer_costs(cost: NDArray[Any], name: str) -> tuple[NDArray[int64], float]:
        """Costs as integers, and the unit that they are in; float64 is scaled, int64 reduced."""
    @staticmethod
    def check(
        tokens: NDArray[int64],
        cost: NDArray[int64],
        ranks: int,
        microbatches: int,
        max_tokens: int,
        stages: int = 1,
    ) -> None:
        """Checks the arguments as the other functions do, without scheduling."""
    @staticmethod
    def schedule(
        tokens: NDArray[int64],
        cost: NDArray[int64],
        ranks: int,
        microbatches: int,
        max_tokens: int,
        objective: str,
        stages: int = 1,
        refined: bool = True,
        place_all: bool = True,
    ) -> tuple[NDArray[int32], NDArray[int32], int, int]:
        """Slot and rank of each sample, the bound, and how many samples were not placed."""
    @staticmethod
    def bound(
        tokens: NDArray[int64],
        cost: NDArray[int64],
        ranks: int,
        microbatches: int,
        max_tokens: int,
        objective: str,
        stages: int = 1,
        thorough: bool = True,
    ) -> int:
        """Lower bound of an objective, for any schedule under the cap."""
    @staticmethod
    def search_bins(tokens: NDArray[int64], bins: int, max_tokens: int) -> tuple[bool, int]:
        """Whether a search proved that the samples do not fit, and its number of tries."""
    @staticmethod
    def longest_first(
        tokens: NDArray[int64], cost: NDArray[int64], bins: int, max_tokens: int
    ) -> NDArray[int32]:
        """Bin of each sample, costliest first into the cheapest bin with room."""
    @staticmethod
    def best_fit(
        tokens: NDArray[int64], max_tokens: int, order: NDArray[int64] | None = None
    ) -> NDArray[int32]:
        """Bin of each sample, each into the fullest bin with room or a new one."""
    @staticmethod
    def balance_two(
        tokens: NDArray[int64],
        cost: NDArray[int64],
        encoder_cost: NDArray[int64],
        bins: int,
        max_tokens: int,
        rounds: int = 0,
        work: int = 0,
    ) -> NDArray[int32]:
        """Bin of each sample, by a heuristic for the largest load of either module in any bin."""

# Only if cuda_built is true. flowtrain_core.cuda is the public interface.

class CudaDevice:
    """Properties of a device, read without making a context on it."""

    @property
    def ordinal(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def uuid(self) -> str:
        """`GPU-...` or `MIG-...`; the same in every process."""

    @property
    def pci_bus_id(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, such as (9, 0)."""

    @property
    def mig(self) -> bool:
        """Whether it is a MIG slice of a device."""

    @property
    def host_register(self) -> bool:
        """Whether host memory can be registered."""

    @property
    def host_pointers(self) -> bool:
        """Whether registered memory has the same address on the device."""

    @property
    def vmm(self) -> bool:
        """Whether it supports virtual memory management."""

    @property
    def posix_fd(self) -> bool:
        """Whether its memory can be exported as a POSIX descriptor."""

    @property
    def fabric(self) -> bool:
        """Whether its memory can be exported as a fabric handle."""

    @property
    def vmm_rdma(self) -> bool:
        """Whether a network card can read and write exported memory (GPUDirect RDMA)."""

    @property
    def stream_words(self) -> bool:
        """Whether a stream can write and wait for a 64-bit word."""

    @property
    def numa_node(self) -> int:
        """Nearest NUMA node of the host; -1 if unknown."""

class CudaHostRegistration:
    """Page-locked host memory that devices can read and write, until it is closed.

    Close it after the last copy and before the memory is freed.
    """

    def __init__(self, address: int, nbytes: int, *, device: int) -> None:
        """Locks the pages.

        Raises:
            CudaError: The memory is already registered, or the limit of locked pages is reached.
        """

    @property
    def device_address(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

def cuda_why_not() -> str:
    """Why no device can be used, and what to do; empty if one can."""

def cuda_driver_version() -> int:
    """Driver version, such as 13000; 0 without a driver."""

def cuda_devices() -> list[CudaDevice]: ...
def cuda_copy_to_device(target: int, source: int, nbytes: int, *, device: int, stream: int) -> None:
    """Enqueues a copy from host memory; keep both sides alive until the copy is done."""

def cuda_copy_to_host(target: int, source: int, nbytes: int, *, device: int, stream: int) -> None:
    """Enqueues a copy to host memory; keep both sides alive until the copy is done."""

def cuda_copy_on_device(target: int, source: int, nbytes: int, *, device: int, stream: int) -> None:
    """Enqueues a copy; keep both sides alive until the copy is done."""

def cuda_synchronize(*, device: int, stream: int) -> None:
    """Waits until all work enqueued on the stream is done."""

def cuda_register_host(pool: Pool, *, device: int) -> int:
    """Registers every segment that this handle has mapped or will map. Call it once per handle.

    A registration ends when the handle closes and no view of the segment is alive.

    Returns:
        Bytes of the segments mapped so far.

    Raises:
        CudaError: A segment cannot be registered.
    """

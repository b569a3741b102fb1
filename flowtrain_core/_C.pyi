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
    """Base of every error that the core raises."""

class CudaError(FlowTrainError, RuntimeError):
    """A call of the CUDA driver failed; the message has the call, its object and the result."""

class PoolClosed(FlowTrainError, ValueError):
    """A handle, lease or item was used after its end, or in a forked child."""

class PoolCorrupt(FlowTrainError, RuntimeError):
    """What another process wrote cannot be: a control file of another version, or damaged."""

class PoolExists(FlowTrainError, FileExistsError):
    """A pool of this name is in use."""

class PoolFull(FlowTrainError, RuntimeError):
    """A producer that does not wait had no slab or credit; the message says who holds them."""

class PoolNotFound(FlowTrainError, FileNotFoundError):
    """There is no pool of this name, or nobody of it lives."""

class PoolSpace(FlowTrainError, MemoryError):
    """Shared memory, lanes, cells or segments do not suffice; the message has the numbers."""

class PoolTimeout(FlowTrainError, TimeoutError):
    """A deadline passed; the message says what was waited for, and who holds the space."""

class StaleAddress(FlowTrainError, LookupError):
    """An address outlived its segment."""

class SystemCallError(FlowTrainError, OSError):
    """A system call failed; the message says what was done to what."""

class ViewsAlive(FlowTrainError, BufferError):
    """An item was to be released while tensors, arrays or memoryviews over it live."""

class LaneInfo:
    """A participant, as it was when asked."""

    @property
    def index(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def role(self) -> Literal["pool", "producer", "consumer"]: ...
    @property
    def pid(self) -> int: ...
    @property
    def state(self) -> Literal["alive", "left", "dead"]: ...

class PoolEntry:
    """A pool of this user, by its folder."""

    @property
    def name(self) -> str: ...
    @property
    def creator_pid(self) -> int: ...
    @property
    def alive(self) -> bool:
        """Whether some process has it open."""

class _SegmentStats(TypedDict):
    id: int
    owner: str
    bytes: int
    slabs: int
    in_use_slabs: int
    in_use_bytes: int

class _PoolStats(TypedDict):
    segments: list[_SegmentStats]
    items_published: int
    bytes_published: int
    items_taken: int
    items_released: int
    redelivered: int
    lost: int

class Pool:
    """One process's handle of a pool of shared memory."""

    @staticmethod
    def create(
        name: str,
        *,
        bytes: int = 0,
        classes: Sequence[tuple[int, int]] | None = None,
        rings: Sequence[str] = ("default",),
        max_cells: int = 4096,
        max_lanes: int = 128,
        label: str = "",
        prefault: bool = True,
    ) -> Pool:
        """Makes a pool; closing this handle removes its name.

        Args:
            name: Letters, digits, `.`, `_` and `-`; at most 47.
            bytes: Size of a first segment, cut into slabs as they are asked for: in full for items
                of one kind, while a mix of sizes is better served by classes.
            classes: Or the sizes of its slabs, as (slab_bytes, count).
            rings: Names of the rings; more cannot be added.
            max_cells: Most slabs over all segments.
            max_lanes: Most pool handles, producers and consumers at a time.
            label: What this process is called in messages, at most 47 bytes.
            prefault: Touch every page of the segment now.

        Raises:
            PoolExists: A living process has a pool of this name; what a crash left is replaced.
            PoolSpace: Too little memory.
            PoolTimeout: Another process has been making or removing a pool for ten seconds.
            ValueError: A name or number is out of its range.
        """

    @staticmethod
    def open(name: str, *, label: str = "", timeout_s: float = 0.0) -> Pool:
        """Opens a pool, waiting for it to appear.

        Maps its memory, so that what others publish can be read after their death. An owner that
        does not answer within 0.1 s, since it is stopped, is left to be asked again later.

        Raises:
            PoolNotFound: There is none of which anybody lives within timeout_s.
        """

    @staticmethod
    def exists(name: str) -> bool:
        """Whether a pool of this name can be opened."""

    @staticmethod
    def unlink(name: str, *, only_left: bool = False) -> bool:
        """Removes a pool's name, as after its creator's death; false if there was none.

        Args:
            name: Of the pool.
            only_left: Leave it, and return false, where somebody has it open or is making it.

        Raises:
            PoolTimeout: Another process has been making or removing a pool for ten seconds.
        """

    def add_segment(
        self,
        *,
        bytes: int | None = None,
        classes: Sequence[tuple[int, int]] | None = None,
        prefault: bool = True,
    ) -> int:
        """Adds memory that this handle owns: it is gone for new readers when the handle closes.

        Returns:
            Number of the segment, for `Producer(segment=)`.

        Raises:
            PoolSpace: Too little memory, all 64 segments are taken, or max_cells does not suffice.
            PoolTimeout: Another handle has been cutting slabs or adding a segment for ten seconds.
        """

    def drop_segment(self, segment: int) -> None:
        """Gives up a segment that this handle added.

        Nothing more is leased from it; what was published stays, and the memory goes when the
        last slab in use is released.

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
        """Participants; those that left or died stay until their lane is reused."""

    def wait_dead(self, timeout_s: float) -> LaneInfo | None:
        """The next pool handle whose process died since this one opened; None on timeout."""

    def stats(self) -> _PoolStats:
        """Use of each segment now, and counters of the whole pool that never fall."""

    def lost(self) -> int:
        """Items dropped because their memory died with its owner before it was mapped."""

    def close(self) -> None:
        """Leaves the pool and its memory; items and leases that live keep theirs."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Lease:
    """A slab being written: `numpy.asarray(lease)` or `torch.from_dlpack(lease)`.

    Published once, or given back by `abort`, or when it is dropped.
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

    def publish(self, key: int) -> None:
        """Hands the slab to the ring's consumers; 0 <= key < 2**128.

        Raises:
            PoolClosed: It was published or aborted already.
            ViewsAlive: Another thread is in `write`.
        """

    def write(self, source: Buffer | NDArray[Any]) -> None:
        """Copies a C-contiguous buffer into the slab, byte for byte, whatever its dtype.

        From 16 MiB on it writes past the caches, which is faster than `memcpy`; other Python
        threads run meanwhile.

        Raises:
            ValueError: It has not as many bytes as the lease.
            BufferError: It is not contiguous.
            PoolClosed: The lease was published or aborted already, or this is a forked child.
        """

    def abort(self) -> None:
        """Gives the slab back unpublished.

        Raises:
            ViewsAlive: Another thread is in `write`.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """What numpy asks for where the buffer protocol fails.

        Raises:
            PoolClosed: It was given away or released, or this is a forked child.
            BufferError: The dtype is bfloat16, which numpy has not; use torch.from_dlpack.
        """

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Item:
    """A published slab being read, read-only: `numpy.asarray(item)`, `torch.from_dlpack(item)`.

    Released once, or when it and its views are gone. Torch has no read-only tensors: what is
    written to one changes the item for whoever reads it next.
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
        """Deliveries before this one, to consumers that died."""

    @property
    def producer(self) -> str:
        """Label of the process that published it."""

    def release(self) -> None:
        """Gives the slab back.

        Raises:
            ViewsAlive: Tensors, arrays or memoryviews over it live.
            PoolClosed: It was released already, or this is a forked child.
            PoolCorrupt: Its slab was taken away by who may not; it is not given back.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Releases it, if that was not done.

        Where the body raised while views live, its error goes on instead, and the slab is given
        back once the item and its views are gone. In a forked child, too, its error goes on.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """What numpy asks for where the buffer protocol fails.

        Raises:
            PoolClosed: It was given away or released, or this is a forked child.
            BufferError: The dtype is bfloat16, which numpy has not; use torch.from_dlpack.
        """

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A read-only capsule of DLPack 1.0.

        Raises:
            BufferError: max_version is below (1, 0), where read-only cannot be said.
        """

    def __dlpack_device__(self) -> tuple[int, int]: ...

class Producer:
    """Puts items into one ring."""

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
            segment: Lease from this segment only, or from these in order of preference: a lease
                for which the first has no slab *spills* into the next, and is counted. Without
                any, from all there are, the handle's own ones first.
            max_bytes: Most bytes in flight: leased, published, and not yet released.
            max_items: Most items in flight.
            when_full: Without a slab or credit, wait until the deadline, or raise PoolFull.
            strict: Raise PoolFull where a lease would spill.

        Raises:
            PoolSpace: All lanes are taken.
            ValueError: A number is out of its range, or the pool has no such ring.
        """

    def explain(self, *, measure: bool = False) -> Explanation:
        """What path this edge takes, which it does not and why, its limits and what it does.

        Args:
            measure: Copy 32 MiB of memory to say what could be expected; takes milliseconds.
        """

    def lease(self, shape: Sequence[int], dtype: object, timeout_s: float | None = None) -> Lease:
        """A slab for an item, waiting for space and credit.

        Args:
            shape: At most four dimensions, each below 2**32.
            dtype: A name like "bfloat16", or a numpy or torch dtype.
            timeout_s: Seconds to wait; 60 if None.

        Raises:
            PoolTimeout: Neither came free; the message says who holds the space.
            PoolFull: Neither is free, with when_full="fail"; or it would spill, with strict=True.
            PoolSpace: There is no memory, or it went during the wait: dropped, or its owner gone.
            ValueError: It can never fit, or the dtype or shape is none.
        """

    def publish_many(self, leases: Sequence[Lease], keys: Sequence[int]) -> None:
        """Publishes leases of this producer in the order given; where one may not be, none.

        Slabs that follow one another, as those leased one after another mostly do, go through
        the ring together, which is what makes a batch cheap.

        Raises:
            PoolClosed: One was published or aborted already.
            ValueError: One is another producer's, or there is not one key for each.
        """

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Consumer:
    """Takes items out of one ring."""

    def __init__(self, pool: Pool, ring: str = "default", *, strict: bool = False) -> None:
        """Joins the pool.

        Args:
            pool: Pool to join.
            ring: Ring to take from.
            strict: Raise StaleAddress for an item whose memory died with its owner before this
                process had mapped it; else it is counted as lost and passed over.
        """

    def explain(self, *, measure: bool = False) -> Explanation:
        """What path this edge takes, and which it does not and why; see Producer.explain."""

    def get(self, timeout_s: float | None = None) -> Item:
        """The next item, waiting for it; 60 seconds if None.

        An item in memory whose owner lives and has not handed it over yet, since it is stopped, is
        passed over and goes to the end of the ring.

        Raises:
            PoolTimeout: Nothing arrived, or only such items; the message names their owner.
            PoolCorrupt: What arrived is not an item of this pool; the next call takes the next.
        """

    def try_get(self) -> Item | None:
        """The next item, or None if there is none now in memory that this process has mapped."""

    def get_many(self, max_items: int, timeout_s: float | None = None) -> list[Item]:
        """The next items, at least one and at most max_items; waits for the first alone.

        Raises:
            PoolTimeout: Nothing arrived.
            ValueError: max_items is less than 1.
        """

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

def list_pools() -> list[PoolEntry]:
    """Every pool of this user on this machine."""

def inspect(name: str) -> PoolSnapshot:
    """Looks at a pool from outside, also after the death of all its processes.

    Times are of the clock that `time.perf_counter_ns` reads. `alloc_wait` and `transfer` are a
    producer's (asking for a slab to having it, having it to publishing), `queue_wait` and `use` a
    consumer's (publishing to taking, taking to giving back). Of items that follow each other in
    less than 4 us one in 1,024 is in the histograms; counters are of all items.

    Raises:
        PoolNotFound: There is no such pool.
        PoolCorrupt: It was made by another version.
    """

def flight_record(name: str) -> list[FlightEvent]:
    """The last 1,024 events of every lane of a pool, oldest first, also after a crash.

    Of items that follow each other in less than 4 us they are those of one in 1,024.

    Raises:
        PoolNotFound: There is no such pool.
        PoolCorrupt: It was made by another version.
    """

class packing:  # noqa: N801
    """Kernels of schedulers, on NumPy arrays; a submodule. `flowtrain_core.packing` wraps them.

    Tokens and costs are int64 of shape [num_samples]; what is placed nowhere has slot and rank -1.
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
        token_cap: int,
        stages: int = 1,
    ) -> None:
        """Raises what the others would, without the work."""
    @staticmethod
    def schedule(
        tokens: NDArray[int64],
        cost: NDArray[int64],
        ranks: int,
        microbatches: int,
        token_cap: int,
        objective: str,
        stages: int = 1,
        refined: bool = True,
        closed: bool = True,
    ) -> tuple[NDArray[int32], NDArray[int32], int, int]:
        """Slot and rank of each sample, the bound, and how many samples were not placed."""
    @staticmethod
    def bound(
        tokens: NDArray[int64],
        cost: NDArray[int64],
        ranks: int,
        microbatches: int,
        token_cap: int,
        objective: str,
        stages: int = 1,
        thorough: bool = True,
    ) -> int:
        """At most what any schedule under the cap reaches of an objective."""
    @staticmethod
    def search_bins(tokens: NDArray[int64], bins: int, token_cap: int) -> tuple[bool, int]:
        """Whether a search proved that no bins hold all samples, and how many tries it took."""
    @staticmethod
    def longest_first(
        tokens: NDArray[int64], cost: NDArray[int64], bins: int, token_cap: int
    ) -> NDArray[int32]:
        """Bin of each sample, costliest first into the cheapest bin with room."""
    @staticmethod
    def best_fit(
        tokens: NDArray[int64], token_cap: int, order: NDArray[int64] | None = None
    ) -> NDArray[int32]:
        """Bin of each sample, each into the fullest bin with room or a new one."""
    @staticmethod
    def balance_two(
        tokens: NDArray[int64],
        cost: NDArray[int64],
        encoder_cost: NDArray[int64],
        bins: int,
        token_cap: int,
        rounds: int = 0,
        work: int = 0,
    ) -> NDArray[int32]:
        """Bin of each sample such that the larger load of either module is small."""

# What follows is there where cuda_built is true; flowtrain_core.cuda is its face.

class CudaDevice:
    """What is known of a device without making a context on it."""

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
        """Whether it is a slice of a device."""

    @property
    def host_register(self) -> bool:
        """Whether host memory can be registered."""

    @property
    def host_pointers(self) -> bool:
        """Whether registered memory has the same address on the device."""

    @property
    def vmm(self) -> bool:
        """Whether memory can be had apart from addresses."""

    @property
    def posix_fd(self) -> bool:
        """Whether its memory can be exported as a descriptor."""

    @property
    def fabric(self) -> bool:
        """Or as a fabric handle."""

    @property
    def vmm_rdma(self) -> bool:
        """Whether a network card can read and write such memory."""

    @property
    def stream_words(self) -> bool:
        """Whether a stream can write and wait for a 64-bit word."""

    @property
    def numa_node(self) -> int:
        """Host memory nearest to it; -1 where that is unknown."""

class CudaHostRegistration:
    """Host memory that devices read and write by themselves, as long as this is open.

    Close it before the memory is given back, and after the last copy.
    """

    def __init__(self, address: int, nbytes: int, *, device: int) -> None:
        """Locks the pages.

        Raises:
            CudaError: The memory is registered already, or no more pages may be locked.
        """

    @property
    def device_address(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class CudaSegment:
    """Device memory that other processes map, by virtual memory management."""

    def __init__(self, nbytes: int, *, device: int) -> None:
        """Makes a segment of at least nbytes, rounded up to the device's granularity.

        Raises:
            CudaError: The device cannot export memory, or has not so much left.
            ValueError: It never had so much.
        """

    @staticmethod
    def receive(path: str, nbytes: int, *, device: int) -> CudaSegment:
        """Maps the segment that another process of this user serves; nbytes as its maker has it."""

    def serve(self, path: str) -> None:
        """Hands a descriptor of the memory to whoever asks at the Unix socket `path`."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def rdma(self) -> bool:
        """Whether it was made to be read and written by a network card."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Unmaps it; no copy may be under way, and no tensor over it be used again."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class CudaIpcSegment:
    """Device memory shared by the older way; its maker must close it last."""

    def __init__(self, nbytes: int, *, device: int) -> None: ...
    @staticmethod
    def open(handle: bytes, nbytes: int, *, device: int) -> CudaIpcSegment:
        """Maps a segment of another process.

        Raises:
            CudaError: It is this process's own, or a slice of a device.
        """

    def handle(self) -> bytes:
        """What another process opens it by: plain data."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class CudaWord:
    """A growing 64-bit word that streams and processors of several processes write and await.

    Poisoning it sets every waiter free, also the streams.
    """

    LARGEST: int
    POISON: int

    def __init__(self, *, device: int | None = None) -> None:
        """A new word, zero; without a device only processors can use it."""

    @staticmethod
    def receive(path: str, *, device: int | None = None) -> CudaWord:
        """The word that another process of this user serves."""

    def serve(self, path: str) -> None: ...
    def write_on(self, stream: int, value: int) -> None:
        """Enqueues a write by the stream, after all that it did before."""

    def store_on(self, stream: int, value: int) -> None:
        """The same by a kernel of one thread."""

    def wait_on(self, stream: int, value: int) -> None:
        """What comes after this in the stream starts when the word is at value or above."""

    def load(self) -> int: ...
    def store(self, value: int) -> None: ...
    def poison(self) -> None: ...
    def wait(self, value: int, *, timeout_s: float) -> int | None:
        """Spins until the word is at value or above; the word then, None when time ran out.

        Raises:
            PoolClosed: It was closed, by another thread too.
        """

    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

def cuda_why_not() -> str:
    """Why no device can be used, with the way out; empty where one can."""

def cuda_driver_version() -> int:
    """Such as 13000; 0 where there is no driver."""

def cuda_devices() -> list[CudaDevice]: ...
def cuda_copy_to_device(target: int, source: int, nbytes: int, *, device: int, stream: int) -> None:
    """Enqueues a copy of host memory; both sides must live until the stream has passed it."""

def cuda_copy_to_host(target: int, source: int, nbytes: int, *, device: int, stream: int) -> None:
    """Enqueues a copy to host memory; both sides must live until the stream has passed it."""

def cuda_copy_on_device(target: int, source: int, nbytes: int, *, device: int, stream: int) -> None:
    """Enqueues a copy; both sides must live until the stream has passed it."""

def cuda_synchronize(*, device: int, stream: int) -> None:
    """Waits until the stream has done all that was enqueued before."""

def cuda_register_host(pool: Pool, *, device: int) -> int:
    """Registers every segment that this handle has mapped or will map; done once a handle.

    Each registration ends with the handle's close, or where views live, with the last of them.

    Returns:
        Bytes of the segments mapped so far.

    Raises:
        CudaError: A segment cannot be registered.
    """

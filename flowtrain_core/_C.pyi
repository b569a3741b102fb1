"""The compiled core. Every wait releases the GIL and has a deadline."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict

from flowtrain_core.snapshots import FlightEvent, PoolSnapshot

__version__: str
with_cuda: bool

class FlowTrainError(Exception):
    """Base of every error that the core raises."""

class PoolClosed(FlowTrainError, ValueError):
    """A handle, lease or item was used after its end, or in a forked child."""

class PoolCorrupt(FlowTrainError, RuntimeError):
    """A control file is damaged, or of another version."""

class PoolExists(FlowTrainError, FileExistsError):
    """A pool of this name is in use."""

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
            ValueError: A name or number is out of its range.
        """

    @staticmethod
    def open(name: str, *, label: str = "", timeout_s: float = 0.0) -> Pool:
        """Opens a pool, waiting for it to appear.

        Raises:
            PoolNotFound: There is none of which anybody lives within timeout_s.
        """

    @staticmethod
    def exists(name: str) -> bool:
        """Whether a pool of this name can be opened."""

    @staticmethod
    def unlink(name: str) -> bool:
        """Removes a pool's name, as after its creator's death; false if there was none."""

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
            PoolSpace: Too little memory, or max_cells does not suffice.
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
        """Leaves the pool; items and leases that live stay readable."""

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
        """Global address: generation (8 bits), segment (16), offset (40)."""

    def publish(self, key: int) -> None:
        """Hands the slab to the ring's consumers; 0 <= key < 2**128.

        Raises:
            PoolClosed: It was published or aborted already.
        """

    def abort(self) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
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

    Released once, or when it and its views are gone.
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
            PoolClosed: It was released already.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Producer:
    """Puts items into one ring."""

    def __init__(
        self,
        pool: Pool,
        ring: str = "default",
        *,
        segment: int | None = None,
        max_bytes: int | None = None,
        max_items: int | None = None,
    ) -> None:
        """Joins the pool.

        Args:
            pool: Pool to join.
            ring: Ring to publish to.
            segment: Lease from this segment only; else from the handle's own ones first.
            max_bytes: Most bytes in flight: leased, published, and not yet released.
            max_items: Most items in flight.
        """

    def lease(self, shape: Sequence[int], dtype: object, timeout_s: float | None = None) -> Lease:
        """A slab for an item, waiting for space and credit.

        Args:
            shape: At most four dimensions, each below 2**32.
            dtype: A name like "bfloat16", or a numpy or torch dtype.
            timeout_s: Seconds to wait; 60 if None.

        Raises:
            PoolTimeout: Neither came free; the message says who holds the space.
            PoolSpace: There is no memory at all.
            ValueError: It can never fit, or the dtype or shape is none.
        """

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Consumer:
    """Takes items out of one ring."""

    def __init__(self, pool: Pool, ring: str = "default") -> None: ...
    def get(self, timeout_s: float | None = None) -> Item:
        """The next item, waiting for it; 60 seconds if None.

        Raises:
            PoolTimeout: Nothing arrived.
        """

    def try_get(self) -> Item | None:
        """The next item, or None if there is none now."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

def list_pools() -> list[PoolEntry]:
    """Every pool of this user on this machine."""

def inspect(name: str) -> PoolSnapshot:
    """Looks at a pool from outside, also after the death of all its processes.

    Times are of the clock that `time.perf_counter_ns` reads. `alloc_wait` and `transfer` are a
    producer's (asking for a slab to having it, having it to publishing), `queue_wait` and `use` a
    consumer's (publishing to taking, taking to giving back).

    Raises:
        PoolNotFound: There is no such pool.
        PoolCorrupt: It was made by another version.
    """

def flight_record(name: str) -> list[FlightEvent]:
    """The last 1,024 events of every lane of a pool, oldest first, also after a crash.

    Raises:
        PoolNotFound: There is no such pool.
        PoolCorrupt: It was made by another version.
    """

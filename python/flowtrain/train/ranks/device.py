"""A rank's device, and copies between its memory and the pool.

Copies run on the stream that the rank computes on: they are enqueued behind what they read and
before what reads them, so no stream waits for another. What the other side may learn only when a
copy is complete (a lease is published, an item given back) waits for an event in a thread of its
own, so that the rank goes on enqueuing. A copy engine of its own would gain the length of the
copies, microseconds beside the milliseconds of an item, and would need each tensor's memory held
across streams.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from flowtrain_core import Item, Lease, Pool, cuda


class DeviceError(RuntimeError):
    """A device that the configuration asks for cannot be used; the message says why."""


def choose_device(kind: str, rank: int, *, first: int) -> torch.device:
    """The device of a rank: by local rank, modulo the devices there are.

    Args:
        kind: `cpu` or `cuda`.
        rank: Rank in its world, taken where LOCAL_RANK does not say.
        first: Devices that the other world's ranks on this host take before this one's.

    Raises:
        DeviceError: There is no CUDA device that torch can use.
    """
    if kind != "cuda":
        return torch.device(kind)
    if not torch.cuda.is_available():
        raise DeviceError(
            "model.device=cuda: torch sees no CUDA device; `flowtrain doctor` says why, and "
            "model.device=cpu does without"
        )
    index = (first + int(os.environ.get("LOCAL_RANK", rank))) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    # A model in float32 is computed in float32: torch would round inputs of convolutions alone.
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", index)


def register(pool: Pool, device: torch.device) -> str:
    """Let a device copy from and to the pool by itself, where it is one that can.

    Args:
        pool: This rank's handle; segments that it maps later are registered as well.
        device: Device of this rank.

    Returns:
        What is worth a line in the log; empty where there is nothing to say.
    """
    if device.type != "cuda":
        return ""
    if reason := cuda.why_not():
        return f"pool: not registered with {device}, copies are staged by the driver: {reason}"
    held = cuda.register_host(pool, device=device.index)
    return f"pool: registered with {device}, {held} bytes so far"


class Copies:
    """Copies between tensors and slabs of the pool, and what follows when they are complete.

    Args:
        name: Name of the thread, seen in stack traces.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()

    def publish(self, rows: torch.Tensor, lease: Lease, key: int) -> None:
        """Fill a lease, and publish it once it is whole.

        Args:
            rows: On any device, of the lease's shape and dtype.
            lease: Slab to fill.
            key: Key of the item.
        """
        view = torch.from_dlpack(lease)
        if not rows.is_cuda:
            view.copy_(rows)
            lease.publish(key)
            return
        view.copy_(rows, non_blocking=True)
        # The rows are kept as well: their memory may be used again only after the copy.
        self._when_complete(rows.device, [rows, view], lambda: lease.publish(key))

    def release(self, item: Item, out: torch.Tensor) -> None:
        """Copy an item, and give it back once it is read.

        Args:
            item: Slab to read.
            out: Filled; on any device, of the item's shape and dtype.
        """
        view = torch.from_dlpack(item)
        if not out.is_cuda:
            out.copy_(view)
            del view
            item.release()
            return
        out.copy_(view, non_blocking=True)
        kept = [view]
        del view
        self._when_complete(out.device, kept, item.release)

    def drain(self) -> None:
        """Wait until everything has been published and given back."""
        while self._pending:
            self._pending.popleft().result()

    def _when_complete(
        self, device: torch.device, kept: list[torch.Tensor], then: Callable[[], None]
    ) -> None:
        event = torch.cuda.Event(blocking=True)  # Its waiter sleeps and takes no core.
        event.record(torch.cuda.current_stream(device))

        def finish() -> None:
            event.synchronize()
            kept.clear()  # An item is given back only when nothing views it.
            then()

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self._pending.append(self._thread.submit(finish))
        # What went wrong in the thread is the rank's error.
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

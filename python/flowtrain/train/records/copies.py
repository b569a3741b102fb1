"""Copies between tensors and slabs of the pool.

A copy runs on the stream on which the rank computes, so that it is ordered with the kernels around
it. In memory of a device the slab is published or released on that stream, and the stream of the
other side waits. In memory of the host the other side may learn of a copy only when it is complete:
a separate thread waits for a CUDA event before it publishes a lease or releases an item, and the
rank enqueues further work meanwhile. A separate copy stream would save microseconds of copies
beside the milliseconds of an item, and would have to keep the memory of each tensor alive across
streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from flowtrain_core import Item, Lease


class Copies:
    """Copies tensors to and from slabs, and publishes or releases the slab afterwards.

    Args:
        name: Name of the thread that waits for copies, seen in stack traces.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()
        # Items of devices whose copies may not be complete, and an event after the last one of each
        # device.
        self._unconfirmed: list[Item] = []
        self._events: dict[torch.device, torch.cuda.Event] = {}

    def publish(self, rows: torch.Tensor, lease: Lease, key: int) -> None:
        """Copy rows into a lease and publish it.

        Args:
            rows: Tensor on any device, with the shape and dtype of the lease.
            lease: Slab to fill.
            key: Key of the item.
        """
        view = torch.from_dlpack(lease)
        if view.is_cuda:
            view.copy_(rows)
            del view
            lease.publish(key)
            return
        if not rows.is_cuda:
            view.copy_(rows)
            del view
            lease.publish(key)
            return
        view.copy_(rows, non_blocking=True)
        # The rows are kept too: their memory must not be reused before the copy is complete.
        kept = [rows, view]
        del view
        self._when_complete(rows.device, kept, lambda: lease.publish(key))

    def release(self, item: Item, out: torch.Tensor) -> None:
        """Copy an item into a tensor and release it.

        Args:
            item: Slab to read.
            out: Tensor to fill, on any device and of any dtype, with the shape of the item.
        """
        view = torch.from_dlpack(item)
        if view.is_cuda:
            # Between two devices the copy runs on the stream of the one that is read.
            out.copy_(view)
            self._events[view.device] = event = torch.cuda.Event(blocking=True)
            event.record(torch.cuda.current_stream(view.device))
            del view
            item.release()
            self._unconfirmed.append(item)
            return
        if not out.is_cuda:
            out.copy_(view)
            del view
            item.release()
            return
        out.copy_(view, non_blocking=True)
        kept = [view]
        del view
        self._when_complete(out.device, kept, item.release)

    def confirm(self) -> None:
        """Wait for the copies of items in memory of devices, and check that these were written.

        Raises:
            StaleAddress: The process that sent an item died before.
        """
        for event in self._events.values():
            event.synchronize()
        self._events.clear()
        while self._unconfirmed:
            self._unconfirmed.pop().confirm()

    def drain(self) -> None:
        """Wait until all leases are published, and all items released and confirmed."""
        while self._pending:
            self._pending.popleft().result()
        self.confirm()

    def _when_complete(
        self, device: torch.device, kept: list[torch.Tensor], then: Callable[[], None]
    ) -> None:
        event = torch.cuda.Event(blocking=True)  # The waiting thread sleeps.
        event.record(torch.cuda.current_stream(device))

        def finish() -> None:
            event.synchronize()
            kept.clear()  # A slab can be published or released only when no tensor views it.
            then()

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self._pending.append(self._thread.submit(finish))
        # Raise errors of the thread in the rank.
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

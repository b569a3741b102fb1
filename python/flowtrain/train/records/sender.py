"""Sender of records."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from flowtrain.config.pool import Tier
from flowtrain.steps import Space, step_name
from flowtrain.train.control.activity import Activity
from flowtrain.train.records.copies import Copies
from flowtrain.train.records.key import RecordKey
from flowtrain.train.records.loopback import Loopback
from flowtrain_core import Pool, PoolTimeout, Producer
from flowtrain_core.edges import Explanation


class RecordSender:
    """Writes records into this rank's segment and pushes them to the inboxes of their readers.

    Args:
        pool: This rank's handle of the pool.
        readers: Module of the ranks that read; the inbox of number r is the ring `<readers>.<r>`.
        num_readers: Number of these ranks.
        space: How records are split into slabs.
        dtype: Dtype of the rows in the pool. All are cast to it, also those that this rank reads
            itself, so that numbers do not depend on the layout.
        activity: Told of waits for a free slab.
        loopback: Takes the records that this rank reads itself, in a colocated run.
        tier: Memory of this rank's segment, as of `Pool.add_segment`.
        device: Number of the device of such memory.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        readers: str,
        num_readers: int,
        space: Space,
        dtype: torch.dtype,
        activity: Activity,
        loopback: Loopback | None = None,
        tier: Tier = "host",
        device: int = 0,
    ) -> None:
        self._pool = pool
        self._readers = readers
        self._num_readers = num_readers
        self._space = space
        self._tier: Tier = tier
        self._device = device
        self._dtype = dtype
        self._activity = activity
        self._loopback = loopback
        self._producers: dict[int, Producer] = {}
        self._segment: int | None = None
        self._copies = Copies(f"{pool.label} sends")
        self.slabs = 0
        self.sent_bytes = 0

    @property
    def free_slabs(self) -> int:
        """Slabs that this rank can lease at once: nobody else leases from its segment."""
        for segment in self._pool.stats()["segments"]:
            if segment["id"] == self._segment:
                return self.slabs - segment["in_use_slabs"]
        return 0

    def reserve(self, slabs: int) -> None:
        """Write further records into a new segment.

        Records in the old segment stay readable until their readers release them; its memory is
        freed with the last of them.

        Args:
            slabs: Number of slabs of the segment; with the present number nothing changes.
        """
        if slabs == self.slabs:
            return
        for producer in self._producers.values():
            producer.close()
        if self._segment is not None:
            self._pool.drop_segment(self._segment)
        self._segment = self._pool.add_segment(
            classes=[(self._space.slab_bytes, slabs)], tier=self._tier, device=self._device
        )
        self._producers = {
            r: Producer(self._pool, ring=f"{self._readers}.{r}", segment=self._segment)
            for r in range(self._num_readers)
            if self._loopback is None or r != self._loopback.replica
        }
        self.slabs = slabs

    def send(
        self,
        rows: torch.Tensor,
        *,
        reader: int,
        step: int,
        item: int,
        version: int,
        skipped: bool = False,
        hits: int = 0,
    ) -> None:
        """Publish a record.

        Args:
            rows: Shape [num_tokens, row width], of any dtype.
            reader: Number of the rank that reads it.
            step: Step of the record.
            item: Number of the item within the step.
            version: Step whose weights computed the rows.
            skipped: Whether an image of the item was replaced by zeros.
            hits: Images of the item whose rows were in a cache.
        """
        rows = rows.to(self._dtype)
        self._activity.events.count(rows.numel() * rows.element_size())
        if self._loopback is not None and reader == self._loopback.replica:
            self._loopback.put(RecordKey(step, item, 0, version, skipped, hits), rows)
            return
        key = RecordKey(step, item, 0, version, skipped, hits)
        self._send(rows, self._producers[reader], reader, key)

    def _send(self, rows: torch.Tensor, producer: Producer, reader: int, first: RecordKey) -> None:
        for part, chunk in enumerate(rows.split(self._space.slab_rows)):
            lease = self._activity.wait(
                f"a free slab, of {self.slabs} of {self._space.slab_bytes} bytes, for "
                f"{step_name(first.step)}, item {first.item}, part {part} to "
                f"{self._readers}.{reader}",
                partial(producer.lease, tuple(chunk.shape), self._dtype),
                PoolTimeout,
                "slab",
            )
            self._copies.publish(chunk, lease, replace(first, part=part).pack())
            self.sent_bytes += chunk.numel() * chunk.element_size()

    def edges(self) -> list[Explanation]:
        """Current state of the edge to each reader."""
        return [producer.explain() for producer in self._producers.values()]

    def drain(self) -> None:
        """Wait until all sent records are published."""
        self._copies.drain()

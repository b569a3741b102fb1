"""Records through the pool: rows of a tensor cut into slabs, sent, gathered and given back."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from flowtrain.plan import Space
from flowtrain.train.control.heartbeat import UNLIMITED_S, Activity
from flowtrain.train.ranks.device import Copies
from flowtrain_core import Consumer, Item, Pool, Producer
from flowtrain_core.edges import Explanation


@dataclass(frozen=True, slots=True)
class RecordKey:
    """Identity of one slab of a record, whoever produced it.

    Packed into the 128-bit key of a descriptor: step 32, item 24, part 24, version 32,
    skipped 1. `version` is the number of steps that the weights behind it have seen;
    `skipped` says that an image of the item could not be read.
    """

    step: int
    item: int
    part: int
    version: int
    skipped: bool = False

    def pack(self) -> int:
        key = self.step << 24 | self.item
        key = key << 24 | self.part
        key = key << 32 | self.version
        return key << 1 | self.skipped

    @staticmethod
    def unpack(key: int) -> RecordKey:
        return RecordKey(
            step=key >> 81,
            item=key >> 57 & 0xFFFFFF,
            part=key >> 33 & 0xFFFFFF,
            version=key >> 1 & 0xFFFFFFFF,
            skipped=bool(key & 1),
        )


class RecordSender:
    """Writes records into this rank's own segment and pushes them to the readers' inboxes.

    Args:
        pool: This rank's handle.
        readers: Name of the world that reads: inbox r is the ring `<readers>.<r>`.
        num_readers: Ranks of that world.
        space: How records become slabs.
        dtype: Dtype of the rows.
        activity: Told of waits for a free slab.
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
    ) -> None:
        self._pool = pool
        self._readers = readers
        self._num_readers = num_readers
        self._space = space
        self._dtype = dtype
        self._activity = activity
        self._producers: list[Producer] = []
        self._segment: int | None = None
        self._copies = Copies(f"{pool.label} sends")
        self.slabs = 0
        self.wait_s = 0.0
        self.sent_bytes = 0

    def reserve(self, slabs: int) -> None:
        """Make a segment of so many slabs the one that records are written to.

        Records in an earlier segment stay readable until their readers give them back; its
        memory goes with the last of them.
        """
        for producer in self._producers:
            producer.close()
        if self._segment is not None:
            self._pool.drop_segment(self._segment)
        self._segment = self._pool.add_segment(classes=[(self._space.slab_bytes, slabs)])
        self._producers = [
            Producer(self._pool, ring=f"{self._readers}.{r}", segment=self._segment)
            for r in range(self._num_readers)
        ]
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
    ) -> None:
        """Publish a record.

        Args:
            rows: Rows of the record, shape [num_tokens, row width].
            reader: Rank of the reading world.
            step: Step of the record.
            item: Number of the item within the step.
            version: Steps that the weights behind the rows have seen.
            skipped: Whether an image of the item was replaced by zeros.
        """
        producer = self._producers[reader]
        for part, chunk in enumerate(rows.split(self._space.slab_rows)):
            started = time.perf_counter()
            with self._activity.waiting(
                f"a free slab, of {self.slabs} of {self._space.slab_bytes} bytes, for step {step}, "
                f"item {item}, part {part} to {self._readers}.{reader}"
            ):
                lease = producer.lease(tuple(chunk.shape), self._dtype, timeout_s=UNLIMITED_S)
            self.wait_s += time.perf_counter() - started
            key = RecordKey(step, item, part, version, skipped)
            self._copies.publish(chunk, lease, key.pack())
            self.sent_bytes += chunk.numel() * chunk.element_size()

    def edges(self) -> list[Explanation]:
        """The edge to each reader, as it is now."""
        return [producer.explain() for producer in self._producers]

    def drain(self) -> None:
        """Wait until every record that was sent is published."""
        self._copies.drain()


class RecordReceiver:
    """Takes records out of this rank's inbox in the order in which it wants them.

    Slabs that arrive before they are wanted stay in the pool, so that what is not yet read
    keeps holding the producers back.

    Args:
        pool: This rank's handle.
        inbox: Name of this rank's ring.
        space: How records become slabs.
        activity: Told of waits for a record.
    """

    def __init__(self, pool: Pool, *, inbox: str, space: Space, activity: Activity) -> None:
        self._consumer = Consumer(pool, ring=inbox)
        self.inbox = inbox
        self._space = space
        self._activity = activity
        self._early: dict[tuple[int, int, int], tuple[RecordKey, Item]] = {}
        self._copies = Copies(f"{pool.label} receives")
        self.wait_s = 0.0

    def gather(self, out: torch.Tensor, *, step: int, item: int) -> RecordKey:
        """Copy one record into `out` and give its slabs back, each once it is read.

        On a CUDA device the copies are enqueued on the current stream, like a kernel.

        Args:
            out: Rows to fill, shape [num_tokens, row width].
            step: Step of the record.
            item: Number of the item within the step.

        Returns:
            The key of its last slab, for version and skip mark.
        """
        for part, chunk in enumerate(out.split(self._space.slab_rows)):
            key, arrived = self._wait_for(step, item, part)
            if arrived.shape != tuple(chunk.shape):
                raise ValueError(
                    f"record (step {step}, item {item}, part {part}) in {self.inbox}: shape "
                    f"{arrived.shape} where the plan has {tuple(chunk.shape)}; both worlds "
                    "must run the same version and configuration"
                )
            self._copies.release(arrived, chunk)
        return key

    def edges(self) -> list[Explanation]:
        """The edge to this rank, as it is now."""
        return [self._consumer.explain()]

    def drain(self) -> None:
        """Wait until every record that was gathered is given back."""
        self._copies.drain()

    def _wait_for(self, step: int, item: int, part: int) -> tuple[RecordKey, Item]:
        wanted = (step, item, part)
        started = time.perf_counter()
        while wanted not in self._early:
            with self._activity.waiting(
                f"step {step}, item {item}, part {part} to arrive in {self.inbox}"
            ):
                arrived = self._consumer.get(timeout_s=UNLIMITED_S)
            key = RecordKey.unpack(arrived.key)
            if (key.step, key.item, key.part) in self._early:
                arrived.release()  # Redelivery of a record that is already here.
            else:
                self._early[key.step, key.item, key.part] = (key, arrived)
        self.wait_s += time.perf_counter() - started
        return self._early.pop(wanted)

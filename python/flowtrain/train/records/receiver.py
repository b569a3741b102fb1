"""Receiver of records."""

from __future__ import annotations

import torch

from flowtrain.steps import Space, step_name
from flowtrain.train.control.activity import Activity
from flowtrain.train.records.copies import Copies
from flowtrain.train.records.key import RecordKey
from flowtrain.train.records.loopback import Loopback
from flowtrain_core import Consumer, Item, Pool, PoolTimeout
from flowtrain_core.edges import Explanation


class RecordReceiver:
    """Receives records from this rank's inbox, in any order.

    Slabs that arrive before they are asked for stay in the pool, so that unread records limit how
    far the producers run ahead.

    Args:
        pool: This rank's handle of the pool.
        inbox: Name of this rank's ring.
        space: How records are split into slabs.
        activity: Told of waits for a record.
        loopback: Has the records that this rank sends to itself, in a colocated run.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        inbox: str,
        space: Space,
        activity: Activity,
        loopback: Loopback | None = None,
    ) -> None:
        self._consumer = Consumer(pool, ring=inbox)
        self.inbox = inbox
        self._space = space
        self._activity = activity
        self._loopback = loopback
        self._early: dict[tuple[int, int, int], tuple[RecordKey, Item]] = {}
        self._copies = Copies(f"{pool.label} receives")

    def gather(self, out: torch.Tensor, *, step: int, item: int) -> RecordKey:
        """Copy one record into `out`, cast to its dtype, and release its slabs once they are read.

        On a CUDA device the copies are enqueued on the current stream, as kernels are.

        Args:
            out: Rows to fill, shape [num_tokens, row width].
            step: Step of the record.
            item: Number of the item within the step.

        Returns:
            Key of its last slab; it has the version and whether an image was skipped.
        """
        self._activity.events.count(out.shape[0] * self._space.row_bytes)
        if self._loopback is not None and (own := self._loopback.take(step, item)) is not None:
            key, rows = own
            out.copy_(rows)
            return key
        return self._receive(out, step, item)

    def _receive(self, out: torch.Tensor, step: int, item: int) -> RecordKey:
        for part, chunk in enumerate(out.split(self._space.slab_rows)):
            key, arrived = self._wait_for(step, item, part)
            if arrived.shape != tuple(chunk.shape):
                raise ValueError(
                    f"record ({step_name(step)}, item {item}, part {part}) in {self.inbox}: shape "
                    f"{arrived.shape} where the plan has {tuple(chunk.shape)}; both worlds "
                    "must run the same version and configuration"
                )
            self._copies.release(arrived, chunk)
        return key

    def edges(self) -> list[Explanation]:
        """Current state of the edge to this rank."""
        return [self._consumer.explain()]

    def drain(self) -> None:
        """Wait until all gathered records are released."""
        self._copies.drain()

    def _wait_for(self, step: int, item: int, part: int) -> tuple[RecordKey, Item]:
        wanted = (step, item, part)
        while wanted not in self._early:
            arrived = self._activity.wait(
                f"{step_name(step)}, item {item}, part {part} to arrive in {self.inbox}",
                self._consumer.get,
                PoolTimeout,
                "record",
            )
            key = RecordKey.unpack(arrived.key)
            if (key.step, key.item, key.part) in self._early:
                arrived.release()  # A second delivery of a slab that is here already.
            else:
                self._early[key.step, key.item, key.part] = (key, arrived)
        return self._early.pop(wanted)

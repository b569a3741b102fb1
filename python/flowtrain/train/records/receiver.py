"""Receiver of records."""

from __future__ import annotations

from functools import partial

import torch

from flowtrain.steps import FIRST_EVALUATION, Space, step_name
from flowtrain.train.control.activity import Activity
from flowtrain.train.control.board import Board
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
        board: Of a run whose encoder ranks come and go: has the items whose records are not
            readable, as the process that had them is gone.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        inbox: str,
        space: Space,
        activity: Activity,
        loopback: Loopback | None = None,
        board: Board | None = None,
    ) -> None:
        # A record whose memory is lost is made again.
        self._consumer = Consumer(pool, ring=inbox, strict=board is None)
        self.inbox = inbox
        self._space = space
        self._activity = activity
        self._loopback = loopback
        self._board = board
        self._early: dict[tuple[int, int, int], tuple[RecordKey, Item]] = {}
        # The step that is read and its slabs that were, of training and of evaluations.
        self._reading: dict[bool, int] = {}
        self._read: dict[bool, set[tuple[int, int]]] = {}
        self._copies = Copies(f"{pool.label} receives")

    def gather(self, out: torch.Tensor, *, step: int, item: int) -> RecordKey | None:
        """Copy one record into `out`, cast to its dtype, and release its slabs once they are read.

        On a CUDA device the copies are enqueued on the current stream, as kernels are.

        Args:
            out: Rows to fill, shape [num_tokens, row width].
            step: Step of the record.
            item: Number of the item within the step.

        Returns:
            Key of its last slab; it has the version and whether an image was skipped. None if no
            encoder rank is there to make the record: the rows are zeros then.
        """
        self._activity.events.count(out.shape[0] * self._space.row_bytes)
        if self._loopback is not None and (own := self._loopback.take(step, item)) is not None:
            key, rows = own
            out.copy_(rows)
            return key
        return self._receive(out, step, item)

    def _receive(self, out: torch.Tensor, step: int, item: int) -> RecordKey | None:
        self._begin(step)
        for part, chunk in enumerate(out.split(self._space.slab_rows)):
            found = self._wait_for(step, item, part)
            if found is None:
                out.zero_()
                return None
            key, arrived = found
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

    def confirm(self) -> None:
        """Check that what was gathered so far is the data, once the copies are complete.

        Raises:
            StaleAddress: The sender of a record in memory of a device died before it was written.
        """
        self._copies.confirm()

    def drain(self) -> None:
        """Wait until all gathered records are released, and check them."""
        self._copies.drain()

    def _begin(self, step: int) -> None:
        """Begin to read a step; what comes of earlier ones from now on is a repetition."""
        kind = step < FIRST_EVALUATION
        if self._reading.get(kind) != step:
            self._reading[kind], self._read[kind] = step, set()

    def _wait_for(self, step: int, item: int, part: int) -> tuple[RecordKey, Item] | None:
        """Wait for a slab; None if the job has given up waiting for such."""
        wanted = (step, item, part)
        while wanted not in self._early:
            arrived = self._activity.wait(
                f"{step_name(step)}, item {item}, part {part} to arrive in {self.inbox}",
                partial(self._next, wanted),
                PoolTimeout,
                "record",
            )
            if arrived is not None:
                self._keep(arrived)
            elif self._activity.given_up and wanted not in self._early:
                return None
        self._read[step < FIRST_EVALUATION].add((item, part))
        return self._early.pop(wanted)

    def _next(self, wanted: tuple[int, int, int], timeout_s: float) -> Item | None:
        """The next slab; None if the awaited one may be here, or will not come.

        Raises:
            PoolTimeout: None has come.
        """
        try:
            return self._consumer.get(timeout_s)
        except PoolTimeout:
            if self._board is None:
                raise
            step, item, _ = wanted
            gone = self._board.gone_publisher(step, item)
            if gone is None and not self._activity.given_up:
                raise
        # Nothing comes after this of a process that is dead.
        while (arrived := self._consumer.try_get()) is not None:
            self._keep(arrived)
        if gone is not None and wanted not in self._early:
            self._board.reissue(step, item, gone)
        return None

    def _keep(self, arrived: Item) -> None:
        """Keep a slab until it is asked for, unless it is a repetition."""
        key = RecordKey.unpack(arrived.key)
        kind, slab = key.step < FIRST_EVALUATION, (key.step, key.item, key.part)
        reading = self._reading.get(kind, key.step)
        is_read = key.step < reading or (
            key.step == reading and (key.item, key.part) in self._read.get(kind, ())
        )
        if is_read or slab in self._early:
            arrived.release()
        else:
            self._early[slab] = (key, arrived)

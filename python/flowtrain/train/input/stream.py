"""The order of a stream, which one process of the planner's rank reads into a spool."""

from __future__ import annotations

from flowtrain.data.calls import Call
from flowtrain.data.order import DrawOrder
from flowtrain.train.input.reads import SampleReads

# Records that are read ahead of the planner, if the run needs them; for larger batches, so many
# batches.
_AHEAD_RECORDS = 512
_AHEAD_BATCHES = 4
# A stream without an end has no epoch that could be dropped as a whole.
_MAX_DROPPED = 1 << 20


class StreamOrder(DrawOrder):
    """Sample numbers of a stream, each returned once its record is in the spool.

    A sample number counts the records of the stream over all epochs.

    Args:
        reads: Reads of the `StreamReader`.
        batch: Samples of a step.
        cursor: Number of samples that earlier steps have drawn.
    """

    def __init__(self, reads: SampleReads, *, batch: int, cursor: int = 0) -> None:
        self._reads = reads
        self._ahead = max(_AHEAD_RECORDS, _AHEAD_BATCHES * batch)
        # An earlier start has read these records. The reader refuses if they are gone.
        self._spooled = cursor
        self._end = cursor
        self._longest = 0
        self._pending: Call | None = None

    @property
    def num_samples(self) -> int:
        return self._longest or _MAX_DROPPED

    @property
    def draws_of_all(self) -> int:
        # Wherever they start, these contain a whole epoch.
        return 2 * self._longest or _MAX_DROPPED

    def expect(self, end: int) -> None:
        self._end = max(self._end, end)

    def is_ready(self, cursor: int) -> bool:
        pending = self._pending
        # An error of a read ahead is raised when its record is needed.
        if pending is not None and pending.done() and not pending.exception():
            self._wait(pending)
        return cursor < self._spooled

    def index(self, cursor: int) -> int:
        """Number of the sample that is drawn after `cursor` others; waits for its record.

        Raises:
            DataError: The stream raises an error or has changed, a record cannot be used, or no
                record has come within `flow.timeout_s`.
        """
        while not self.is_ready(cursor):
            self._wait(self._pending or self._request(cursor))
        # Ahead, by half of the records at once: each request waits for the disk.
        if self._pending is None and self._spooled < min(self._end, cursor + self._ahead // 2):
            self._request(cursor)
        return cursor

    def _request(self, cursor: int) -> Call:
        """Have records read from the first that is not in the spool yet."""
        end = max(cursor + 1, min(cursor + self._ahead, self._end))
        self._pending = self._reads.submit("read_until", self._spooled, end)
        return self._pending

    def _wait(self, read: Call) -> None:
        self._spooled, self._longest = self._reads.result(read)
        self._pending = None

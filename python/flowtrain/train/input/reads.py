"""Reads of samples by the readers of a rank."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from flowtrain.data.errors import DataError
from flowtrain.data.workers import ReaderPool
from flowtrain.train.control.deadline import period_of, periods_in


@dataclass(frozen=True, slots=True)
class SampleRead:
    """One read of a sample of a data set: a call of a reader's method."""

    data: str
    method: str
    sample: int
    arguments: tuple[Any, ...]
    future: Future[Any]

    def __str__(self) -> str:
        call = " ".join(map(str, (self.method, *self.arguments)))
        return f"{self.data}: sample {self.sample}: {call}"


class SampleReads:
    """Submits reads to the readers of a rank, and waits for them.

    Slow readers are waited for as long as they finish one read after another. If no read of the
    rank has finished for `timeout_s`, a slow read cannot be told from one that hangs, and the rank
    fails. The timeout begins when the first reader has started.

    Args:
        readers: The readers.
        data: Name of the data set, used in messages.
        timeout_s: Timeout for the readers to finish any read.
        attribute: Attribute of each reader that reads this data set; by default the reader itself.
    """

    def __init__(
        self, readers: ReaderPool, data: str, *, timeout_s: float, attribute: str = ""
    ) -> None:
        self._readers = readers
        self._data = data
        self._prefix = attribute and f"{attribute}."
        self._timeout_s = timeout_s
        self._period_s = period_of(timeout_s)
        self._pending: dict[Future[Any], SampleRead] = {}

    def submit(self, method: str, sample: int, *arguments: Any) -> SampleRead:
        """Call `reader.method(sample, *arguments)` in the background."""
        return self.submit_all([(method, (sample, *arguments))])[0]

    def submit_all(self, calls: Iterable[tuple[str, tuple[Any, ...]]]) -> list[SampleRead]:
        """`submit` for each (method, arguments), the first of which is the sample."""
        calls = list(calls)
        futures = self._readers.submit_all(
            [(self._prefix + method, arguments) for method, arguments in calls]
        )
        reads = []
        for future, (method, (sample, *arguments)) in zip(futures, calls, strict=True):
            read = SampleRead(self._data, method, sample, tuple(arguments), future)
            self._pending[future] = read
            future.add_done_callback(self._done)
            reads.append(read)
        return reads

    def result(self, read: SampleRead) -> Any:
        """Wait for a read and return its result.

        Raises:
            DataError: The sample cannot be read, its reader died, or no read has finished for
                `timeout_s`. The message names the data set, and the line or number of the sample.
        """
        if not read.future.done():
            self._wait_for(read)
        try:
            return read.future.result()
        except DataError:
            raise
        except Exception as error:  # It does not name the sample, such as a reader's death.
            raise DataError(f"{read}: {type(error).__name__}: {error}") from error

    def _wait_for(self, read: SampleRead) -> None:
        finished, periods = self._readers.finished, 0
        while not wait([read.future], timeout=self._period_s).done:
            if self._readers.finished != finished or not self._readers.started:
                finished, periods = self._readers.finished, 0
                continue
            periods += 1
            if periods >= periods_in(self._timeout_s, self._period_s):
                # This read may be queued behind the one that hangs.
                stuck = [str(r) for r in list(self._pending.values()) if r.future.running()]
                raise DataError(
                    f"{', '.join(stuck) or read}: being read for more than flow.timeout_s="
                    f"{self._timeout_s:g} s, in which no other read of this rank has finished; "
                    "check the storage, or raise flow.timeout_s"
                )

    def _done(self, future: Future[Any]) -> None:
        self._pending.pop(future, None)

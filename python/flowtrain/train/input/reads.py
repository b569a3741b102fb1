"""Reads of samples by the workers of a rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowtrain.data.calls import Call
from flowtrain.data.errors import DataError
from flowtrain.data.workers import WorkerPool
from flowtrain.error_texts import reason_of
from flowtrain.train.control.deadline import period_of, periods_in


class SampleReads:
    """Submits reads to the workers of a rank, and waits for them.

    A read is a call of a method whose first argument is the number of a sample. Slow workers are
    waited for as long as they finish one read after another. If no read of the rank has finished
    for `timeout_s`, a slow read cannot be told from one that hangs, and the rank fails. The timeout
    begins when the first worker has started.

    Args:
        workers: The workers.
        data: Name of the data set, used in messages.
        timeout_s: Timeout for the workers to finish any read.
        attribute: Attribute of each reader that reads this data set; by default the reader itself.
    """

    def __init__(
        self, workers: WorkerPool, data: str, *, timeout_s: float, attribute: str = ""
    ) -> None:
        self._workers = workers
        self._data = data
        self._prefix = attribute and f"{attribute}."
        self._timeout_s = timeout_s
        self._period_s = period_of(timeout_s)

    def submit(self, method: str, sample: int, *arguments: Any) -> Call:
        """Call `reader.method(sample, *arguments)` in the background."""
        return self.submit_all([(method, (sample, *arguments))])[0]

    def submit_all(self, calls: Iterable[tuple[str, tuple[Any, ...]]]) -> list[Call]:
        """`submit` for each (method, arguments)."""
        return self._workers.submit_all(
            [(self._prefix + method, arguments) for method, arguments in calls]
        )

    def result(self, read: Call) -> Any:
        """Wait for a read and return its result.

        Raises:
            DataError: The sample cannot be read, its worker died, or no read has finished for
                `timeout_s`. The message names the data set, and the line or number of the sample.
        """
        if not read.done():
            self._wait_for(read)
        try:
            return read.result()
        except DataError:
            raise
        except Exception as error:  # It does not name the sample, such as a worker's death.
            raise DataError(f"{self._name(read)}: {reason_of(error)}") from error

    def _wait_for(self, read: Call) -> None:
        finished, periods = self._workers.finished, 0
        while not read.wait(self._period_s):
            if self._workers.finished != finished or not self._workers.started:
                finished, periods = self._workers.finished, 0
                continue
            periods += 1
            if periods >= periods_in(self._timeout_s, self._period_s):
                # This read may be queued behind the one that hangs.
                stuck = ", ".join(self._name(r) for r in self._workers.running() if self._is_own(r))
                raise DataError(
                    f"{stuck or self._name(read)}: being read for more than flow.timeout_s="
                    f"{self._timeout_s:g} s, in which no other read of this rank has finished; "
                    "check the storage, or raise flow.timeout_s"
                )

    def _is_own(self, read: Call) -> bool:
        prefix, dot, _ = read.method.rpartition(".")
        return prefix + dot == self._prefix

    def _name(self, read: Call) -> str:
        sample, *arguments = read.arguments
        call = " ".join(map(str, (read.method.removeprefix(self._prefix), *arguments)))
        return f"{self._data}: sample {sample}: {call}"

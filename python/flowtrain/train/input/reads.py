"""Requests to a rank's readers, and waits for their results."""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowtrain.data.errors import DataError
from flowtrain.data.workers import ReaderPool
from flowtrain.train.control.heartbeat import period_of, periods_in


@dataclass(frozen=True, slots=True)
class Read:
    """One request, and what it is for."""

    what: str
    future: Future[Any]


class Reads:
    """What a rank has asked its readers for.

    Readers that finish one request after another are slow, and are waited for. If no request of
    the rank has finished for `deadline_s`, a slow read cannot be told from one that hangs, and the
    rank ends. Time is counted in periods, so that a job that was stopped as a whole can go on, and
    from the start of a reader on: a process that imports its libraries is no read that hangs.

    Args:
        reader: The readers.
        data: File of the samples, for messages.
        deadline_s: Timeout for the readers to finish any request.
    """

    def __init__(self, reader: ReaderPool, data: Path, *, deadline_s: float) -> None:
        self._reader = reader
        self._data = data
        self._deadline_s = deadline_s
        self._period_s = period_of(deadline_s)
        self._pending: dict[Future[Any], Read] = {}
        self._finished = 0

    def submit(self, method: str, sample: int, *arguments: Any) -> Read:
        """Ask for `reader.method(sample, *arguments)`."""
        which = " ".join(map(str, (method, *arguments)))
        future = self._reader.submit(method, sample, *arguments)
        read = Read(f"{self._data}: sample {sample}: {which}", future)
        self._pending[future] = read
        future.add_done_callback(self._done)
        return read

    def result(self, read: Read) -> Any:
        """Wait for a request.

        Raises:
            DataError: The sample cannot be read, its reader died, or no request has finished for
                `deadline_s`; the message names the file and its line or the number of the sample.
        """
        finished, periods = self._finished, 0
        while not wait([read.future], timeout=self._period_s).done:
            if self._finished != finished or not self._reader.started:
                finished, periods = self._finished, 0
                continue
            periods += 1
            if periods >= periods_in(self._deadline_s, self._period_s):
                # Others may be in front of this one.
                stuck = [r.what for r in list(self._pending.values()) if r.future.running()]
                raise DataError(
                    f"{', '.join(stuck) or read.what}: being read for more than flow.deadline_s="
                    f"{self._deadline_s:g} s, in which no other read of this rank has finished; "
                    "check the storage, or raise flow.deadline_s"
                )
        try:
            return read.future.result()
        except DataError:
            raise
        except Exception as error:  # It does not know the sample: the reader's process died, say.
            raise DataError(f"{read.what}: {type(error).__name__}: {error}") from error

    def _done(self, future: Future[Any]) -> None:
        self._finished += 1
        self._pending.pop(future, None)

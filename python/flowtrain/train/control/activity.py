"""Whether a rank works or waits for a peer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from flowtrain.events import EventLog, Wait
from flowtrain.train.control.ending import JobFailed

_T = TypeVar("_T")

# A wait notices so often that the job has failed.
_PERIOD_S = 0.5


class Activity:
    """Activity of the threads of one rank: work, or waiting for a peer.

    The thread that creates this object works from then on, other threads within `working`. A rank
    waits when none of its threads works.

    Attributes:
        events: What the thread that creates this object does.
        failure: Why the job has failed; None if it has not.
        given_up: Why the job is to be saved and to end without further records; None if it goes on.
    """

    def __init__(self) -> None:
        self.events = EventLog()
        self._lock = threading.Lock()
        self._working = 1
        self._changes = 0
        self._awaited = ""
        self.failure: str | None = None
        self.given_up: str | None = None

    def fail(self, reason: str, *, is_stuck: bool = False) -> None:
        """An `Ending`: `check` raises from now on, and with it `wait`, also one that has begun."""
        self.failure = self.failure or reason

    def check(self) -> None:
        """Raise if the job has failed.

        Raises:
            JobFailed: `fail` was called.
        """
        if self.failure is not None:
            raise JobFailed(self.failure)

    def wait(
        self,
        awaited: str,
        call: Callable[[float], _T],
        timeout: type[Exception],
        reason: Wait,
    ) -> _T:
        """Wait for a peer, for as long as the job has not failed.

        Args:
            awaited: What the calling thread waits for, used in messages.
            call: Waits for so many seconds, and returns the result.
            timeout: What it raises if that was too short.
            reason: What the thread waits for, in events.

        Raises:
            JobFailed: The job has failed, before or meanwhile.
        """
        with self.waiting(awaited, reason):
            while True:
                self.check()
                with suppress(timeout):
                    return call(_PERIOD_S)

    @contextmanager
    def waiting(self, awaited: str, reason: Wait = "store") -> Iterator[None]:
        """Within the block, the calling thread waits for a peer.

        Args:
            awaited: What it waits for, used in messages.
            reason: What it waits for, in events.
        """
        with self._lock:
            self._working -= 1
            self._changes += 1
            self._awaited = awaited
        try:
            with self.events.waiting(reason):
                yield
        finally:
            with self._lock:
                self._working += 1

    @contextmanager
    def working(self) -> Iterator[None]:
        """Within the block, the calling thread works. Not for the thread that created this."""
        with self._lock:
            self._working += 1
            self._changes += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1

    def now(self) -> tuple[int, str | None]:
        """Number of changes so far, and what the rank waits for; None if it works."""
        with self._lock:
            return self._changes, None if self._working else self._awaited

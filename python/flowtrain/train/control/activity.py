"""Whether a rank works or waits for a peer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flowtrain.events import EventLog, Wait


class Activity:
    """Activity of the threads of one rank: work, or waiting for a peer.

    The thread that creates this object works from then on, other threads within `working`. A rank
    waits when none of its threads works.

    Attributes:
        events: What the thread that creates this object does.
    """

    def __init__(self) -> None:
        self.events = EventLog()
        self._lock = threading.Lock()
        self._working = 1
        self._changes = 0
        self._awaited = ""

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

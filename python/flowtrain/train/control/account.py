"""Time of a rank, by kind of activity."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_WAIT = "wait_"

WORK = ("encode", "backbone", "optimizer")
"""Kinds of work that a plain loop has, too."""
_ACTIVE = (
    *WORK,
    "reduce",
    "send",
    "receive",
    "read",
    "plan",
    "close",
    "log",
    "checkpoint",
    "other",
)
KINDS = (*_ACTIVE, *(_WAIT + kind for kind in _ACTIVE))
"""Kinds of activity.

`encode`: forward and backward of the encoder. `backbone`: forward and backward of the backbone.
`optimizer`: norms, clipping and optimizer steps. `reduce`: sums of gradients. `send`, `receive`:
records through the pool. `read`: samples that are not read yet. `plan`: taking plans. `close`:
exchange of reports. `log`, `checkpoint`. `other`: the rest. `wait_` and one of these: waits for
another rank in it, for example `wait_send` for a free slab, `wait_receive` for a record,
`wait_close` for the slower ranks of the step.
"""


class Account:
    """Divides the time of the thread that creates it among the kinds of its activity.

    The kinds sum to the time since `restart`. Calls in other threads change nothing.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.restart()

    def restart(self) -> None:
        """Forget all time so far."""
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._cpu_seconds = dict.fromkeys(KINDS, 0.0)
        self._kind = "other"
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    @contextmanager
    def doing(self, kind: str) -> Iterator[None]:
        """Within the block, the thread does this; blocks may be nested."""
        if threading.get_ident() != self._thread:
            yield
            return
        before = self._kind
        self._switch(kind)
        try:
            yield
        finally:
            self._switch(before)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within the block, the thread waits for another process, in what it does now."""
        kind = self._kind
        with self.doing(kind if kind.startswith(_WAIT) else _WAIT + kind):
            yield

    def seconds(self) -> dict[str, float]:
        """Seconds of each kind so far."""
        self._switch(self._kind)
        return dict(self._seconds)

    def spent(self, kind: str) -> float:
        """Seconds of one kind so far."""
        self._switch(self._kind)
        return self._seconds[kind]

    def cpu_seconds(self) -> dict[str, float]:
        """Seconds of each kind so far in which the thread ran on a core."""
        self._switch(self._kind)
        return dict(self._cpu_seconds)

    def _switch(self, kind: str) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        self._seconds[self._kind] += wall - self._wall
        self._cpu_seconds[self._kind] += cpu - self._cpu
        self._kind, self._wall, self._cpu = kind, wall, cpu


def busy(seconds: Mapping[str, float]) -> float:
    """Share of the time in which a rank did what a plain loop does, too."""
    total = sum(seconds.values())
    return sum(seconds.get(kind, 0.0) for kind in WORK) / total if total else 0.0

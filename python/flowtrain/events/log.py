"""The events of a rank as they happen, and its time by kind of activity."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns

from flowtrain.events.codes import (
    ACTIVITIES,
    ACTIVITY_OF,
    KINDS,
    MODULES,
    TRACKS,
    WAITS,
    EventKind,
    Track,
    Wait,
)
from flowtrain.events.file import EventFile
from flowtrain.schedule import Action

MIN_WAIT_NS = 10_000
"""A shorter wait is no event, and counts as work."""
# The clock of a thread's CPU time is slow to read: a reading holds for this long.
_CPU_NS = 20_000

_KIND = {kind: code for code, kind in enumerate(KINDS)}
_WAIT = {wait: code for code, wait in enumerate(WAITS)}
_TRACK = {track: code for code, track in enumerate(TRACKS)}
_MODULE = {module: code for code, module in enumerate(MODULES)}
_ON_ACTIONS, _ON_WAITS = _TRACK["actions"], _TRACK["waits"]

# Places in the list of an open span.
_START, _CPU, _INNER, _INNER_CPU, _BYTES, _STEP, _INDEX, _PEER, _OF_KIND, _OF_MODULE, _OF_WAIT = (
    range(11)
)


class EventLog:
    """Records what the thread that creates it does, by spans that nest.

    Its seconds by kind of activity are sums of these spans; they sum to the time within the
    outermost ones. Spans in other threads record nothing; `add` records what they did.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._open: list[list[int]] = []
        self._file: EventFile | None = None
        self._cpu = self._cpu_at = 0
        self._spent: list[list[int]] = []
        self.restart()

    def attach(self, file: EventFile) -> None:
        """Write all further events to a file."""
        self._file = file

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def begin(
        self,
        kind: int,
        module: int = 0,
        step: int = -1,
        index: int = -1,
        peer: int = -1,
        wait: int = 0,
    ) -> None:
        """Begin a span; the thread that created this log ends it by `end`."""
        start = perf_counter_ns()
        if start - self._cpu_at > _CPU_NS:
            self._cpu, self._cpu_at = thread_time_ns(), start
        self._open.append([start, self._cpu, 0, 0, 0, step, index, peer, kind, module, wait])

    def end(self, last: bool = False) -> None:
        """End the innermost span."""
        span = self._open.pop()
        start, cpu_start, inner, inner_cpu, size, step, index, peer, kind, module, wait = span
        end = perf_counter_ns()
        whole = end - start
        if wait and whole < MIN_WAIT_NS:
            return
        self._cpu, self._cpu_at = thread_time_ns(), end
        cpu = self._cpu - cpu_start
        if self._open:
            parent = self._open[-1]
            parent[_INNER] += whole
            parent[_INNER_CPU] += cpu
        own = whole - inner
        self._spent[kind][wait != 0] += own
        if self._file is not None:
            self._file.append(
                start, end, own, cpu - inner_cpu, size, step, index, peer, self._file.attempt,
                _ON_WAITS if wait else _ON_ACTIONS, kind, module, wait, last,
            )  # fmt: skip

    def begin_action(self, action: Action) -> None:
        """Begin the span of an action."""
        index, peer, module = action.index, action.peer, action.module
        self.begin(
            _KIND[action.kind],
            0 if module is None else _MODULE[module],
            action.step,
            -1 if index is None else index,
            -1 if peer is None else peer,
        )

    @contextmanager
    def span(self, kind: EventKind, step: int = -1) -> Iterator[None]:
        """Within the block, the thread does this."""
        if threading.get_ident() != self._thread:
            yield
            return
        if step < 0 and self._open:
            step = self._open[-1][_STEP]
        self.begin(_KIND[kind], step=step)
        try:
            yield
        finally:
            self.end()

    @contextmanager
    def waiting(self, reason: Wait) -> Iterator[None]:
        """Within the block, the thread waits for another process, in what it does now."""
        if threading.get_ident() != self._thread or not self._open:
            yield
            return
        now = self._open[-1]
        self.begin(
            now[_OF_KIND], now[_OF_MODULE], now[_STEP], now[_INDEX], now[_PEER], _WAIT[reason]
        )
        try:
            yield
        finally:
            self.end()

    def count(self, size: int) -> None:
        """Add bytes to what the thread does now."""
        if self._open:
            self._open[-1][_BYTES] += size

    def add(
        self,
        track: Track,
        kind: EventKind,
        start_ns: int,
        end_ns: int,
        *,
        cpu_ns: int = 0,
        size: int = 0,
        step: int = -1,
        index: int = -1,
    ) -> None:
        """Record what another thread has done, or the memory of the rank, by its bytes."""
        file = self._file  # Its thread may close it meanwhile.
        if file is not None:
            file.append(
                start_ns, end_ns, end_ns - start_ns, cpu_ns, size, step, index, -1,
                file.attempt, _TRACK[track], _KIND[kind], 0, 0, 0,
            )  # fmt: skip

    def step_ended(self) -> None:
        """Tell the end of a step, so that old events are dropped."""
        if self._file is not None:
            self._file.step_ended(perf_counter_ns())

    def restart(self) -> None:
        """Forget the time so far; called outside of all spans."""
        assert not self._open
        self._spent = [[0, 0] for _ in KINDS]

    def seconds(self) -> dict[str, float]:
        """Seconds of each kind of activity so far, with those of spans that have not ended."""
        spent = dict.fromkeys(ACTIVITIES, 0)
        for (work, waits), activity in zip(self._spent, ACTIVITY_OF, strict=True):
            spent[activity[0]] += work
            spent[activity[1]] += waits
        inner, now = 0, perf_counter_ns()
        for span in reversed(self._open):
            whole = now - span[_START]
            spent[ACTIVITY_OF[span[_OF_KIND]][span[_OF_WAIT] != 0]] += whole - span[_INNER] - inner
            inner = whole
        return {activity: ns / 1e9 for activity, ns in spent.items()}

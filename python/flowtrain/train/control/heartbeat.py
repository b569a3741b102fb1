"""Liveness: a wait for a peer ends when the peer is dead or silent, not when it is slow.

A rank beats about once a second from a thread of its own, and says in each beat whether it works
or waits for a peer. It works when its main thread is outside of `Activity.waiting`: in a step that
takes an hour, in a checkpoint, in a first compilation. Every rank reads the beats of all, over the
job's store, and ends the run in two cases:

- A rank's beats stop: its process is stopped, or a call does not give up Python's lock.
- All ranks do nothing but wait, each for the same thing: none of these waits can end.

What this cannot see is a main thread that hangs while it seems to work, for example in a device
call that never returns: the call gives up the lock, so the rank beats on. Dead processes are found
by the pool's locks (`watch.py`). A job whose store is stopped waits until the store goes on.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowtrain.train.control.store import Board

UNLIMITED_S = 86_400.0
"""Timeout of a wait that the heartbeat ends; torch and the pool need a number."""

_PERIOD_S = 1.0
# Beats within a deadline, at least: short deadlines make short periods.
_BEATS = 8
_FAREWELL_S = 3.0


def period_of(limit_s: float) -> float:
    """Seconds of one of the periods that a wait of `limit_s` is counted in.

    However long a process is stopped, one period passes for it.
    """
    return min(_PERIOD_S, limit_s / _BEATS)


def periods_in(limit_s: float, period_s: float) -> int:
    """Number of periods after which a wait of `limit_s` is over."""
    return math.ceil(limit_s / period_s)


class Activity:
    """What the threads of one rank do: work, or wait for a peer.

    The thread that makes this object works from then on, other threads within `working`. A rank
    waits when none of its threads works.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working = 1
        self._changes = 0
        self._awaited = ""

    @contextmanager
    def waiting(self, awaited: str) -> Iterator[None]:
        """Within the block, the calling thread waits for what a peer is to do."""
        with self._lock:
            self._working -= 1
            self._changes += 1
            self._awaited = awaited
        try:
            yield
        finally:
            with self._lock:
                self._working += 1

    @contextmanager
    def working(self) -> Iterator[None]:
        """Within the block, the calling thread works; not for the thread that made this object."""
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


@dataclass(frozen=True, slots=True)
class _Beat:
    number: int
    pid: int
    changes: int
    awaited: str | None


@dataclass(slots=True)
class _Peer:
    beat: _Beat | None = None
    silent: int = 0
    """Periods since a new beat was read."""


class Heartbeat(threading.Thread):
    """Tells the job what this rank does, and decides when waiting has become pointless.

    Time is counted in periods of this thread, so that a job that was stopped as a whole can go on.

    Args:
        activity: What this rank does.
        board: A board of this thread's own.
        label: This rank's name.
        labels: Names of all ranks, this one too.
        deadline_s: Timeout for a rank without a beat, and for a job in which all ranks wait.
        start_deadline_s: Timeout for the first beat of every rank.
    """

    verdict: str | None = None
    """Why this rank must end; None while there is no reason."""

    def __init__(
        self,
        activity: Activity,
        board: Board,
        label: str,
        labels: Sequence[str],
        *,
        deadline_s: float,
        start_deadline_s: float,
    ) -> None:
        super().__init__(name="flowtrain-heartbeat", daemon=True)
        self._activity = activity
        self._board = board
        self._label = label
        self._peers = {each: _Peer() for each in labels}
        self._deadline_s = deadline_s
        self._start_deadline_s = start_deadline_s
        self._period_s = period_of(deadline_s)
        self._waited = 0
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        number = 0
        try:
            while self.verdict is None and not self._stopped.is_set():
                number += 1
                self._board.put(f"beat/{self._label}", [number, os.getpid(), *self._activity.now()])
                self._read()
                self.verdict = self._judge()
                self._stopped.wait(self._period_s)
        except Exception as error:  # If the host died, the watcher names it first.
            if not self._stopped.wait(_FAREWELL_S):
                self.verdict = f"the job's store at {self._board.address} is lost: {error}"

    def _read(self) -> None:
        worked = False
        beats = self._board.read([f"beat/{label}" for label in self._peers])
        for peer, told in zip(self._peers.values(), beats, strict=True):
            beat = _Beat(*told) if told is not None else None
            if beat is None or beat == peer.beat:
                peer.silent += 1
                continue
            if beat.awaited is None or peer.beat is None or beat.changes != peer.beat.changes:
                worked = True
            peer.beat, peer.silent = beat, 0
        waits = not worked and all(peer.beat is not None for peer in self._peers.values())
        self._waited = self._waited + 1 if waits else 0

    def _judge(self) -> str | None:
        absent, silent = [], []
        for label, peer in self._peers.items():
            if peer.beat is None:
                if self._exceeds(peer.silent, self._start_deadline_s):
                    absent.append(label)
            elif self._exceeds(peer.silent, self._deadline_s):
                silent.append(f"{label} (pid {peer.beat.pid}), which {_did(peer.beat)}")
        if absent:
            return (
                f"no sign of {', '.join(absent)} within flow.start_deadline_s="
                f"{self._start_deadline_s:g} s; start every rank, or raise flow.start_deadline_s"
            )
        limit = f"flow.deadline_s={self._deadline_s:g} s"
        if silent:
            return (
                f"no sign of life for {limit} from {'; '.join(silent)}: its process is stopped, "
                "or hangs in a call that holds Python's lock; if such calls take long, raise "
                "flow.deadline_s"
            )
        if self._exceeds(self._waited, self._deadline_s):
            waits = "; ".join(
                f"{label} {_did(peer.beat)}" for label, peer in self._peers.items() if peer.beat
            )
            return (
                f"every rank has waited for another one for {limit}: {waits}; if slabs are "
                "missing, raise pool.bytes or pool.scale"
            )
        return None

    def _exceeds(self, periods: int, limit_s: float) -> bool:
        return periods >= periods_in(limit_s, self._period_s)


def _did(beat: _Beat) -> str:
    return "worked" if beat.awaited is None else f"waited for {beat.awaited}"

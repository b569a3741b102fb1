"""Heartbeats: a wait for a peer ends when the peer is dead or silent, not when it is slow.

Each rank writes a beat to the job's store about once a second, from a thread of its own. The beat
says whether the rank works or waits for a peer. A rank works while its main thread is outside of
`Activity.waiting`: in a step that takes an hour, in a checkpoint, in a first compilation. Every
rank reads the beats of all ranks and ends the run in two cases:

- The beats of a rank stop: its process is stopped, or a call holds Python's lock.
- All ranks wait, each for the same thing all the time: none of these waits can end.

A main thread that hangs in a call which releases Python's lock, such as a device call that never
returns, is not detected: the rank beats on as if it worked. Dead processes are detected by the
pool's locks (`watcher.py`). A job whose store is stopped waits until the store goes on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from flowtrain.train.control.activity import Activity
from flowtrain.train.control.deadline import period_of, periods_in
from flowtrain.train.control.ending import end_of
from flowtrain.train.control.job import ENDED, STOP
from flowtrain.train.control.seats import ENCODERS, NO_ENCODERS
from flowtrain.train.control.store import JobStore

# If the store is lost because its host died, the watcher has this long to name the host.
_STORE_LOST_S = 3.0
# A guest that is silent for longer may be stopped, rather than wait.
_FEW_PERIODS = 2


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
    """Periods since the last new beat."""


class Heartbeat(threading.Thread):
    """Writes this rank's beats, reads those of all ranks, and decides when the run must end.

    Args:
        activity: What this rank does.
        store: Store with a connection that only this thread uses.
        label: This rank's name.
        labels: Names of all ranks, including this one.
        timeout_s: Timeout for a rank without a beat, and for a job in which all ranks wait.
        start_timeout_s: Timeout for the first beat of every rank.
        guests: Whether encoder ranks come and go, besides these ranks. They may fall silent, and
            the process that hosts the job decides when they are gone.
    """

    failure: str | None = None
    """Why this rank must end; None while there is no reason."""
    is_stuck: bool = True
    """Whether ranks live and do not answer, rather than one has ended."""
    asked_by: int = 0
    """Number of a signal that asked this rank to end; the launcher is told to end and save the run.
    Written by a signal handler, which must not use the main thread's connection."""

    def __init__(
        self,
        activity: Activity,
        store: JobStore,
        label: str,
        labels: Sequence[str],
        *,
        timeout_s: float,
        start_timeout_s: float,
        guests: bool = False,
    ) -> None:
        super().__init__(name="flowtrain-heartbeat", daemon=True)
        self._activity = activity
        self._store = store
        self._label = label
        self._peers = {each: _Peer() for each in labels}
        self._guests: dict[str, _Peer] | None = {} if guests else None
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._period_s = period_of(timeout_s)
        self._all_waiting = 0
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        number = 0
        try:
            while self.failure is None and not self._stopped.is_set():
                number += 1
                self._store.put(f"beat/{self._label}", [number, os.getpid(), *self._activity.now()])
                self._read()
                if self.asked_by:
                    self._store.put(STOP, self.asked_by)
                self.failure = self._find_end() or self._find_failure()
                self._stopped.wait(self._period_s)
        except Exception as error:
            if not self._stopped.wait(_STORE_LOST_S):
                self.failure = (
                    f"the connection to the job's store at {self._store.address} failed: {error}"
                )

    def _read(self) -> None:
        worked = self._take_beats(self._peers)
        if self._guests is not None:
            worked |= self._read_guests(self._guests)
        waits = not worked and all(peer.beat is not None for peer in self._peers.values())
        self._all_waiting = self._all_waiting + 1 if waits else 0

    def _read_guests(self, guests: dict[str, _Peer]) -> bool:
        """Read the beats of encoder ranks; return whether others may still wait for them."""
        labels, given_up = self._store.read([ENCODERS, NO_ENCODERS])
        if given_up is not None:
            self._activity.given_up = given_up
        for label in guests.keys() - (labels or ()):
            del guests[label]
        for label in labels or ():
            guests.setdefault(label, _Peer())
        worked = self._take_beats(guests)
        return worked or not guests or any(g.silent > _FEW_PERIODS for g in guests.values())

    def _take_beats(self, peers: dict[str, _Peer]) -> bool:
        """Read the beats of ranks; return whether one of them has worked."""
        worked = False
        beats = self._store.read([f"beat/{label}" for label in peers]) if peers else []
        for peer, value in zip(peers.values(), beats, strict=True):
            beat = _Beat(*value) if value is not None else None
            if beat is None or beat == peer.beat:
                peer.silent += 1
                continue
            if beat.awaited is None or peer.beat is None or beat.changes != peer.beat.changes:
                worked = True
            peer.beat, peer.silent = beat, 0
        return worked

    def _find_end(self) -> str | None:
        """The end of a rank whose process lives on."""
        if not self._store.has(ENDED):
            return None
        label, pid, reason = self._store.get(ENDED, writer="a rank")
        self.is_stuck = False
        return end_of(label, pid, reason)

    def _find_failure(self) -> str | None:
        absent, silent = [], []
        for label, peer in self._peers.items():
            if peer.beat is None:
                if self._exceeds(peer.silent, self._start_timeout_s):
                    absent.append(label)
            elif self._exceeds(peer.silent, self._timeout_s):
                silent.append(f"{label} (pid {peer.beat.pid}), which {_describe(peer.beat)}")
        if absent:
            return (
                f"no heartbeat from {', '.join(absent)} within flow.start_timeout_s="
                f"{self._start_timeout_s:g} s; start every rank, or raise flow.start_timeout_s"
            )
        limit = f"flow.timeout_s={self._timeout_s:g} s"
        if silent:
            return (
                f"no heartbeat for {limit} from {'; '.join(silent)}: the process is stopped, or a "
                "call holds Python's lock; if the call is only slow, raise flow.timeout_s"
            )
        if self._exceeds(self._all_waiting, self._timeout_s):
            everyone = self._peers | (self._guests or {})
            waits = "; ".join(
                f"{label} {_describe(peer.beat)}" for label, peer in everyone.items() if peer.beat
            )
            return (
                f"all ranks have waited for each other for {limit}: {waits}; if one waited for "
                "slabs, raise pool.bytes or pool.scale"
            )
        return None

    def _exceeds(self, periods: int, limit_s: float) -> bool:
        return periods >= periods_in(limit_s, self._period_s)


def _describe(beat: _Beat) -> str:
    return "worked" if beat.awaited is None else f"waited for {beat.awaited}"

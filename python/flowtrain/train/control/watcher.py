"""The watcher: ends this rank when a peer has died or is silent, and names the peer."""

from __future__ import annotations

import re
import threading
from contextlib import suppress

from flowtrain.train.control.ending import DIED, DIED_OR_LOST, Ending, end_of
from flowtrain.train.control.heartbeat import Heartbeat
from flowtrain.train.control.job import GATEWAY_LABEL, HOST_LABEL, ON_HOST
from flowtrain.train.control.seats import comes_and_goes
from flowtrain.train.control.store import JobStore
from flowtrain_core import LaneInfo, Pool

_PERIOD_S = 0.2


def names_another(reason: str) -> bool:
    """Whether the reason of a rank is an `end_of` another."""
    ends = rf"({DIED}$|{DIED_OR_LOST}$|failed: )"
    return re.match(rf"rank \S+ \(pid \d+\) {ends}", reason) is not None


class Watcher(threading.Thread):
    """Waits for the death of any rank of the job, and for a failure that the heartbeat found.

    It is a thread, because a signal handler does not run while the main thread is inside a
    collective.

    Args:
        pool: This rank's handle of the pool, in which every rank has a lane.
        store: Store with a connection that only this thread uses; failing ranks leave their
            reason in it.
        heartbeat: This rank's heartbeat.
        label: This rank's name.
        ending: What ends this rank.
        elastic: Whether encoder ranks may die; the process that hosts the job sees to that.
    """

    def __init__(
        self,
        pool: Pool,
        store: JobStore,
        heartbeat: Heartbeat,
        label: str,
        ending: Ending,
        *,
        elastic: bool = False,
    ) -> None:
        super().__init__(name="flowtrain-watcher", daemon=True)
        self._pool = pool
        self._store = store
        self._heartbeat = heartbeat
        self._label = label
        self._ending = ending
        self._elastic = elastic
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the thread: a thread inside the core must not run when the interpreter ends."""
        self._stopped.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        while not self._stopped.is_set():
            dead = self._pool.wait_dead(timeout_s=_PERIOD_S)
            if self._stopped.is_set():
                return
            if dead is not None and not (self._elastic and comes_and_goes(dead.label)):
                self._ending(self._describe(dead), is_stuck=False)
                return
            if self._heartbeat.failure is not None:
                if self._heartbeat.is_stuck:
                    self._publish(self._heartbeat.failure)
                self._ending(self._heartbeat.failure, is_stuck=self._heartbeat.is_stuck)
                return

    def _describe(self, dead: LaneInfo) -> str:
        if dead.label == HOST_LABEL and dead.index == 0:
            # It can no longer do so. On another host, lane 0 is `flowtrain host`, and outlives
            # what it tells of the host of the job.
            Pool.unlink(self._pool.name)
        reason, is_elsewhere = self._reason(dead.label), self._may_be_elsewhere(dead)
        return end_of(dead.label, dead.pid, reason, is_elsewhere=is_elsewhere)

    def _may_be_elsewhere(self, dead: LaneInfo) -> bool:
        """Whether a rank may be on another host: then the loss of that looks like its death."""
        labels = [lane.label for lane in self._pool.lanes() if lane.role == "pool"]
        # Where this host has joined, its `flowtrain host` has that name, too.
        is_joined = GATEWAY_LABEL in labels or labels.count(HOST_LABEL) > 1
        if not is_joined or dead.label == GATEWAY_LABEL:
            return False
        if dead.label == HOST_LABEL:
            return dead.index > 0
        with suppress(Exception):  # The store may be lost.
            there, here = self._store.read([f"{ON_HOST}/{r}" for r in (dead.label, self._label)])
            return there is None or there != here
        return True

    def _publish(self, reason: str) -> None:
        with suppress(Exception):  # The store itself may be lost.
            self._store.put(f"failed/{self._label}", reason)

    def _reason(self, label: str) -> str | None:
        key = f"failed/{label}"
        try:
            if not self._store.has(key):
                return None
            return str(self._store.get(key, timeout_s=1.0, writer=label))
        except Exception:  # The store may have died with the rank that hosted it.
            return None

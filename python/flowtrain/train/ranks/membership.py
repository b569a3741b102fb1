"""A process as a rank of its job: joins it, watches the other ranks, and leaves it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from flowtrain.config.checks import ConfigError
from flowtrain.config.layout import RankLayout
from flowtrain.train.control.activity import Activity
from flowtrain.train.control.ending import Ending, JobFailed
from flowtrain.train.control.heartbeat import Heartbeat
from flowtrain.train.control.job import ENDED, HOST_LABEL, Job
from flowtrain.train.control.seats import Seat, Seats
from flowtrain.train.control.store import JobStore
from flowtrain.train.control.watcher import Watcher
from flowtrain_core import Pool, PoolNotFound

_FAILURE_S = 1.5
# A job has its pool before anybody knows its store, and its store until the model is written.
_POOL_S = 1.0


class Membership:
    """Joins a job as one rank.

    Args:
        layout: The ranks of the job.
        world: `encoder`, `backbone`, or `colocated`.
        rank: Rank in that world.
        job: Where the job is.
        timeout_s: Seconds after which a rank that does nothing ends the run.
        start_timeout_s: Seconds to wait for the store and other ranks at the start.
        ending: What ends this rank if another has ended or no longer answers; by default the
            present wait of this rank and all later ones raise JobFailed.
        elastic: Whether encoder ranks come and go; they then have no world, and nobody waits for
            them.

    Attributes:
        labels: Names of the ranks that last as long as the job.
        seat: Of an encoder rank that comes and goes: its name.

    Raises:
        ConfigError: The job has no such rank, or another process has joined as this one.
        RuntimeError: Another process has joined as this rank.
        JobFailed: The job has ended.
    """

    def __init__(
        self,
        layout: RankLayout,
        world: str,
        rank: int,
        job: Job,
        *,
        timeout_s: float,
        start_timeout_s: float,
        ending: Ending | None = None,
        elastic: bool = False,
    ) -> None:
        self.labels = layout.labels_that_last(elastic=elastic)
        found = layout.world(world)
        comes_and_goes = elastic and world == "encoder"
        if found is None or rank < 0 or not (rank < found.size or comes_and_goes):
            # Checked before joining: the end of a rank that has joined ends the run.
            raise ConfigError(
                f"--world {world} with RANK={rank}: no rank of the job, whose ranks are "
                f"{', '.join(layout.labels)}; start each of them once"
            )
        self.world = replace(found, size=1) if comes_and_goes else found
        self.label = found.label(rank)
        self.activity = Activity()
        self.store = JobStore(
            job.address,
            job.nonce,
            timeout_s=start_timeout_s,
            activity=self.activity,
            polls=ending is None,
        )
        self.seat: Seat | None = None
        if comes_and_goes:
            self.seat = Seats(self.store).take(rank)
        elif not self.store.claim(self.label):
            raise RuntimeError(f"{self.label} has joined already; start each command once")
        try:
            self.pool = Pool.open(job.pool, label=self.label, timeout_s=_POOL_S)
        except PoolNotFound as error:
            raise JobFailed("the job has ended: its pool is gone") from error
        self._heartbeat = Heartbeat(
            self.activity,
            self.store.clone(),
            self.label,
            self.labels,
            timeout_s=timeout_s,
            start_timeout_s=start_timeout_s,
            guests=elastic,
        )
        self._watcher = Watcher(
            self.pool,
            self.store.clone(),
            self._heartbeat,
            self.label,
            ending or self.activity.fail,
            elastic=elastic,
        )

    @property
    def host_pid(self) -> int | None:
        """Process that hosts the job; None if it has left."""
        lanes = self.pool.lanes()
        return next((lane.pid for lane in lanes if lane.label == HOST_LABEL), None)

    def watch(self) -> None:
        """Start to watch the other ranks and the host."""
        self._heartbeat.start()
        self._watcher.start()

    def ask_for_end(self, number: int) -> None:
        """Ask the launcher to end and save the run, after the signal of this number."""
        self._heartbeat.asked_by = number

    def unwatch(self) -> None:
        """Stop watching: from here on, ranks leave in any order."""
        self._watcher.stop()
        self._heartbeat.stop()

    def meet(self, event: str) -> None:
        """Wait until every rank of the job has reached an event."""
        self.store.put(f"{event}/{self.label}", True)
        self.store.wait([f"{event}/{label}" for label in self.labels], writer="every rank")

    def fail(self, reason: str) -> None:
        """Publish why this rank ends, for the launcher and the watchers of the other ranks."""
        with suppress(Exception):  # The store may be lost; then the death of its host is seen.
            self.store.clone(timeout_s=_FAILURE_S).put(f"failed/{self.label}", reason)
        # A peer's death looks like a lost connection here; the watcher names the peer.
        self._watcher.join(_FAILURE_S)

    def failure(self) -> str | None:
        """Why the job has failed; None if it has not. Deaths are seen a little later."""
        self._watcher.join(_FAILURE_S)
        return self.activity.failure

    def abandon(self, reason: str) -> None:
        """Tell the other ranks that this one ends early, although its process lives on."""
        with suppress(Exception):  # The store may be lost.
            self.store.clone(timeout_s=_FAILURE_S).put(ENDED, [self.label, os.getpid(), reason])

    def leave(self) -> None:
        """Leave the pool, last of all."""
        self.pool.close()

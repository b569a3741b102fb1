"""Encoder ranks that come and go, as processes of this one: each is started and ends by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from flowtrain.config.layout import WorldLayout
from flowtrain.config.schema import RunConfig
from flowtrain.train.control.job import Job
from flowtrain.train.control.seats import Seats, label_of
from flowtrain.train.control.store import JobStore
from flowtrain.train.launch.processes import Failure, end_processes, failure_of, start_world
from flowtrain.train.launch.signals import say

_POLL_S = 0.05


class EncoderProcesses:
    """Starts encoder ranks of a job, and follows them.

    Args:
        config: The run, whose folder holds its configuration.
        job: Where the job is.
        store: The job's store.
        resume: Whether the run was resumed.
        joins: Whether the run goes on if one of them fails.
        again: Called with the process of a rank that was killed; returns whether another one is to
            take its place.
    """

    def __init__(
        self,
        config: RunConfig,
        job: Job,
        store: JobStore,
        *,
        resume: bool,
        joins: bool = False,
        again: Callable[[int], bool],
    ) -> None:
        self._config = config
        self._job = job
        self._store = store
        self._seats = Seats(store)
        self._resume = resume
        self._joins = joins
        self._again = again
        self._running: dict[int, SubprocessContext] = {}
        self._started_again: set[int] = set()

    def start(self, rank: int) -> None:
        """Start a rank with this number, whose seat is reserved."""
        label = label_of(rank)
        self._running[rank] = start_world(
            self._config,
            self._job,
            WorldLayout("encoder", 1, ("encoder",)),
            [rank],
            folder=self._config.run / "logs" / self._job.nonce / label,
            resume=self._resume,
            joins=self._joins,
        )

    def poll(self) -> list[Failure]:
        """The ranks that have failed since the last call; those that were killed start again.

        The run goes on if one cannot start again, as long as there are others.
        """
        failures = []
        for rank, context in list(self._running.items()):
            [process] = (handler.proc for handler in context.subprocess_handlers.values())
            if (code := process.poll()) is None:
                continue
            del self._running[rank]
            was_ready = self._again(process.pid)
            if code < 0 and was_ready:
                seat = self._seats.reserve()
                say(f"rank {seat.label} starts, in place of {label_of(rank)}")
                self._started_again.add(seat.rank)
                self.start(seat.rank)
            elif code:
                log = Path(context.stderrs[0])
                failure = failure_of(label_of(rank), process.pid, code, log, store=self._store)
                if rank not in self._started_again or was_ready:
                    failures.append(failure)
                else:
                    say(f"rank {failure.rank} could not start: {failure.reason()}")
        return failures

    @property
    def running(self) -> bool:
        """Whether a rank runs."""
        return bool(self._running)

    def leave(self) -> None:
        """Ask all ranks to leave."""
        for context in self._running.values():
            for handler in context.subprocess_handlers.values():
                with suppress(ProcessLookupError):
                    os.kill(handler.proc.pid, signal.SIGTERM)

    def wait(self, timeout_s: float) -> None:
        """Wait until all ranks have ended; not longer than the timeout."""
        end = time.monotonic() + timeout_s
        while self._running and time.monotonic() < end:
            for rank, context in list(self._running.items()):
                handlers = context.subprocess_handlers.values()
                if all(handler.proc.poll() is not None for handler in handlers):
                    del self._running[rank]
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Kill the ranks that still run."""
        end_processes(self._running.values())
        self._running.clear()

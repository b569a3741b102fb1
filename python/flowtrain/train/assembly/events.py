"""The file of a rank's events."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial

from flowtrain.config.schema import RunConfig
from flowtrain.data.workers import WorkerPool
from flowtrain.events import Attempt, EventFile, clock_offset_ns, path_of
from flowtrain.train.control.job import ATTEMPT
from flowtrain.train.ranks.membership import Membership


def record_events(
    membership: Membership, config: RunConfig, workers: Iterable[WorkerPool], resources: ExitStack
) -> None:
    """Write the events of a rank, and of its workers, to its file.

    Args:
        membership: The rank.
        config: The run.
        workers: Workers of the rank.
        resources: Closes the file.
    """
    events = membership.activity.events
    attempt = Attempt(
        number=membership.store.get(ATTEMPT, writer="the launcher"),
        pid=os.getpid(),
        clock_offset_ns=clock_offset_ns(),
    )
    label, keep = membership.label, config.track.event_steps
    file = EventFile(path_of(config.run, label), label, attempt, keep_steps=keep)
    events.attach(file)
    resources.callback(events.close)
    number = 0
    for pool in workers:
        pool.first_number = number
        pool.observer = partial(events.add, "workers", "answered")
        number += pool.size

"""Slow ranks are waited for; silent ranks and waits that cannot end are detected and named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import torch
from torch.distributed import TCPStore

from flowtrain.steps import Space
from flowtrain.train.control.activity import Activity
from flowtrain.train.control.heartbeat import Heartbeat
from flowtrain.train.control.store import JobStore
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.records.sender import RecordSender
from flowtrain_core import Pool, PoolClosed

DEADLINE_S = 0.8


class Rank:
    """A rank of a job: its activity, its store, and its heartbeat."""

    def __init__(self, address: str, label: str, labels: list[str]) -> None:
        self.activity = Activity()
        self.store = JobStore(address, "test", timeout_s=10, activity=self.activity)
        self.heartbeat = Heartbeat(
            self.activity,
            self.store.clone(),
            label,
            labels,
            timeout_s=DEADLINE_S,
            start_timeout_s=2 * DEADLINE_S,
        )

    def failure(self) -> str:
        while self.heartbeat.failure is None:
            time.sleep(0.02)
        return self.heartbeat.failure


@contextmanager
def job(*labels: str) -> Iterator[Callable[[str], Rank]]:
    """A job in this process; yields a function that starts the rank of a label."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as stack:

        def start(label: str) -> Rank:
            rank = Rank(f"127.0.0.1:{server.port}", label, list(labels))
            rank.heartbeat.start()
            stack.callback(rank.heartbeat.stop)
            return rank

        yield start


def test_a_rank_that_works_is_waited_for_and_one_that_stops_beating_is_named() -> None:
    with job("a", "b") as start:
        a, b = start("a"), start("b")
        with a.activity.waiting("b to save"):
            time.sleep(4 * DEADLINE_S)  # b works all the time.
            assert a.heartbeat.failure is None
            b.heartbeat.stop()
            failure = a.failure()
        assert f"no heartbeat for flow.timeout_s={DEADLINE_S:g} s from b (pid " in failure
        assert "which worked" in failure


def test_a_rank_that_never_comes_is_named() -> None:
    with job("a", "b") as start:
        a = start("a")
        with a.activity.waiting("b to be ready"):
            assert "no heartbeat from b within flow.start_timeout_s=1.6 s" in a.failure()


def test_a_deadlock_in_the_pool_names_the_missing_slab_and_record() -> None:
    space = Space(slab_bytes=4096, row_bytes=4096, trained=True)
    pool = Pool.create(f"test-liveness-{os.getpid()}", rings=("backbone.0",))
    with job("encoder.0", "backbone.0") as start, pool, ThreadPoolExecutor(2) as threads:
        encoder, backbone = start("encoder.0"), start("backbone.0")
        sender = RecordSender(
            pool,
            readers="backbone",
            num_readers=1,
            space=space,
            dtype=torch.float32,
            activity=encoder.activity,
        )
        receiver = RecordReceiver(pool, inbox="backbone.0", space=space, activity=backbone.activity)
        sender.reserve(1)
        rows = torch.zeros(2, 1024)
        waits = [
            threads.submit(sender.send, rows, reader=0, step=3, item=0, version=3),
            threads.submit(receiver.gather, rows, step=3, item=1),
        ]
        failure = backbone.failure()
        assert "all ranks have waited for each other for flow.timeout_s=0.8 s" in failure
        assert "encoder.0 waited for a free slab, of 1 of 4096 bytes, for step 3, item 0" in failure
        assert "backbone.0 waited for step 3, item 1, part 0 to arrive in backbone.0" in failure
        assert encoder.failure() == failure
        pool.close()
        assert all(isinstance(wait.exception(), PoolClosed) for wait in waits)

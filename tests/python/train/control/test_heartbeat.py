"""Beats: slow ranks are waited for; silent ranks and waits that cannot end are found and named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import torch
from torch.distributed import TCPStore

from flowtrain.plan import Space
from flowtrain.train.control.heartbeat import Activity, Heartbeat
from flowtrain.train.control.store import Board
from flowtrain.train.records.records import RecordReceiver, RecordSender
from flowtrain_core import Pool, PoolClosed

DEADLINE_S = 0.8


class Rank:
    """A rank of a job: what it does, its board, and its heartbeat."""

    def __init__(self, address: str, label: str, labels: list[str]) -> None:
        self.activity = Activity()
        self.board = Board(address, "test", timeout_s=10, activity=self.activity)
        self.heartbeat = Heartbeat(
            self.activity,
            self.board.clone(),
            label,
            labels,
            deadline_s=DEADLINE_S,
            start_deadline_s=2 * DEADLINE_S,
        )

    def verdict(self) -> str:
        while self.heartbeat.verdict is None:
            time.sleep(0.02)
        return self.heartbeat.verdict


@contextmanager
def job(*labels: str) -> Iterator[Callable[[str], Rank]]:
    """A job in this process; called with a label, it starts that rank."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as stack:

        def start(label: str) -> Rank:
            rank = Rank(f"127.0.0.1:{store.port}", label, list(labels))
            rank.heartbeat.start()
            stack.callback(rank.heartbeat.stop)
            return rank

        yield start


def test_a_rank_that_works_is_waited_for_and_one_that_stops_beating_is_named() -> None:
    with job("a", "b") as start:
        a, b = start("a"), start("b")
        with a.activity.waiting("b to save"):
            time.sleep(4 * DEADLINE_S)  # b works all the time.
            assert a.heartbeat.verdict is None
            b.heartbeat.stop()
            verdict = a.verdict()
        assert f"no sign of life for flow.deadline_s={DEADLINE_S:g} s from b (pid " in verdict
        assert "which worked" in verdict


def test_a_rank_that_never_comes_is_named() -> None:
    with job("a", "b") as start:
        a = start("a")
        with a.activity.waiting("b to be ready"):
            assert "no sign of b within flow.start_deadline_s=1.6 s" in a.verdict()


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
        verdict = backbone.verdict()
        assert "every rank has waited for another one for flow.deadline_s=0.8 s" in verdict
        assert "encoder.0 waited for a free slab, of 1 of 4096 bytes, for step 3, item 0" in verdict
        assert "backbone.0 waited for step 3, item 1, part 0 to arrive in backbone.0" in verdict
        assert encoder.verdict() == verdict
        pool.close()
        assert all(isinstance(wait.exception(), PoolClosed) for wait in waits)


def test_a_rank_waits_when_none_of_its_threads_works() -> None:
    activity = Activity()
    assert activity.now() == (0, None)
    with activity.waiting("a plan"):
        with activity.working():
            assert activity.now() == (2, None)
        assert activity.now() == (2, "a plan")
    assert activity.now() == (2, None)

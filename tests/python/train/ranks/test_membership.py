from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowtrain.config import ConfigError
from flowtrain.config.layout import RankLayout
from flowtrain.train.control.ending import JobFailed
from flowtrain.train.control.host import JobHost
from flowtrain.train.control.job import GATEWAY_LABEL, ON_HOST
from flowtrain.train.ranks.membership import Membership
from flowtrain_core import Consumer, Pool, PoolTimeout

RANKS = RankLayout.decoupled(1, 1)
JOIN = """
import sys, time
from flowtrain_core import Pool
pool = Pool.open(sys.argv[1], label="encoder.0", timeout_s=20)
print("joined", flush=True)
time.sleep(60)
"""


@pytest.fixture
def host() -> Iterator[JobHost]:
    host = JobHost(RANKS, first=0, attempt=0, cells=64, port=0, timeout_s=10)
    yield host
    host.close()


def test_a_rank_can_be_joined_once(host: JobHost) -> None:
    assert host.store.claim("encoder.0")
    with pytest.raises(RuntimeError, match=r"encoder.0 has joined already; start each command on"):
        Membership(RANKS, "encoder", 0, host.job, timeout_s=60, start_timeout_s=60)


def test_a_rank_that_the_job_does_not_have_cannot_join(host: JobHost) -> None:
    with pytest.raises(ConfigError, match=r"encoder with RANK=1: .* backbone.0, encoder.0; st"):
        Membership(RANKS, "encoder", 1, host.job, timeout_s=60, start_timeout_s=60)
    assert host.store.claim("encoder.1")


def test_a_rank_that_comes_while_the_host_writes_the_model_does_not_wait(host: JobHost) -> None:
    host.close()
    with pytest.raises(JobFailed, match="the job has ended: its pool is gone"):
        Membership(RANKS, "encoder", 0, host.job, timeout_s=60, start_timeout_s=600)


def of_store(rank: Membership) -> Any:
    return rank.store.get("never", writer="encoder.0")


def of_event(rank: Membership) -> Any:
    return rank.store.wait(["never", "meeting"], writer="every rank")


def of_record(rank: Membership) -> Any:
    consumer = Consumer(rank.pool, ring="backbone.0")
    return rank.activity.wait("a record", consumer.get, PoolTimeout, "record")


@pytest.mark.parametrize("wait", [of_store, of_event, of_record])
def test_the_death_of_a_rank_is_an_error_of_the_present_wait_and_of_all_later(
    wait: Callable[[Membership], Any], host: JobHost
) -> None:
    command = [sys.executable, "-c", JOIN, host.job.pool]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        assert peer.stdout.readline() == "joined\n"
        rank = Membership(RANKS, "backbone", 0, host.job, timeout_s=30, start_timeout_s=60)
        rank.watch()

        def kill() -> None:
            while rank.activity.now()[1] is None:
                time.sleep(0.01)
            time.sleep(0.3)  # Until now the wait has begun.
            peer.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        died = rf"^rank encoder.0 \(pid {peer.pid}\) died$"
        with pytest.raises(JobFailed, match=died):
            wait(rank)
        killer.join()
        for later in (of_store, of_event, of_record):
            with pytest.raises(JobFailed, match=died):
                later(rank)
        rank.unwatch()
        rank.leave()


def test_a_rank_that_ends_and_whose_process_lives_on_is_named(host: JobHost) -> None:
    encoder, backbone = (
        Membership(RANKS, world, 0, host.job, timeout_s=30, start_timeout_s=60)
        for world in ("encoder", "backbone")
    )
    for rank in (encoder, backbone):
        rank.watch()
    encoder.abandon("KeyError: 'mine'")
    encoder.unwatch()
    encoder.leave()
    failed = rf"^rank encoder.0 \(pid {os.getpid()}\) failed: KeyError: 'mine'$"
    with pytest.raises(JobFailed, match=failed):
        of_store(backbone)
    backbone.unwatch()
    backbone.leave()


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({}, r"died, or its host or the link to it is lost"),
        ({"encoder.0": "b", "backbone.0": "a"}, r"died, or its host or the link to it is lost"),
        ({"encoder.0": "a", "backbone.0": "a"}, "died"),
    ],
)
def test_a_rank_that_may_be_on_another_host_may_live(
    places: dict[str, str], said: str, host: JobHost
) -> None:
    for label, place in places.items():
        host.store.put(f"{ON_HOST}/{label}", place)
    command = [sys.executable, "-c", JOIN, host.job.pool]
    with (
        Pool.open(host.job.pool, label=GATEWAY_LABEL, timeout_s=10),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer,
    ):
        assert peer.stdout is not None
        assert peer.stdout.readline() == "joined\n"
        rank = Membership(RANKS, "backbone", 0, host.job, timeout_s=30, start_timeout_s=60)
        rank.watch()
        peer.kill()
        with pytest.raises(JobFailed, match=rf"^rank encoder.0 \(pid {peer.pid}\) {said}$"):
            of_store(rank)
        rank.unwatch()
        rank.leave()

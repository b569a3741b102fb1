"""The store of a job that has ended, or whose link is lost."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from flowtrain.train.control import store
from flowtrain.train.control.ending import JobFailed
from flowtrain.train.control.job import Job
from flowtrain.train.control.store import JobStore, StoreLost
from flowtrain_core import Pool

NONCE = f"test-{time.time_ns()}"


@pytest.fixture
def ended() -> str:
    """Address of a store that has ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def pool(ended: str) -> Iterator[Pool]:
    pool = Pool.create(Job(ended, NONCE).pool, rings=["r"])
    yield pool
    pool.close()


def test_a_rank_that_comes_after_the_end_of_its_job_does_not_wait(ended: str) -> None:
    with pytest.raises(JobFailed, match=r"^the job has ended: none of its processes is left on"):
        JobStore(ended, NONCE, timeout_s=600.0)


def test_a_rank_that_waits_for_the_store_ends_with_the_job(ended: str, pool: Pool) -> None:
    end = threading.Timer(0.5, pool.close)
    end.start()
    with pytest.raises(JobFailed, match="the job has ended"):
        JobStore(ended, NONCE, timeout_s=600.0)
    assert not end.is_alive()


def test_a_port_that_leads_nowhere_is_tried_until_the_job_ends(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_FIRST_TRY_S", 0.3)

    def close_each() -> None:
        with suppress(OSError):  # The port is closed.
            while True:
                server.accept()[0].close()

    # That of a `flowtrain host --join` whose other host is gone.
    server = socket.create_server(("127.0.0.1", 0))
    closes = threading.Thread(target=close_each)
    closes.start()
    end = threading.Timer(0.5, pool.close)
    end.start()
    try:
        with pytest.raises(JobFailed, match="the job has ended"):
            JobStore(f"127.0.0.1:{server.getsockname()[1]}", NONCE, timeout_s=600.0)
    finally:
        server.shutdown(socket.SHUT_RDWR)
        closes.join()
        server.close()


def test_a_store_that_a_living_job_lacks_is_lost(ended: str, pool: Pool) -> None:
    with pytest.raises(StoreLost, match=rf"link to its host is lost \(store at {ended}: "):
        JobStore(ended, NONCE, timeout_s=0.5)


def test_the_loss_of_the_store_names_the_host_and_the_link() -> None:
    limit = timedelta(seconds=30)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    lost = JobStore(f"127.0.0.1:{server.port}", NONCE, timeout_s=30.0)
    assert not lost.has("key")
    del server
    with pytest.raises(StoreLost, match=r"^the process that hosts the job has ended, or the link"):
        for _ in range(100):
            lost.put("key", 1)
            assert lost.get("key", writer="this process") == 1
            time.sleep(0.05)

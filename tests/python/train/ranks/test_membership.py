from __future__ import annotations

import pytest
from torch.distributed import TCPStore

from flowtrain.config import ConfigError
from flowtrain.config.layout import RankLayout
from flowtrain.train.control.job import Job
from flowtrain.train.control.store import JobStore
from flowtrain.train.ranks.membership import Membership

RANKS = RankLayout.decoupled(1, 1)


def test_a_rank_can_be_joined_once() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(f"127.0.0.1:{server.port}", "test")
    assert JobStore(job.address, job.nonce, timeout_s=10).claim("encoder.0")
    with pytest.raises(RuntimeError, match=r"encoder.0 has joined already; start each command on"):
        Membership(RANKS, "encoder", 0, job, timeout_s=9, start_timeout_s=5)


def test_a_rank_that_the_job_does_not_have_cannot_join() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(f"127.0.0.1:{server.port}", "test")
    with pytest.raises(ConfigError, match=r"encoder with RANK=1: .* backbone.0, encoder.0; st"):
        Membership(RANKS, "encoder", 1, job, timeout_s=9, start_timeout_s=1)
    assert JobStore(job.address, job.nonce, timeout_s=10).claim("encoder.1")

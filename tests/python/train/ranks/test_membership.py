from __future__ import annotations

from pathlib import Path

import pytest
from support import run_tree
from torch.distributed import TCPStore

from flowtrain.config import ConfigError, from_dict
from flowtrain.train.control.job import Job
from flowtrain.train.control.store import JobStore
from flowtrain.train.ranks.membership import Membership


def test_a_rank_can_be_joined_once(tmp_path: Path) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(f"127.0.0.1:{server.port}", "test")
    assert JobStore(job.address, job.nonce, timeout_s=10).claim("encoder.0")
    config = from_dict(run_tree(tmp_path, tmp_path, flow={"start_timeout_s": 5.0}))
    with pytest.raises(RuntimeError, match=r"encoder.0 has joined already; start each command on"):
        Membership(config, "encoder", 0, job)


def test_a_rank_that_the_job_does_not_have_cannot_join(tmp_path: Path) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(f"127.0.0.1:{server.port}", "test")
    config = from_dict(run_tree(tmp_path, tmp_path, flow={"start_timeout_s": 1.0}))
    with pytest.raises(ConfigError, match=r"encoder with RANK=1: .* backbone.0, encoder.0; st"):
        Membership(config, "encoder", 1, job)
    assert JobStore(job.address, job.nonce, timeout_s=10).claim("encoder.1")

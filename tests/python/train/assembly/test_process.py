from __future__ import annotations

from pathlib import Path

import pytest
from support import run_tree

from flowtrain.config import from_dict
from flowtrain.train.assembly.process import RankProcess
from flowtrain.train.launch.host import RunHost
from flowtrain.train.state.checkpoint_files import CheckpointError


def test_a_rank_must_start_at_the_step_of_the_launcher(tmp_path: Path) -> None:
    config = from_dict(run_tree(tmp_path, tmp_path, flow={"ranks": 1, "start_timeout_s": 5.0}))
    host = RunHost(config, first=2)
    rank = RankProcess(config, "colocated", 0, host.job, resume=False)
    try:
        with pytest.raises(CheckpointError, match=r"at step 0 \(no .* launcher at step 2: a r"):
            rank.run()
    finally:
        rank.membership.unwatch()
        rank.membership.leave()
        host.close()

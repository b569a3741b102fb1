from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import run_tree
from torch.distributed.fsdp import FSDPModule

from flowtrain.config import ConfigError, RunConfig, from_dict
from flowtrain.train.launch.sharding import check_offload, check_sharding


def offloaded(folder: Path, **sections: dict[str, Any]) -> RunConfig:
    given: dict[str, dict[str, Any]] = {
        "optim": {"offload": True},
        "flow": {"ranks": 1},
        "parallel": {"backbone": {"sharding": "full"}},
    }
    return from_dict(run_tree(folder / "run", folder, **{**given, **sections}))


def test_a_single_rank_has_a_shard_of_its_own_only_with_states_in_host_memory(
    tmp_path: Path,
) -> None:
    config = offloaded(tmp_path)
    assert config.offloads("backbone")
    assert config.parallel_of("backbone").sharding == "full"
    assert config.parallel_of("encoder").sharding == "replicated"
    plain = offloaded(tmp_path, optim={"offload": False})
    assert plain.parallel_of("backbone").sharding == "replicated"
    # It has no states to keep there.
    frozen = offloaded(
        tmp_path, flow={"ranks": 1, "mode": "frozen"}, parallel={"encoder": {"sharding": "full"}}
    )
    assert not frozen.offloads("encoder")


def test_modules_that_keep_their_states_on_the_device_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_offload(offloaded(tmp_path))
    said = capsys.readouterr().err
    assert "leaves the states of the encoder on its device, with parallel.encoder.shard" in said
    with pytest.raises(
        ConfigError,
        match=r"optim\.offload=true with parallel\.encoder\.sharding=replicated, "
        r"parallel\.backbone\.sharding=replicated: .*; set sharding to optimizer or full",
    ):
        check_offload(offloaded(tmp_path, parallel={}))


def test_a_torch_that_cannot_shard_is_refused_where_several_ranks_share_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = offloaded(tmp_path, flow={"ranks": 2})
    check_sharding(two)
    monkeypatch.delattr(FSDPModule, "set_reduce_scatter_unused_params")
    check_sharding(offloaded(tmp_path))
    with pytest.raises(
        ConfigError, match=r"parallel\.backbone\.sharding=full: torch .*torch>=2\.13"
    ):
        check_sharding(two)

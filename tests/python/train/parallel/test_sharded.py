"""States of sharded modules in host memory, which on a CPU moves nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support import run_tree
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from two_ranks import on_two_ranks

from flowtrain.config import from_dict
from flowtrain.train.assembly.parallel import parallel_for
from flowtrain.train.parallel import sharded


def trained(rank: int, sharding: str, *, offload: bool) -> tuple[list[float], list[torch.Tensor]]:
    """Norms of three steps of two passes, and this rank's shards of the weights behind them."""
    torch.manual_seed(0)
    blocks = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 3))
    sections: dict[str, dict[str, Any]] = {
        "flow": {"ranks": 2},
        "optim": {"offload": offload},
        "parallel": {"backbone": {"sharding": sharding}},
    }
    config = from_dict(run_tree(Path("run"), Path("data"), **sections))
    cpu = torch.device("cpu")
    world: Any = SimpleNamespace(size=2, device=cpu, reduce_on=cpu, makes_groups=True)
    parallel = parallel_for(config, "backbone", world)
    assert parallel.offloads == offload
    with patch.object(sharded, "fully_shard", wraps=fully_shard) as divided:
        parallel.prepare(blocks, list(blocks))
    policies = [call.kwargs["offload_policy"] for call in divided.call_args_list]
    assert [isinstance(policy, CPUOffloadPolicy) for policy in policies] == [offload] * 3
    parameters = list(blocks.parameters())
    parallel.begin(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=True)
    norms = []
    for step in range(3):
        for number in range(2):
            if number:
                parallel.last_backward()
            blocks(torch.full((2, 5), float(1 + step + number + rank))).square().sum().backward()
        parallel.reduce()
        parallel.finish()
        gradients = [p.grad for p in parameters if p.grad is not None]
        norms.append(parallel.norm(gradients))
        parallel.scale(gradients, 1 / norms[-1])
        optimizer.step()
        parallel.clear()
    return norms, [p.to_local().detach() for p in parameters if isinstance(p, DTensor)]


def check_offload(rank: int) -> None:
    for sharding in ("full", "optimizer"):
        norms, weights = trained(rank, sharding, offload=False)
        offloaded = trained(rank, sharding, offload=True)
        assert (offloaded[0], len(weights)) == (norms, 4)
        for one, other in zip(offloaded[1], weights, strict=True):
            assert torch.equal(one, other)


@pytest.mark.limit(60)
def test_weights_and_norms_in_host_memory_are_those_without_it(tmp_path: Path) -> None:
    on_two_ranks(check_offload, tmp_path)

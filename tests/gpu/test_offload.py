"""States of a sharded module in host memory, with passes on a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from parity import compare
from parity_matrix import Row
from support import run_tree
from torch.distributed.tensor import DTensor

from flowtrain.config import from_dict
from flowtrain.train.assembly.parallel import parallel_for

pytestmark = [pytest.mark.gpu, pytest.mark.limit(400)]


@pytest.fixture
def world(tmp_path: Path, device: int) -> Iterator[Any]:
    """A single rank with a group of its own."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    cuda = torch.device("cuda", device)
    yield SimpleNamespace(size=1, device=cuda, reduce_on=cuda, makes_groups=True)
    dist.destroy_process_group()


def trained(world: Any, sharding: str, *, offload: bool) -> tuple[list[float], list[torch.Tensor]]:
    """Norms of three steps of two passes, and the weights behind them."""
    torch.manual_seed(0)
    blocks = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)).to("cuda")
    sections: dict[str, dict[str, Any]] = {
        "flow": {"ranks": 1},
        "optim": {"offload": offload},
        "parallel": {"backbone": {"sharding": sharding}},
    }
    parallel = parallel_for(
        from_dict(run_tree(Path("run"), Path("data"), **sections)), "backbone", world
    )
    assert parallel.divides == parallel.offloads == offload
    parallel.prepare(blocks, list(blocks))
    parameters = list(blocks.parameters())
    parallel.begin(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=0.01, fused=True)
    norms = []
    for step in range(3):
        for number in range(2):
            if number:
                parallel.last_backward()
            values = torch.full((4, 64), 0.1 * (step + number), device="cuda")
            blocks(values).square().sum().backward()
        parallel.reduce()
        parallel.finish()
        gradients = [p.grad for p in parameters if p.grad is not None]
        norms.append(parallel.norm(gradients))
        parallel.scale(gradients, 1 / norms[-1])
        optimizer.step()
        held = [*parameters, *gradients]
        held += [state["exp_avg"] for state in optimizer.state.values()]
        assert {tensor.device.type for tensor in held} == {"cpu" if offload else "cuda"}
        parallel.clear()
    return norms, [_local(p) for p in parameters]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize("sharding", ["optimizer", "full"])
def test_states_are_in_host_memory_and_weights_are_those_of_the_device(
    world: Any, sharding: str
) -> None:
    norms, weights = trained(world, sharding, offload=False)
    offloaded_norms, offloaded = trained(world, sharding, offload=True)
    assert offloaded_norms == pytest.approx(norms, rel=1e-5)
    for mine, theirs in zip(offloaded, weights, strict=True):
        assert mine.is_pinned()
        torch.testing.assert_close(mine, theirs.cpu(), rtol=1e-4, atol=1e-5)


def test_a_run_with_states_in_host_memory_equals_a_plain_loop_on_the_device(
    tmp_path: Path,
) -> None:
    shardings = {"encoder": "optimizer", "backbone": "full"}
    row = Row(dtype="float32", optimizer="adamw", ranks=1, offload=True, **shardings)
    result = compare(tmp_path, row.arguments(steps=8, device="cuda"))
    print(result)
    assert result["weight_change"] >= 1e-3
    assert result["max_rel_loss_diff"] <= 1e-5
    assert result["max_rel_weight_diff"] <= 1e-3

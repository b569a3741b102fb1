"""Gradients of two ranks, summed in buckets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from two_ranks import on_two_ranks

from flowtrain.train.control.activity import Activity
from flowtrain.train.parallel.buckets import GradientBuckets
from flowtrain.train.parallel.replicated import Replicated

CPU = torch.device("cpu")


class Layers(torch.nn.Module):
    """Three layers of two dtypes, and one with float32 gradients that a pass may leave out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(5, 7)
        self.exact = torch.nn.Linear(7, 7, dtype=torch.float64)
        self.last = torch.nn.Linear(7, 3)
        self.optional = torch.nn.Linear(3, 3, dtype=torch.bfloat16)
        for parameter in self.optional.parameters():
            parameter.grad_dtype = torch.float32

    def forward(self, seed: int, *, optional: bool = True) -> torch.Tensor:
        rows = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
        rows = self.last(self.exact(self.first(rows).double()).float())
        return (self.optional(rows.bfloat16()) if optional else rows).float().square().sum()


def buckets_of(layers: torch.nn.Module, *, activity: Activity) -> GradientBuckets:
    # Small enough for several buckets of one dtype.
    return GradientBuckets(
        layers.parameters(),
        activity=activity,
        awaited="the other ranks",
        reduce_on=CPU,
        first_bytes=16,
        bucket_bytes=100,
    )


def expected_sums(*passes: tuple[int, bool]) -> list[torch.Tensor]:
    alone = Layers()
    for parameter in alone.parameters():
        parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
    for seed, optional in passes:
        alone(seed, optional=optional).backward()
    return [p.grad for p in alone.parameters()]


def check_sums(rank: int) -> None:
    layers = Layers()
    buckets = buckets_of(layers, activity=Activity())
    for step in range(2):
        passes = [(10 * step + i, True) for i in range(3)]
        for seed, optional in passes[2 * rank : 2 * rank + 2]:
            if seed == passes[1 + rank][0]:
                buckets.arm()
            layers(seed, optional=optional).backward()
        buckets.finish()
        for parameter, total in zip(layers.parameters(), expected_sums(*passes), strict=True):
            torch.testing.assert_close(parameter.grad, total)
        buckets.clear()


def check_order(rank: int) -> None:
    started: list[int] = []
    all_reduce = dist.all_reduce

    def logged(tensor: torch.Tensor, **options: object) -> object:
        started.append(tensor.numel())
        return all_reduce(tensor, **options)

    dist.all_reduce = logged  # type: ignore[assignment]
    layers = Layers()
    buckets = buckets_of(layers, activity=Activity())
    # The optional layer is in the first bucket: without it none can start before `finish`.
    for optional in (True, False):
        buckets.arm()
        if rank == 0:
            layers(1, optional=optional).backward()
        # One bucket for each layer, the last one first.
        order = [3 + 9, 3 + 21, 7 + 49, 7 + 35]
        assert started == (order if rank == 0 and optional else [])
        buckets.finish()
        assert started == order
        for parameter, total in zip(layers.parameters(), expected_sums((1, optional)), strict=True):
            torch.testing.assert_close(parameter.grad, total)
        buckets.clear()
        started.clear()


def check_wait(rank: int) -> None:
    activity = Activity()
    layers = Layers()
    buckets = buckets_of(layers, activity=activity)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:

        def tell() -> None:
            while activity.now()[1] is None:
                time.sleep(0.001)
            store.set("waits for", activity.now()[1])

        threading.Thread(target=tell).start()
    else:
        assert store.get("waits for") == b"the other ranks in a collective"
    buckets.arm()
    layers(rank).backward()
    buckets.finish()
    assert activity.now()[1] is None


@pytest.mark.parametrize("check", [check_sums, check_order, check_wait])
def test_two_ranks(check: Callable[[int], None], tmp_path: Path) -> None:
    on_two_ranks(check, tmp_path)


def test_a_single_rank_keeps_gradients_as_autograd_leaves_them() -> None:
    layers = Layers()
    alone = Replicated()
    alone.begin(list(layers.parameters()))
    alone.last_backward()
    layers(0, optional=False).backward()
    alone.reduce()
    alone.finish()
    assert layers.optional.weight.grad is None
    assert layers.last.weight.grad is not None
    alone.clear()
    assert layers.last.weight.grad is None

"""The dtypes of a step under each strategy, on two ranks."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from linear_run import APPLY, configuration, module_of
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from two_ranks import on_two_ranks

from flowtrain.train.assembly.parallel import parallel_for
from flowtrain.train.control.activity import Activity

MIXED = {"model": {"compute_dtype": "bfloat16"}}
ROUNDED = {**MIXED, "optim": {"reduce_dtype": "bfloat16"}}
PURE = {"model": {"dtype": "bfloat16", "compute_dtype": "bfloat16"}}
_32, _16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize("sharding", ["replicated", "optimizer", "full"])
def test_states_and_sums_have_the_dtypes_of_the_configuration(
    sharding: str, tmp_path: Path
) -> None:
    on_two_ranks(partial(_check, sharding, tmp_path), tmp_path)


def _check(sharding: str, folder: Path, rank: int) -> None:
    for sections, stored, reduced in ((MIXED, _32, _32), (ROUNDED, _32, _16), (PURE, _16, _16)):
        config = configuration(
            folder, parallel={"backbone": {"sharding": sharding}}, flow={"ranks": 2}, **sections
        )
        world: Any = SimpleNamespace(
            name="backbone",
            rank=rank,
            size=2,
            device=torch.device("cpu"),
            reduce_on=torch.device("cpu"),
            activity=Activity(),
            makes_groups=True,
        )
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)).to(stored)
        module[0].bias.requires_grad_(False)
        state = module_of(
            module, config, parallel=parallel_for(config, "backbone", world), blocks=[module[0]]
        )
        state.begin()
        with _Sums() as sums:
            for last in (False, True):
                if last:
                    state.parallel.last_backward()
                out = module(torch.ones(3, 4, dtype=_16))
                out.float().sum().backward()
                assert out.dtype == _16
                if sharding == "full":
                    # Gradients that were scattered are whole: none outlives its backward pass.
                    assert sums.sent and all(storage() is None for storage in sums.sent)
            state.parallel.reduce()
            state.parallel.finish()
        assert sums.dtypes == {reduced}
        assert {p.grad.dtype for p in state.trainable} == {stored}  # type: ignore[union-attr]
        with state.master.in_place():
            assert {p.dtype for p in state.trainable} == {stored}
        state.apply(APPLY, saw_images=True)
        assert state.optimizer is not None
        moments = [
            value
            for of_parameter in state.optimizer.state.values()
            for name, value in of_parameter.items()
            if name != "step"
        ]
        assert len(moments) == 2 * len(state.trainable)
        assert {value.dtype for value in moments} == {stored}
        assert all(isinstance(value, DTensor) == (sharding != "replicated") for value in moments)


class _Sums(TorchDispatchMode):
    """Dtypes of the tensors that are summed over the ranks, and the storages of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()
        self.sent: list[weakref.ref[torch.UntypedStorage]] = []

    def __torch_dispatch__(
        self, call: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        if call.namespace == "c10d" and "reduce" in call.name():
            tensors = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.dtypes |= {x.dtype for x in tensors}
            if "reduce_scatter" in call.name():
                # Behind the part that arrives.
                self.sent += [weakref.ref(x.untyped_storage()) for x in tensors[1:]]
        return call(*args, **(kwargs or {}))

"""Sharded modules: torch's FSDP2, with gradients that are summed and not averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from flowtrain.train.parallel.interface import Parallel


class Sharded(Parallel):
    """The ranks divide master weights, moments and gradients, and gather weights to compute.

    With `once` weights are gathered in the first pass of a step and kept, and gradients are reduced
    in the last backward (ZeRO-1); otherwise both happen block by block in every pass, and what was
    gathered is dropped behind it (ZeRO-3).

    Passes are collective: every rank runs as many, or at least one in a step with `once`, forward
    and backward. Parameters that a pass does not use contribute zeros.

    Args:
        mesh: Ranks that divide the states, as one dimension; or with a dimension of replicas in
            front (HSDP).
        once: Whether the ranks meet once in a step.
        alternates: Whether each forward pass is followed by its backward pass. Otherwise all come
            first, and FSDP2 keeps their order, to gather ahead, until the last backward pass.
        compute_dtype: Dtype of gathered weights.
        reduce_dtype: Dtype in which gradients are summed over the ranks, and with `once` also over
            the passes of a step.
        offload: Whether what the ranks divide is in host memory: weights are copied to the device
            whenever they are gathered, and gradients to the host once they are summed. The groups
            of the mesh sum tensors of the host, too.
    """

    divides = True

    def __init__(
        self,
        mesh: DeviceMesh,
        *,
        once: bool,
        alternates: bool,
        compute_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
        offload: bool = False,
    ) -> None:
        self.offloads = offload
        # Only a device copies faster from pinned memory, and torch pins none without one.
        pinned = mesh.device_type != "cpu"
        self._offload = CPUOffloadPolicy(pin_memory=pinned) if offload else OffloadPolicy()
        self._mesh = mesh
        self._once = once
        self._alternates = alternates
        self._policy = MixedPrecisionPolicy(
            param_dtype=compute_dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False
        )
        self._parameters: Sequence[torch.nn.Parameter] = ()
        self._root: Any = None

    def prepare(self, module: torch.nn.Module, blocks: Sequence[torch.nn.Module]) -> None:
        for part in (*blocks, module):
            fully_shard(
                part,
                mesh=self._mesh,
                reshard_after_forward=False if self._once else None,
                mp_policy=self._policy,
                offload_policy=self._offload,
            )
        self._root = module
        for part in module.modules():
            if isinstance(part, FSDPModule):
                # Both are needed: the factor alone makes gloo multiply before it sums, which it
                # cannot, and without the factor the sum is divided by the ranks.
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
        if self._mesh.size() > 1:
            # A rank without an image in a pass has no gradient of a projector, and others have.
            self._root.set_reduce_scatter_unused_params(True)
        self._expect_more()

    def begin(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters

    def last_backward(self) -> None:
        self._root.set_is_last_backward(True)
        if self._once:
            self._root.set_requires_gradient_sync(True)
            self._root.set_reshard_after_backward(True)

    def reduce(self) -> None:
        """The sums were in the backward passes."""

    def finish(self) -> None:
        """The sums were in the backward passes."""

    def clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        for part in self._root.modules():
            if isinstance(part, FSDPModule):
                part.reshard()  # What was gathered has the weights of before the update.
        self._expect_more()

    def _expect_more(self) -> None:
        """Further backward passes of the step follow."""
        # At the end of a last one FSDP2 frees the whole gradients of the root that it has sent:
        # those of embedding and head in float32.
        self._root.set_is_last_backward(self._alternates)
        if self._once:
            self._root.set_requires_gradient_sync(False)
            self._root.set_reshard_after_backward(False)

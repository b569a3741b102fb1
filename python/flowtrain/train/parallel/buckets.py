"""Sums of gradients over the ranks of a world, while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from flowtrain.train.control.activity import Activity

# As in DistributedDataParallel: the first bucket is small, so that its sum starts early.
FIRST_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(slots=True, eq=False)
class _Bucket:
    """Gradients of consecutive parameters, of one dtype, in one buffer."""

    flat: torch.Tensor
    parameters: list[torch.nn.Parameter]
    views: list[torch.Tensor]
    missing: int = 0
    """Gradients of an armed step that the backward pass has not completed."""
    sent: torch.Tensor | None = None
    """Copy of the buffer, if the collective has another device or dtype."""
    work: dist.Work | None = None


class GradientBuckets:
    """Sums the gradients of a module over its ranks, bucket by bucket, during the last backward.

    The gradient of each parameter is a view of the buffer of its bucket, so that nothing is copied.
    Buckets are in reverse order of parameters, which is about the order in which a backward pass
    completes them, and their sums start in that order on every rank. It is a sum and not a mean,
    since gradients are of (sum of losses) / N with the global N.

    In each step every rank calls `arm` before its last backward, `finish` after it, and `clear`
    once the gradients were used. A rank without a backward calls them too, and contributes zeros.
    Modules that share a process group are armed in one order on every rank, each after `flush` of
    the one before.

    Make this object after a checkpoint was loaded: torch creates the state of an optimizer only
    while gradients are None.

    Args:
        parameters: Those that train, the same on every rank.
        activity: Told of waits for the other ranks.
        awaited: The other ranks, used in messages.
        reduce_on: Device of the tensors in collectives. If gradients are on another device, they
            are copied there and back.
        reduce_dtype: Dtype of these tensors; None for that of the gradients. Gradients of another
            dtype are cast when their sum starts, and the sum is cast back.
        group: Process group of the ranks; None is the default group.
        first_bytes: Bytes at which the first bucket is full.
        bucket_bytes: Bytes at which another bucket is full, or an eighth of the gradients if that
            is less, so that sums of a small model overlap its backward pass too.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        activity: Activity,
        awaited: str,
        reduce_on: torch.device,
        reduce_dtype: torch.dtype | None = None,
        group: dist.ProcessGroup | None = None,
        first_bytes: int = FIRST_BYTES,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._activity = activity
        self._awaited = f"{awaited} in a collective"
        self._reduce_on = reduce_on
        self._reduce_dtype = reduce_dtype
        self._group = group
        self._armed = False
        self._started = 0
        self._buckets: list[_Bucket] = []
        parameters = list(parameters)
        total = sum(p.numel() * _dtype(p).itemsize for p in parameters)
        bucket_bytes = min(bucket_bytes, max(first_bytes, total // 8))
        for members in _grouped(parameters, first_bytes, bucket_bytes):
            bucket = _bucket(members)
            self._buckets.append(bucket)
            for parameter in members:
                parameter.register_post_accumulate_grad_hook(partial(self._completed, bucket))

    def arm(self) -> None:
        """Announce that the next backward pass is the last of the step."""
        self._armed = True
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def flush(self) -> None:
        """Start the sums that have not started, without waiting for any."""
        self._armed = False
        while self._started < len(self._buckets):
            self._start_next()

    def finish(self) -> None:
        """Wait for all sums, after `flush`. Gradients hold the sums then."""
        self.flush()
        self._started = 0
        for bucket in self._buckets:
            if bucket.flat.is_cuda:
                # Until then this rank works, and does not wait.
                torch.cuda.current_stream(bucket.flat.device).synchronize()
            with self._activity.waiting(self._awaited, "ranks"):
                assert bucket.work is not None
                bucket.work.wait()
                if self._reduce_on.type == "cuda":
                    # The sum runs on the device after `wait` has returned.
                    torch.cuda.current_stream(bucket.flat.device).synchronize()
            if bucket.sent is not None:
                bucket.flat.copy_(bucket.sent)
            bucket.work = bucket.sent = None
            assert all(p.grad is v for p, v in zip(bucket.parameters, bucket.views, strict=True))

    def clear(self) -> None:
        """Set all gradients to zero."""
        for bucket in self._buckets:
            bucket.flat.zero_()

    def _completed(self, bucket: _Bucket, _: torch.Tensor) -> None:
        """Called by a backward pass when it has accumulated the gradient of a parameter."""
        if not self._armed:
            return
        bucket.missing -= 1
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            self._start_next()

    def _start_next(self) -> None:
        bucket = self._buckets[self._started]
        self._started += 1
        tensor = bucket.flat
        dtype = self._reduce_dtype or tensor.dtype
        if (tensor.device, tensor.dtype) != (self._reduce_on, dtype):
            tensor = bucket.sent = tensor.to(self._reduce_on, dtype)
        bucket.work = dist.all_reduce(tensor, group=self._group, async_op=True)


def _grouped(
    parameters: list[torch.nn.Parameter], first_bytes: int, bucket_bytes: int
) -> list[list[torch.nn.Parameter]]:
    """Parameters of each bucket, in reverse order; each bucket has one dtype."""
    groups: list[list[torch.nn.Parameter]] = []
    filled = 0
    for parameter in reversed(parameters):
        limit = first_bytes if len(groups) == 1 else bucket_bytes
        if not groups or filled >= limit or _dtype(groups[-1][0]) != _dtype(parameter):
            groups.append([])
            filled = 0
        groups[-1].append(parameter)
        filled += parameter.numel() * _dtype(parameter).itemsize
    return groups


def _dtype(parameter: torch.nn.Parameter) -> torch.dtype:
    """Dtype of the gradient of a parameter."""
    return parameter.grad_dtype or parameter.dtype


def _bucket(parameters: list[torch.nn.Parameter]) -> _Bucket:
    first = parameters[0]
    size = sum(p.numel() for p in parameters)
    flat = torch.zeros(size, dtype=_dtype(first), device=first.device)
    views = [
        part.view_as(parameter)
        for parameter, part in zip(
            parameters, flat.split([p.numel() for p in parameters]), strict=True
        )
    ]
    for parameter, view in zip(parameters, views, strict=True):
        parameter.grad = view
    return _Bucket(flat, parameters, views)

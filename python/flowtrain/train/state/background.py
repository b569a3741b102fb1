"""Writes copies of tensors in a thread, while the rank goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from flowtrain.train.control.deadline import UNLIMITED_S
from flowtrain.train.control.store import JobStore
from flowtrain.train.control.world import World


class Background:
    """A thread that does one thing at a time for the checkpoints of a rank.

    Args:
        world: The world of the rank; every rank of it makes this object.
        store: The job's store.

    Attributes:
        group: Group of the thread: collectives of two threads must not meet in one group. None in
            a world of one rank.
    """

    def __init__(self, world: World, store: JobStore) -> None:
        self.group = None
        if world.size > 1:
            self.group = dist.new_group(
                backend="gloo", timeout=timedelta(seconds=UNLIMITED_S), group_desc="checkpoints"
            )
        self._connected = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flowtrain-checkpoint")
        self._pending: Future[None] | None = None
        # It keeps the memory of the copies: to allocate it takes longer than to copy.
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )

    @cached_property
    def store(self) -> JobStore:
        """The store, with a connection of the thread's own."""
        return self._connected.clone()

    def copied(self, state: dict[str, Any]) -> dict[str, Any]:
        """A copy of tensors in host memory, which no later step changes.

        It is valid until the next copy of the same tensors.
        """
        copy: Any = self._stager.stage(state)
        return dict(copy)

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write, once the last write is complete."""
        self.wait()
        self._pending = self._thread.submit(write)

    @property
    def failed(self) -> bool:
        """Whether the last write has failed."""
        pending = self._pending
        return pending is not None and pending.done() and pending.exception() is not None

    def wait(self) -> None:
        """Wait until the last write is complete, and raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

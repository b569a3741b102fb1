"""Bytes that a forward pass leaves in memory: storages that it makes, and that outlive it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Storages(TorchDispatchMode):
    """Counts the bytes of the storages that operators make, for as long as they live.

    Attributes:
        bytes: Of those that live.
        peak: Maximum of `bytes`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {_key(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor) and _key(made) not in given:
                self._add(made.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def gone(_: object) -> None:
            self._known.pop(key, None)
            self.bytes -= size

        self._known[key] = weakref.ref(storage, gone)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def kept_bytes(forward: Callable[[], Any]) -> int:
    """Bytes that are kept for the backward pass of what a function returns.

    What existed before, such as parameters and the inputs, is not counted, whatever keeps it.

    Args:
        forward: Returns tensors; they are dropped, and their graphs are not.
    """
    with Storages() as storages:
        made = [x for x in tree_leaves(forward()) if isinstance(x, torch.Tensor)]
        graph = [tensor.grad_fn for tensor in made]
        del made
        found = storages.bytes
    del graph
    return found

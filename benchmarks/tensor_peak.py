"""Peak bytes of the tensors of a rank in a step; for `debug.fault` of `bench_memory.py`."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flowtrain.train.ranks.rank import Rank

FILE = "tensor_peak.json"


class _Tensors(TorchDispatchMode):
    """Counts the bytes of the storages that operators make, for as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor):
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


def watch() -> None:
    """Write the bytes at the start of each step, and the peak in it, to the run folder."""
    tensors = _Tensors()
    steps: list[tuple[int, int]] = []
    begin = Rank._begin

    def watched(self: Rank, step: int) -> None:
        if steps:
            steps[-1] = (steps[-1][0], tensors.peak)
            (self._context.config.run / FILE).write_text(json.dumps(steps))
        tensors.peak = tensors.bytes
        steps.append((tensors.bytes, tensors.bytes))
        begin(self, step)

    Rank._begin = watched  # type: ignore[method-assign]
    tensors.__enter__()

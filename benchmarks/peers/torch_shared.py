"""A tensor in shared memory through `torch.multiprocessing.Queue`: the bytes are not copied."""

from __future__ import annotations

from typing import Any

from peers.echo import Echo


def serve(there: Any, back: Any) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        back.put(there.get())


class TorchShared(Echo):
    needs = "torch"

    def __init__(self, core: int, item_bytes: int) -> None:
        super().__init__(core, item_bytes)
        import torch
        import torch.multiprocessing as multiprocessing

        context = multiprocessing.get_context("spawn")
        self._there: Any = context.Queue()
        self._back: Any = context.Queue()
        # In shared memory before the timing starts.
        self._tensor = torch.zeros(item_bytes, dtype=torch.uint8).share_memory_()
        self.start(serve, self._there, self._back)
        self.round_trip()

    def round_trip(self) -> None:
        self._there.put(self._tensor)
        self._back.get()

    def stop(self) -> None:
        super().stop()
        for queue in (self._there, self._back):
            queue.cancel_join_thread()
            queue.close()

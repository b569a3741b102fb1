"""`multiprocessing.Queue` of a small tuple."""

from __future__ import annotations

import multiprocessing
from typing import Any

from peers.echo import Echo


def serve(there: Any, back: Any) -> None:
    while True:
        back.put(there.get())


class MpQueue(Echo):
    def __init__(self, core: int, item_bytes: int) -> None:
        super().__init__(core, item_bytes)
        context = multiprocessing.get_context("spawn")
        self._there: Any = context.Queue()
        self._back: Any = context.Queue()
        self.start(serve, self._there, self._back)
        self.round_trip()

    def round_trip(self) -> None:
        self._there.put((1, 2, "item"))
        self._back.get()

    def stop(self) -> None:
        super().stop()
        for queue in (self._there, self._back):
            queue.cancel_join_thread()
            queue.close()

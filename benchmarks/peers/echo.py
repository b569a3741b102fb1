"""Interface of a peer: a second process that sends every item back."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Self


class Echo(ABC):
    """Two processes, the second on its own core, that pass one item back and forth.

    Args:
        core: Core of the second process.
        item_bytes: Size of the item, if the peer copies bytes.
    """

    needs: ClassVar[str | None] = None
    """Module that must be installed."""

    def __init__(self, core: int, item_bytes: int) -> None:
        self.core = core
        self.item_bytes = item_bytes

    @classmethod
    def missing(cls) -> str | None:
        """Why this peer cannot be measured here; None if it can."""
        if cls.needs is None:
            return None
        try:
            importlib.import_module(cls.needs)
        except ImportError as error:
            return f"{error}; run make bench-setup"
        return None

    def start(self, serve: Callable[..., None], *arguments: Any) -> None:
        """Run `serve` in the second process until `stop`."""
        self._peer = multiprocessing.get_context("spawn").Process(
            target=_on_core, args=(self.core, serve, arguments), daemon=True
        )
        self._peer.start()

    @abstractmethod
    def round_trip(self) -> None:
        """Send one item and wait for its answer."""

    def pause(self) -> None:
        """Stop the second process, which may spin, while other peers are measured."""
        assert self._peer.pid is not None
        os.kill(self._peer.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._peer.pid is not None
        os.kill(self._peer.pid, signal.SIGCONT)

    def stop(self) -> None:
        self._peer.kill()
        self._peer.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _on_core(core: int, serve: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.sched_setaffinity(0, {core})
    serve(*arguments)

"""The watcher: ends this process, with the peer's name, when a peer has died or is silent."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

from flowtrain.train.control.heartbeat import Heartbeat
from flowtrain.train.control.job import HOST_LABEL
from flowtrain.train.control.store import Board
from flowtrain_core import LaneInfo, Pool

_GRACE_S = 0.5
_PERIOD_S = 0.2


class Watcher(threading.Thread):
    """Waits for the death of any rank of the job, and for the heartbeat's verdict.

    A signal handler would not run while the main thread is inside a collective, so the watcher
    is a thread, and it ends the whole process.

    Args:
        pool: This rank's handle, in which every rank holds a lane.
        board: A board of this thread's own, where a failing rank leaves its reason.
        heartbeat: This rank's, which finds ranks that live and are silent.
        label: This rank's name.
    """

    def __init__(self, pool: Pool, board: Board, heartbeat: Heartbeat, label: str) -> None:
        super().__init__(name="flowtrain-watcher", daemon=True)
        self._pool = pool
        self._board = board
        self._heartbeat = heartbeat
        self._label = label
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the thread: a thread inside the core must not meet the interpreter's end."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        while not self._stopped.is_set():
            dead = self._pool.wait_dead(timeout_s=_PERIOD_S)
            if self._stopped.is_set():
                return
            if dead is not None:
                self._end(self._died(dead))
            if self._heartbeat.verdict is not None:
                faulthandler.dump_traceback(all_threads=True)
                self._tell(self._heartbeat.verdict)
                self._end(self._heartbeat.verdict)

    def _died(self, dead: LaneInfo) -> str:
        if dead.label == HOST_LABEL:
            Pool.unlink(self._pool.name)  # Its maker can no longer do so.
        if reason := self._reason(dead.label):
            return f"rank {dead.label} (pid {dead.pid}) failed: {reason}"
        return f"rank {dead.label} (pid {dead.pid}) died"

    def _end(self, message: str) -> NoReturn:
        # A rank that reached the same verdict is about to say so itself, and better.
        time.sleep(_GRACE_S)
        with suppress(OSError):  # The disk of the log may be full.
            print(f"flowtrain: {self._label} ends: {message}", file=sys.stderr, flush=True)
        os._exit(1)

    def _tell(self, reason: str) -> None:
        with suppress(Exception):  # The store may be what is lost.
            self._board.put(f"failed/{self._label}", reason)

    def _reason(self, label: str) -> str | None:
        key = f"failed/{label}"
        try:
            if not self._board.has(key):
                return None
            return str(self._board.get(key, timeout_s=1.0, who=label))
        except Exception:  # The store may have died with the rank that hosted it.
            return None

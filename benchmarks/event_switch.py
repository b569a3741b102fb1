"""Writing of events on and off, by blocks of steps; for `debug.fault` of `bench_events.py`."""

from __future__ import annotations

from flowtrain.events import EventFile
from flowtrain.train.ranks.rank import Rank

BLOCK_STEPS = 10


def is_written(step: int) -> bool:
    """Whether events of a step are written: on, off, off, on, so that a drift cancels out."""
    return step // BLOCK_STEPS % 4 in (0, 3)


def switch() -> None:
    """Let this rank write events only in the steps in which they are on."""
    begin = Rank._begin
    files: list[EventFile] = []

    def switched(self: Rank, step: int) -> None:
        begin(self, step)
        log = self._events
        if log._file is not None:
            files[:] = [log._file]
        log._file = files[0] if is_written(step) else None

    Rank._begin = switched  # type: ignore[method-assign]

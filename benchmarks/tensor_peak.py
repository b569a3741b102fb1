"""Peak bytes of the tensors of a rank in a step; for `debug.fault` of `bench_memory.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cost.kept import Storages

from flowtrain.train.ranks.rank import Rank

FILE = "FLOWTRAIN_BENCH_PEAK"
"""Environment variable: the file to write."""


def watch() -> None:
    """Write the bytes at the start of each step, and the peak in it, to a file."""
    tensors = Storages()
    steps: list[tuple[int, int]] = []
    begin = Rank._begin

    def watched(self: Rank, step: int) -> None:
        if steps:
            steps[-1] = (steps[-1][0], tensors.peak)
            Path(os.environ[FILE]).write_text(json.dumps(steps))
        tensors.peak = tensors.bytes
        steps.append((tensors.bytes, tensors.bytes))
        begin(self, step)

    Rank._begin = watched  # type: ignore[method-assign]
    tensors.__enter__()

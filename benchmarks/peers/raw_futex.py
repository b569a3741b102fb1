"""A bare futex in C++, without Python, ring or slab: a lower bound for waking a sleeper."""

from __future__ import annotations

import subprocess
from pathlib import Path

from peers.program import Program

SOURCE = Path(__file__).with_suffix(".cpp")


class RawFutex(Program):
    """The compiled program, started once per call."""

    def __init__(self) -> None:
        super().__init__(SOURCE, options=("-O2",))

    def ages_ns(self, rounds: int, pause_s: float, core: int, sleeper: int) -> list[int]:
        """One-way times to a sleeper on the other core."""
        numbers = [rounds, int(pause_s * 1e6), core, sleeper]
        run = subprocess.run(
            [str(self.program), *map(str, numbers)], capture_output=True, text=True, check=True
        )
        return [int(line) for line in run.stdout.split()]

"""A bare futex in C++, without Python, ring or slab: a lower bound for waking a sleeper."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).with_suffix(".cpp")


class RawFutex:
    """The compiled program; its file lives until the `with` block ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._program = Path(self._folder.name) / "raw_futex"
        subprocess.run(
            ["c++", "-O2", "-std=c++20", str(SOURCE), "-o", str(self._program)], check=True
        )

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("c++") else "no C++ compiler (c++) on PATH"

    def ages_ns(self, rounds: int, pause_s: float, core: int, sleeper: int) -> list[int]:
        """One-way times to a sleeper on the other core."""
        numbers = [rounds, int(pause_s * 1e6), core, sleeper]
        run = subprocess.run(
            [str(self._program), *map(str, numbers)], capture_output=True, text=True, check=True
        )
        return [int(line) for line in run.stdout.split()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

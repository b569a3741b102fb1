"""A C++ program of a benchmark, compiled for as long as it is used."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self


class Program:
    """The file `program`, which lives until the `with` block ends.

    Raises:
        subprocess.CalledProcessError: It does not compile.
    """

    def __init__(self, *sources: Path, options: tuple[str, ...]) -> None:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            self.program = Path(folder) / sources[0].stem
            command = ["c++", "-std=c++20", *map(str, sources), *options, "-o", str(self.program)]
            subprocess.run(command, check=True)
            self._stack = stack.pop_all()

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("c++") else "no C++ compiler (c++) on PATH"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

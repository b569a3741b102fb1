"""Python processes that a test communicates with by lines, and may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from flowtrain_core import Item, Pool

ROOT = Path(__file__).resolve().parents[2]
PRELUDE = "import sys, time\nfrom flowtrain_core import *\n"

Spawn = Callable[..., "Process"]


def in_use(pool: Pool) -> int:
    return sum(segment["in_use_slabs"] for segment in pool.stats()["segments"])


def released(items: Iterable[Item]) -> list[int]:
    """Release items; their keys."""
    keys = []
    for item in items:
        keys.append(item.key)
        item.release()
    return keys


class Process:
    """Python code that runs in a process of its own and communicates by lines."""

    def __init__(self, code: str, *args: object, env: dict[str, str] | None = None) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=(env or os.environ) | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            text=True,
        )

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def tell(self, text: str = "") -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(text + "\n")
        self.popen.stdin.flush()

    def stop(self) -> None:
        """Stop the process, and wait until all its threads have stopped."""
        self.popen.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.popen.pid}/task")
        while any(
            stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in threads.glob("*/stat")
        ):
            time.sleep(0.001)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait(10)

    def wait(self) -> int:
        return self.popen.wait(60)

    def end(self) -> None:
        self.kill()
        for stream in (self.popen.stdin, self.popen.stdout):
            assert stream is not None
            stream.close()

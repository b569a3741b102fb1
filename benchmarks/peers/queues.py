"""Other bounded queues in C++, under the harness of the ring benchmark."""

from __future__ import annotations

import subprocess
from pathlib import Path

from flowtrain.bench.ring import Slice
from peers.program import Program

SOURCE = Path(__file__).with_suffix(".cpp")
CSRC = Path(__file__).resolve().parents[2] / "csrc"
OPTIONS = ("-O3", "-DNDEBUG", "-pthread", f"-I{CSRC}", "-lrt")


class Queues(Program):
    """The compiled program, which measures one slice at a time."""

    def __init__(self) -> None:
        super().__init__(
            SOURCE, CSRC / "base" / "error.cpp", CSRC / "os" / "cores.cpp", options=OPTIONS
        )
        self._process = subprocess.Popen(
            [self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def lacks(self, queue: str) -> str | None:
        """Why a queue cannot be measured; None if it can."""
        if self._ask("has", queue, 0, 0, 0, 0, 0) == "yes":
            return None
        return "its headers are not installed; run make bench-setup"

    def flow(
        self,
        queue: str,
        producers: int,
        consumers: int,
        batch: int,
        seconds: float,
        *,
        pauses: int = 1,
    ) -> Slice:
        """Descriptors of 64 bytes per second; `pauses` are those between two polls of a waiter."""
        return self._slice("flow", queue, producers, consumers, batch, seconds, pauses)

    def round_trip(self, queue: str, seconds: float) -> Slice:
        """Nanoseconds of a round trip through two queues."""
        return self._slice("round_trip", queue, 1, 1, 1, seconds, 1)

    def _slice(self, *question: object) -> Slice:
        value, before, after = map(float, self._ask(*question).split())
        return Slice(value=value, ping_before_ns=before, ping_after_ns=after)

    def _ask(self, *question: object) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, question)) + "\n")
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"the program of queues ended at: {' '.join(map(str, question))}")
        return answer

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        super().__exit__()

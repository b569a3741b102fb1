"""The steps that all contenders are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowtrain.workloads import Workload, preset

OURS = "flowtrain-best"
PLACED = "flowtrain-best, refined=False"
# Samples, ranks, microbatches of a rank.
SCALES = {
    "256/8/4": (256, 8, 4),
    "1024/16/8": (1024, 16, 8),
    "4096/64/8": (4096, 64, 8),
    "16384/512/4": (16384, 512, 4),
    "16384/64/64": (16384, 64, 64),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One step of a load, drawn anew by each seed."""

    part: str
    scale: str
    load: str
    seed: int

    @property
    def samples(self) -> int:
        return SCALES[self.scale][0]

    def draw(self) -> tuple[Workload, dict[str, Any]]:
        """Its samples, and the shape that `schedule` takes.

        The cap is 1.25 times the mean microbatch's tokens, or the longest sample.
        """
        count, ranks, microbatches = SCALES[self.scale]
        work = preset(self.load, count, seed=self.seed)
        mean = work.tokens.sum() / (ranks * microbatches)
        cap = max(int(work.tokens.max()), int(1.25 * mean))
        return work, {"ranks": ranks, "microbatches": microbatches, "max_tokens": cap}

    def __str__(self) -> str:
        return f"{self.part} {self.scale} {self.load} seed {self.seed}"

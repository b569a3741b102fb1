"""Peak bytes of the tensors of a rank, by torch's memory tracker; for `debug.fault`.

The tracker sees the operators below DTensor, and the storages that FSDP2 resizes. While it does,
autograd sums gradients of one parameter out of place: those of chunks of the head have a copy more.
The copy that gloo makes of what it scatters is left out, as NCCL has none.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import _disable_current_modes

from flowtrain.schedule import Action
from flowtrain.train.ranks.rank import Rank

FOLDER = "FLOWTRAIN_BENCH_PEAK"
"""Environment variable: folder that gets a file from each rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """Peak of a rank in a step.

    Attributes:
        start: Bytes at the start of the step: weights and states of the optimizer.
        bytes: Bytes at the peak.
        action: Module and kind of the action in which it is.
    """

    start: int
    bytes: int
    action: str


class _NoModules:
    """In place of the tracker's account by module.

    That refuses a second call of a module in a step, and its hooks keep gradients alive.
    """

    is_bw = False
    parents: tuple[str, ...] = ()

    def register_user_hooks(self, *_: Any) -> None:
        pass

    def clear_user_hooks(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


def watch() -> None:
    """Write the bytes at the start of each step, and the peak of its actions, to a file."""
    tracker: Any = MemTracker()
    tracker._mod_tracker = _NoModules()
    steps: list[dict[str, Any]] = []
    execute, scatter = Rank._execute, dist.reduce_scatter_single

    def unseen(*args: Any, **options: Any) -> Any:
        with _disable_current_modes():
            return scatter(*args, **options)

    def total(rank: Rank, which: str) -> int:
        found: int = tracker.get_tracker_snapshot(which)[rank._context.world.device]["Total"]
        return found

    def watched(self: Rank, action: Action) -> None:
        if not steps:
            for part in self._parts:
                tracker.track_external(part.module.module, part.module.master._stored)
        if action.step == len(steps):
            steps.append({"start": total(self, "current"), "peaks": {}})
        with tracker:
            execute(self, action)
        peaks = steps[min(action.step, len(steps) - 1)]["peaks"]
        name = f"{action.module or 'rank'}.{action.kind}"
        peaks[name] = max(peaks.get(name, 0), total(self, "peak"))
        if action.kind == "forget":
            path = Path(os.environ[FOLDER]) / f"{self._context.world.label}.json"
            path.write_text(json.dumps(steps))

    Rank._execute = watched  # type: ignore[method-assign]
    dist.reduce_scatter_single = unseen


def last_peaks(folder: Path) -> list[Peak]:
    """The peak of each rank in the last step of a run."""
    found = []
    for path in sorted(folder.glob("*.json")):
        step = json.loads(path.read_text())[-1]
        action = max(step["peaks"], key=step["peaks"].get)
        found.append(Peak(start=step["start"], bytes=step["peaks"][action], action=action))
    return found

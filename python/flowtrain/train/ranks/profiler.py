"""A window of steps in torch's profiler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from flowtrain.config.track import TrackConfig
from flowtrain.schedule import Action
from flowtrain.train.state.logs import PROFILE


class Profiler:
    """Traces `track.profile_steps` steps from `track.profile_start` on.

    The trace is `RUN/profile/LABEL.json`, for Perfetto or chrome://tracing.

    Args:
        track: Section `track`.
        run: Folder of the run.
        label: Name of the rank.
    """

    def __init__(self, track: TrackConfig, run: Path, label: str) -> None:
        self._path = run / PROFILE / f"{label}.json"
        self._window = range(0)
        if track.profile_start is not None:
            self._window = range(track.profile_start, track.profile_start + track.profile_steps)
        self._trace: Any = None

    def begin_step(self, step: int) -> None:
        """Called before a step; starts or ends the trace at the edges of the window."""
        if step not in self._window:
            self.close()
        elif self._trace is None:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_initialized():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._trace = torch.profiler.profile(activities=activities)
            self._trace.start()

    def named(self, action: Action) -> AbstractContextManager[None]:
        """Within the block, what a trace records belongs to an action."""
        if self._trace is None:
            return nullcontext()
        return torch.profiler.record_function(str(action.kind))

    def close(self) -> None:
        """Write the trace if there is one."""
        if self._trace is None:
            return
        self._trace.stop()
        self._path.parent.mkdir(exist_ok=True)
        self._trace.export_chrome_trace(str(self._path))
        self._trace = None

"""Clock that divides a pass among labels, on the host or on a CUDA device."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch


class Clock:
    """Adds the time between two calls of `switch` to the label of the first one.

    On a CUDA device it records events on the current stream, and waits for the device in `stop`
    alone, so that kernels queue up as in training. This has not run on a GPU yet.

    Args:
        device: Device whose time is measured.

    Attributes:
        label: The current label.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, Any]] = []
        self.label = ""

    def start(self, label: str) -> None:
        """Begin a pass."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._marks = []
        self.switch(label)

    def switch(self, label: str) -> None:
        """From here on, time belongs to a label."""
        self.label = label
        self._marks.append((label, self._now()))

    def stop(self) -> dict[str, float]:
        """End a pass. Returns the seconds of each label."""
        self._marks.append(("", self._now()))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return _sums(
            (label, self._between(start, end)) for (label, start), (_, end) in pairwise(self._marks)
        )

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        if self._device.type != "cuda":
            return float(end - start)
        return float(start.elapsed_time(end)) / 1e3


def _sums(spans: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for label, seconds in spans:
        sums[label] = sums.get(label, 0.0) + seconds
    return sums

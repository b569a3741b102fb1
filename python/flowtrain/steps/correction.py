"""A change of the costs by which steps are planned: plain data, beside the plans in `plan.log`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from flowtrain.cost.correction import State

_KIND = "correction"


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectionEvent:
    """From a step on, documents of some shapes are planned with other costs."""

    step: int
    """First step that is planned with these factors."""
    state: State
    """State of the correction (`flowtrain.cost.correction`)."""
    factors: Mapping[int, float] = field(default_factory=dict)
    """Factor of the backbone cost of a document, by shape (`flowtrain.cost.slow_shapes.shape_of`).
    All other shapes have a factor of 1."""

    def to_json(self) -> str:
        values = {
            "step": self.step,
            "kind": _KIND,
            "state": self.state,
            "factors": dict(sorted(self.factors.items())),
        }
        return json.dumps(values, separators=(",", ":"))

    @staticmethod
    def is_json_of(line: bytes) -> bool:
        """Whether a line of `plan.log` is an event, and not a plan."""
        return f'"kind":"{_KIND}"'.encode() in line[:64]

    @staticmethod
    def from_json(text: str | bytes) -> CorrectionEvent:
        """Read an event.

        Raises:
            ValueError: It is not the JSON of an event.
        """
        try:
            raw = json.loads(text)
            event = CorrectionEvent(
                step=int(raw["step"]),
                state=raw["state"],
                factors={int(shape): float(f) for shape, f in raw["factors"].items()},
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a correction ({error!r})") from error
        if event.state not in get_args(State):
            raise ValueError(f"state {event.state!r} must be one of {', '.join(get_args(State))}")
        for shape, factor in event.factors.items():
            if not 0 < factor < math.inf:
                raise ValueError(f"factor {factor} of shape {shape} must be above 0, and finite")
        return event

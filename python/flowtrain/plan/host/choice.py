"""A layout that was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.plan.run_layout import RunLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The layout with the shortest estimated step.

    Attributes:
        layout: The layout.
        step_s: Estimated seconds of a step.
        where: What the ranks run on, such as `2 cores`.
        source: What the estimate rests on.
        next_best: The layout with the second shortest step, and its seconds; None if there is no
            other layout.
    """

    layout: RunLayout
    step_s: float
    where: str
    source: str
    next_best: tuple[RunLayout, float] | None

    def __str__(self) -> str:
        text = (
            f"layout {self.layout}: estimated {self.step_s:.3g} s a step on {self.where}, from "
            f"{self.source}"
        )
        if self.next_best is not None:
            layout, seconds = self.next_best
            text += f"; next best {layout}: {seconds:.3g} s"
        return (
            f"{text}; to fix a layout, give flow.ranks, or flow.encoder_ranks and "
            "flow.backbone_ranks"
        )

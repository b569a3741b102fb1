"""A layout that was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.config.layout import RankLayout


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
        recompute: Whether the layout needs `flow.recompute` to fit into memory.
    """

    layout: RankLayout
    step_s: float
    where: str
    source: str
    next_best: tuple[RankLayout, float] | None
    recompute: bool = False

    def __str__(self) -> str:
        recompute = " with flow.recompute" if self.recompute else ""
        text = (
            f"layout {self.layout}{recompute}: estimated {self.step_s:.3g} s a step on "
            f"{self.where}, from {self.source}"
        )
        if self.next_best is not None:
            layout, seconds = self.next_best
            text += f"; next best {layout}: {seconds:.3g} s"
        return (
            f"{text}; to fix a layout, give flow.ranks, or flow.encoder_ranks and "
            "flow.backbone_ranks"
        )

"""Model FLOPs of a step by module, relative to the peak of the ranks that hold it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flowtrain.config.layout import ModuleName, RankLayout
from flowtrain.cost.flops import Grid, train_flops
from flowtrain.events import ACTIVITY_OF_MODULE
from flowtrain.models.family import Family
from flowtrain.steps import StepPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """Peak FLOP/s of the ranks; those that share devices share their peak evenly."""

    all: float
    """Of all ranks of the run."""
    of: Mapping[ModuleName, float]
    """Of those that hold a module."""


class Utilization:
    """Compares the FLOPs of steps with the peak of the ranks, also of each module apart.

    Args:
        layout: Which ranks hold which module.
        peaks: Their peak FLOP/s.
        family: Family of the model.
        trained: Parts of the model that train.
        adapted: Those of them that train by LoRA adapters.
    """

    def __init__(
        self,
        layout: RankLayout,
        peaks: Peaks,
        family: Family,
        *,
        trained: Collection[str],
        adapted: Collection[str],
    ) -> None:
        self.peaks = peaks
        self._world_of = {m: world.name for world in layout.worlds for m in world.modules}

        @functools.cache
        def image_flops(grid: Grid) -> float:
            forward = family.sample_flops(0, [grid], num_targets=0)
            return train_flops(forward, trained, adapted).on("encoder", family.projector_side)

        self._image_flops = image_flops

    def flops(self, plan: StepPlan, *, encoded: float) -> dict[ModuleName, float]:
        """Model FLOPs of a step by module.

        Args:
            plan: The step.
            encoded: Share of its images that were encoded; features of the others were stored.
        """
        grids = (g for rank in plan.documents for slot in rank for doc in slot for g in doc.grids)
        encoder = sum(map(self._image_flops, grids))
        return {"encoder": encoded * encoder, "backbone": plan.flops - encoder}

    def mfu(self, flops: float, seconds: float) -> float:
        """MFU over all ranks."""
        return flops / (seconds * self.peaks.all)

    def by_module(
        self,
        of_module: Mapping[ModuleName, float],
        seconds: float,
        activity: Mapping[str, Mapping[str, float]],
    ) -> dict[ModuleName, dict[str, Any]]:
        """Figures of each module in a step.

        Args:
            of_module: FLOPs of each module, as `flops` returns them.
            seconds: Time of the step.
            activity: Mean seconds of the ranks of each world, by kind of activity.

        Returns:
            By module: `flops`, the model FLOPs; `peak_flops`, the peak of the ranks that hold it;
            `mfu`, the FLOPs over this peak and the time of the step; `pass_mfu`, the same over the
            time in passes of the module alone. None if its ranks report no such time.
        """
        found: dict[ModuleName, dict[str, Any]] = {}
        for module, flops in of_module.items():
            peak = self.peaks.of[module]
            passes = activity.get(self._world_of[module], {}).get(ACTIVITY_OF_MODULE[module])
            found[module] = {
                "flops": flops,
                "peak_flops": peak,
                "mfu": flops / (seconds * peak),
                "pass_mfu": flops / (passes * peak) if passes else None,
            }
        return found

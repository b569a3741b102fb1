"""Builds plans from samples, with the costs of the model and the layout of the ranks."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Literal

from flowtrain.config.model import Part
from flowtrain.cost.flops import train_flops
from flowtrain.data.sample_meta import SampleMeta
from flowtrain.models.family import Family
from flowtrain.steps import Layout, StepPlan, build_step
from flowtrain.train.planning.corrections import PlanCorrections


class PlanBuilder:
    """Builds the plans of one kind, the same for the same samples, layout and corrections.

    Args:
        layout: The ranks, and what they do in a step.
        family: Family of the model, for costs.
        kind: Kind of the plans.
        trained: Parts of the model that train; of no meaning for another kind than "train".
        adapted: Those of them that train by LoRA adapters.
        corrections: Corrects the costs of the backbone; None if they are not corrected.
    """

    def __init__(
        self,
        layout: Layout,
        family: Family,
        kind: Literal["train", "eval", "answer"] = "train",
        *,
        trained: Collection[Part] = (),
        adapted: Collection[str] = (),
        corrections: PlanCorrections | None = None,
    ) -> None:
        self._family = family
        self._kind = kind
        self._corrections = corrections
        self._trained = trained if kind == "train" else None
        self._adapted = adapted
        self._layout = layout
        self._image_cost = functools.cache(family.image_flops)

    def build(
        self, step: int, samples: Sequence[SampleMeta], *, cursor: int, dropped: int
    ) -> StepPlan:
        """The plan of some samples.

        Args:
            step: Number of the plan.
            samples: Its samples.
            cursor: Samples drawn from the data order up to and including this plan.
            dropped: Samples that were drawn for it and left out.
        """
        flops = [
            self._family.sample_flops(s.num_tokens, s.grids, num_targets=s.num_targets)
            for s in samples
        ]
        side = self._family.projector_side
        trained = self._trained
        cost = [f.on("backbone", side) for f in flops]
        if self._corrections is not None:
            cost = self._corrections.corrected(step, samples, cost)
        return build_step(
            step,
            samples,
            cost,
            self._layout,
            kind=self._kind,
            image_cost=self._image_cost,
            image_rows=self._family.image_rows,
            cursor=cursor,
            dropped=dropped,
            truncated=sum(s.fit == "truncated" for s in samples),
            flops=0.0
            if trained is None
            else sum(train_flops(f, trained, self._adapted).total for f in flops),
        )

"""Builds plans from samples, with the costs of the model and the layout of the run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from flowtrain.config.schema import RunConfig
from flowtrain.cost.flops import train_flops
from flowtrain.data.samples import SampleMeta
from flowtrain.models.family import Family
from flowtrain.steps import Layout, Passes, StepPlan, build_step
from flowtrain.train.planning.corrections import PlanCorrections


class PlanBuilder:
    """Builds the plans of one kind, the same for the same configuration.

    Args:
        config: The run.
        family: Family of the model, for costs.
        kind: Kind of the plans.
        corrections: Corrects the costs of the backbone; None if they are not corrected.
    """

    def __init__(
        self,
        config: RunConfig,
        family: Family,
        kind: Literal["train", "eval", "answer"] = "train",
        corrections: PlanCorrections | None = None,
    ) -> None:
        self._family = family
        self._kind = kind
        self._corrections = corrections
        self._trained = config.trained_parts if kind == "train" else None
        self._adapted = config.lora.ranks
        passes = Passes.of_evaluation()
        if self._trained is not None:
            passes = Passes.of(
                config.flow.mode,
                recompute=config.flow.recompute,
                trains_backbone="backbone" in self._trained,
            )
        ranks = config.flow.chosen
        self._layout = Layout(
            encoder_ranks=ranks.encoder_ranks,
            backbone_ranks=ranks.backbone_ranks,
            colocated=ranks.colocated,
            passes=passes,
            microbatch_tokens=config.train.microbatch_tokens,
            item_tokens=config.flow.item_tokens,
            encoder_meets=config.parallel_of("encoder").meets,
            backbone_meets=config.parallel_of("backbone").meets,
            chunk_slots=config.flow.chunk_slots,
        )
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
            else sum(train_flops(f, trained, self._adapted) for f in flops),
        )

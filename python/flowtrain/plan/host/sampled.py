"""Sampled steps of a run, and what each rank of a layout computes in them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flowtrain.config.flow import Mode
from flowtrain.config.layout import ModuleName, RankLayout, WorldLayout
from flowtrain.config.parallel import ParallelConfig
from flowtrain.cost.activations import levels_of
from flowtrain.cost.flops import Grid, Side
from flowtrain.cost.layers import Counts, ForwardFlops, Layer
from flowtrain.cost.step import RankTimes, Row, StepSeconds, step_seconds
from flowtrain.steps.build import Layout, SampleSize, build_step
from flowtrain.steps.passes import Passes
from flowtrain.steps.step import StepPlan


class CountsOf(Protocol):
    """How much of each unit a sample has."""

    def __call__(self, num_tokens: int, grids: Sequence[Grid], *, num_targets: int) -> Counts: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledModel:
    """Layers and sizes of a model, for planning and pricing steps.

    Attributes:
        layers: Its layers.
        counts: How much of each unit a sample has.
        projector_side: On which side the projector is.
        part_bytes: Bytes of the weights of each part that train if the part does.
    """

    layers: Sequence[Layer]
    counts: CountsOf
    projector_side: Side
    part_bytes: Mapping[str, float]


class SampledSteps:
    """Steps of a run.

    Attributes:
        mode: `flow.mode`.
        global_batch: Samples of a step.

    Args:
        model: The model.
        samples: Samples of the steps, in their order; the last step may have fewer.
        global_batch: Samples of a step.
        mode: `flow.mode`.
        recompute: `flow.recompute`.
        trained: Parts that train.
        microbatch_tokens: `train.microbatch_tokens`.
        item_tokens: `flow.item_tokens`.
        parallel: Section `parallel`, of which recomputation counts.
        logit_bytes: `train.logit_bytes`.
    """

    def __init__(
        self,
        model: SampledModel,
        samples: Sequence[SampleSize],
        *,
        global_batch: int,
        mode: Mode,
        recompute: bool,
        trained: Sequence[str],
        microbatch_tokens: int,
        item_tokens: int,
        parallel: ParallelConfig,
        logit_bytes: int,
    ) -> None:
        self._parallel, self._logit_bytes = parallel, logit_bytes
        self.mode, self.global_batch = mode, global_batch
        self._model, self._recompute, self._trained = model, recompute, trained
        self._microbatch_tokens, self._item_tokens = microbatch_tokens, item_tokens
        self._steps = [
            samples[first : first + global_batch] for first in range(0, len(samples), global_batch)
        ]
        flops, side = ForwardFlops(model.layers), model.projector_side
        self._costs = [
            [
                flops(model.counts(s.num_tokens, s.grids, num_targets=s.num_targets)).on(
                    "backbone", side
                )
                for s in step
            ]
            for step in self._steps
        ]
        self._image_counts = functools.cache(lambda grid: model.counts(0, [grid], num_targets=0))
        self._image_cost = functools.cache(
            lambda grid: flops(self._image_counts(grid)).on("encoder", side)
        )

    def plans(self, layout: RankLayout) -> Iterator[StepPlan]:
        """The steps, as a run in this layout plans them."""
        planned = Layout(
            encoder_ranks=layout.encoder_ranks,
            backbone_ranks=layout.backbone_ranks,
            colocated=layout.colocated,
            passes=Passes.of(
                self.mode, recompute=self._recompute, trains_backbone="backbone" in self._trained
            ),
            microbatch_tokens=self._microbatch_tokens,
            item_tokens=self._item_tokens,
        )
        for number, (samples, cost) in enumerate(zip(self._steps, self._costs, strict=True)):
            yield build_step(number, samples, cost, planned, image_cost=self._image_cost, cursor=0)

    def rank_seconds(
        self, plan: StepPlan, world: WorldLayout, rank: int, times: RankTimes
    ) -> StepSeconds:
        """Time of a step of one rank, as `flowtrain.cost.step.step_seconds`.

        Args:
            plan: The step.
            world: World of the rank.
            rank: Its number there.
            times: Times of layers and of the optimizer.
        """
        parts = self._parts(world)
        layers = [layer for layer in self._model.layers if layer.part in parts]
        return step_seconds(
            times,
            layers,
            rank_rows(plan, world.modules, rank, self._image_counts),
            self._trained,
            recompute=self._recompute,
            levels=levels_of(layers, self._parallel),
            logit_bytes=self._logit_bytes,
        )

    def trained_bytes(self, world: WorldLayout) -> float:
        """Bytes of the weights that a rank trains."""
        parts = self._parts(world)
        return sum(self._model.part_bytes[part] for part in self._trained if part in parts)

    def _parts(self, world: WorldLayout) -> set[str]:
        """Parts of the model that the ranks of a world hold."""
        side = self._model.projector_side
        return {*world.modules, *(["projector"] if side in world.modules else [])}


def rank_rows(
    plan: StepPlan,
    modules: Sequence[ModuleName],
    rank: int,
    image_counts: Callable[[Grid], Counts],
) -> list[Row]:
    """Microbatches and images that a rank computes in a step.

    Args:
        plan: The step.
        modules: Modules that the rank holds.
        rank: Its number among the ranks that hold them.
        image_counts: How much of each unit an image has.

    Returns:
        Its microbatches, and a row without documents for its images: those that it encodes, or,
        without the encoder, those that it reads.
    """
    rows = []
    if "backbone" in modules:
        rows = [
            Row(
                documents=[document.num_tokens for document in documents],
                num_targets=sum(document.num_targets for document in documents),
                image_rows=sum(document.image_tokens for document in documents),
            )
            for _, documents in plan.documents_of(rank)
        ]
    encodes = "encoder" in modules
    items = [i for i in plan.items if rank == (i.encoder if encodes else i.reader)]
    calls = [[image_counts(image.grid) for image in item.images] for item in items]
    return [*rows, Row(documents=(), num_targets=0, calls=calls)]

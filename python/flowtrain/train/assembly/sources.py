"""The sources of a run's plans, as its configuration sets them."""

from __future__ import annotations

from typing import Literal

from flowtrain.config.schema import RunConfig
from flowtrain.data.errors import no_sample_fits
from flowtrain.data.order import DrawOrder
from flowtrain.models.family import Family
from flowtrain.steps import Layout, Passes
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.planning.builder import PlanBuilder
from flowtrain.train.planning.corrections import PlanCorrections
from flowtrain.train.planning.evaluations import EvaluationSource
from flowtrain.train.planning.source import PlanSource


def builder_of(
    config: RunConfig,
    family: Family,
    kind: Literal["train", "eval", "answer"] = "train",
    corrections: PlanCorrections | None = None,
) -> PlanBuilder:
    """Builder of the plans of one kind.

    Args:
        config: The run.
        family: Family of its model.
        kind: Kind of the plans.
        corrections: Corrects the costs of the backbone; None if they are not corrected.
    """
    passes = Passes.of_evaluation()
    if kind == "train":
        passes = Passes.of(
            config.flow.mode,
            recompute=config.flow.recompute,
            trains_backbone="backbone" in config.trained_parts,
        )
    ranks = config.flow.chosen
    layout = Layout(
        # Items of elastic ranks must not depend on how many there are.
        encoder_ranks=1 if config.elastic else ranks.encoder_ranks,
        backbone_ranks=ranks.backbone_ranks,
        colocated=ranks.colocated,
        passes=passes,
        microbatch_tokens=config.train.microbatch_tokens,
        item_tokens=config.item_tokens,
        encoder_meets=config.parallel_of("encoder").meets,
        backbone_meets=config.parallel_of("backbone").meets,
        chunk_slots=config.flow.chunk_slots,
    )
    return PlanBuilder(
        layout,
        family,
        kind,
        trained=config.trained_parts,
        adapted=config.lora.ranks,
        corrections=corrections,
    )


def source_of(
    config: RunConfig,
    family: Family,
    *,
    reads: SampleReads,
    order: DrawOrder,
    step: int = 0,
    cursor: int = 0,
    corrections: PlanCorrections | None = None,
) -> PlanSource:
    """Source of the plans of training.

    Args:
        config: The run.
        family: Family of its model.
        reads: Reads of its samples.
        order: Order of the samples.
        step: First step to plan.
        cursor: Number of samples that earlier steps have drawn, including dropped samples.
        corrections: As for `builder_of`.
    """
    return PlanSource(
        builder_of(config, family, corrections=corrections),
        reads=reads,
        order=order,
        batch=config.train.global_batch,
        steps=config.train.steps,
        # The number of samples of a stream changes.
        none_fits=lambda: no_sample_fits(
            config.data, order.num_samples, max_tokens=config.train.microbatch_tokens
        ),
        step=step,
        cursor=cursor,
    )


def evaluations_of(
    config: RunConfig, family: Family, *, reads: SampleReads, num_samples: int, first: int = 0
) -> EvaluationSource:
    """Source of the plans of evaluations.

    Args:
        config: The run, with held-out samples.
        family: Family of its model.
        reads: Reads of the held-out samples.
        num_samples: Number of held-out samples.
        first: First step that is trained; earlier steps have been evaluated.
    """
    held_out = config.held_out
    assert held_out is not None
    used = min(num_samples, config.eval.samples or num_samples)
    return EvaluationSource(
        losses=builder_of(config, family, "eval"),
        answers=builder_of(config, family, "answer"),
        reads=reads,
        num_samples=used,
        num_answers=min(config.eval.answers, used),
        batch=config.train.global_batch,
        evaluations=sum(map(config.is_evaluated, range(first, config.train.steps))),
        none_fits=lambda: no_sample_fits(held_out, used, max_tokens=config.train.microbatch_tokens),
    )

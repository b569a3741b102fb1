"""The planners of a run, threads of the rank that hosts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from flowtrain.config.schema import RunConfig
from flowtrain.data.mixture import sample_order
from flowtrain.data.order import DrawOrder
from flowtrain.data.records import Dataset
from flowtrain.steps import FIRST_EVALUATION
from flowtrain.train.assembly.sources import evaluations_of, source_of
from flowtrain.train.control.board import Board
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.input.stream import StreamOrder
from flowtrain.train.planning.corrections import PlanCorrections, corrections_of
from flowtrain.train.planning.planner import PlannedStep, Planner
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.state.logs import PLANS
from flowtrain.train.state.resume import data_state, held_out_state


def training_planner(
    config: RunConfig,
    context: RankContext,
    reads: Mapping[str, SampleReads],
    stream: SampleReads | None,
    *,
    first: int,
    cursor: int,
) -> Planner:
    """The planner of the training; the caller starts it.

    Args:
        config: The run.
        context: Connections and services of this rank.
        reads: Reads of the samples of training and evaluations.
        stream: Reads of the stream, if the run has one.
        first: First step.
        cursor: Samples that the steps before have drawn.
    """
    log = config.run / PLANS
    corrections = corrections_of(config.flow, log, first=first)
    source = source_of(
        config,
        context.family,
        reads=reads["train"],
        order=_order(config, stream, cursor),
        step=first,
        cursor=cursor,
        corrections=corrections,
    )
    return _planner(context, source, log=log, first=first, corrections=corrections)


def evaluation_planner(
    config: RunConfig, context: RankContext, reads: Mapping[str, SampleReads], *, first: int
) -> Planner | None:
    """The planner of the evaluations after step `first` and later; None without any.

    Its arguments are as for `training_planner`, and the caller starts it, too.
    """
    if (held_out := config.held_out) is None:
        return None
    source = evaluations_of(
        config,
        context.family,
        reads=reads["eval"],
        num_samples=len(Dataset(held_out, held_out_state(config.run))),
        first=first,
    )
    return _planner(context, source, log=None, first=FIRST_EVALUATION)


def _order(config: RunConfig, stream: SampleReads | None, cursor: int) -> DrawOrder:
    if stream is not None:
        return StreamOrder(stream, batch=config.train.global_batch, cursor=cursor)
    dataset = Dataset(config.data, data_state(config.run))
    return sample_order(config.data, dataset, seed=config.train.seed)


def _planner(
    context: RankContext,
    source: Iterable[PlannedStep],
    *,
    log: Path | None,
    first: int,
    corrections: PlanCorrections | None = None,
) -> Planner:
    store = context.store.clone()
    return Planner(
        source,
        store=store,
        log=log,
        need=context.segments.need,
        made=context.plans.made,
        activity=context.activity,
        ahead=context.flow.plan_ahead,
        first=first,
        corrections=corrections,
        opened=None if context.board is None else Board(store, first=first).open,
    )

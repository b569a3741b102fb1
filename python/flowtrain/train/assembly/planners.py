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
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.input.stream import StreamOrder
from flowtrain.train.planning.corrections import PlanCorrections, corrections_of
from flowtrain.train.planning.planner import PlannedStep, Planner
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.state.logs import PLANS
from flowtrain.train.state.resume import data_state, held_out_state


class Planners:
    """Makes the planners; the caller starts them.

    Args:
        config: The run.
        context: Connections and services of this rank.
        reads: Reads of the samples of training and evaluations.
        stream: Reads of the stream, if the run has one.
    """

    def __init__(
        self,
        config: RunConfig,
        context: RankContext,
        reads: Mapping[str, SampleReads],
        stream: SampleReads | None,
    ) -> None:
        self._config = config
        self._context = context
        self._reads = reads
        self._stream = stream

    def of_training(self, *, first: int, cursor: int) -> Planner:
        """The planner of the training.

        Args:
            first: First step.
            cursor: Samples that the steps before have drawn.
        """
        log = self._config.run / PLANS
        corrections = corrections_of(self._config.flow, log, first=first)
        source = source_of(
            self._config,
            self._context.family,
            reads=self._reads["train"],
            order=self._order(cursor),
            step=first,
            cursor=cursor,
            corrections=corrections,
        )
        return self._planner(source, log=log, first=first, corrections=corrections)

    def of_evaluations(self, *, first: int) -> Planner | None:
        """The planner of the evaluations after step `first` and later; None without any."""
        held_out = self._config.held_out
        if held_out is None:
            return None
        source = evaluations_of(
            self._config,
            self._context.family,
            reads=self._reads["eval"],
            num_samples=len(Dataset(held_out, held_out_state(self._config.run))),
            first=first,
        )
        return self._planner(source, log=None, first=FIRST_EVALUATION)

    def _order(self, cursor: int) -> DrawOrder:
        if self._stream is not None:
            batch = self._config.train.global_batch
            return StreamOrder(self._stream, batch=batch, cursor=cursor)
        data = self._config.data
        dataset = Dataset(data, data_state(self._config.run))
        return sample_order(data, dataset, seed=self._config.train.seed)

    def _planner(
        self,
        source: Iterable[PlannedStep],
        *,
        log: Path | None,
        first: int,
        corrections: PlanCorrections | None = None,
    ) -> Planner:
        context = self._context
        return Planner(
            source,
            store=context.store.clone(),
            log=log,
            need=context.segments.need,
            made=context.plans.made,
            activity=context.activity,
            ahead=context.flow.plan_ahead,
            first=first,
            corrections=corrections,
        )

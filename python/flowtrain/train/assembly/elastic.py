"""The process of an encoder rank that comes and goes."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from types import FrameType

from flowtrain.error_texts import reason_of
from flowtrain.train.assembly.build import encoder_part, explained
from flowtrain.train.assembly.context import context_of
from flowtrain.train.assembly.events import record_events
from flowtrain.train.assembly.modules import begin_modules, build_module
from flowtrain.train.assembly.process import RankProcess
from flowtrain.train.control.job import FIRST_STEP, LAUNCHER_PID, READY
from flowtrain.train.control.world import World
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.elastic import ElasticEncoder
from flowtrain.train.ranks.open_plans import OpenPlans
from flowtrain.train.ranks.profiler import Profiler
from flowtrain.train.ranks.run_ahead import RunAhead
from flowtrain.train.ranks.step import Delays
from flowtrain.train.state.checkpoint_files import CheckpointError, latest
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.resume import check_model
from flowtrain.train.state.run_folder import write_edges

_TRIES = 3


class ElasticProcess(RankProcess):
    """Joins the job as an encoder rank that may leave before its end; see `RankProcess`.

    Attributes:
        joins: Whether a running job is joined, which goes on if this rank fails.
    """

    joins = False
    _leave_at: float | None = None
    _encoder: ElasticEncoder | None = None

    def _run(self) -> None:
        membership, config = self.membership, self.config
        assert membership.seat is not None
        if LAUNCHER_PID in os.environ:
            signal.signal(signal.SIGTERM, self._leave)
        self.first = membership.store.get(FIRST_STEP, writer="the launcher")
        device = self._device()
        # No other rank takes part in what it does.
        world = World(self.world.name, 0, 1, device=device, activity=membership.activity)
        context = context_of(config, membership, world, first=self.first)
        assert context.board is not None
        modules: dict[str, ModuleState] = {"encoder": build_module("encoder", config, context)}
        self._begin(context, modules)
        with self._resources:
            record_events(membership, config, self._workers, self._resources)
            part = encoder_part(
                config, context, modules["encoder"], self._reads, records=None, gradients=None
            )
            check_model(config)
            evaluated = [s for s in range(self.first, config.train.steps) if config.is_evaluated(s)]
            self._encoder = ElasticEncoder(
                context,
                part,
                membership.seat,
                context.board,
                OpenPlans(context.store, context.board, evaluated),
                RunAhead(
                    context.space,
                    config.pool,
                    ranks=context.layout.encoder_ranks,
                    plan_ahead=config.flow.plan_ahead,
                ),
                readers=membership.labels,
                ahead=max(1, config.data.workers),
                profiler=Profiler(config.track, config.run, membership.label),
                delays=Delays(
                    config.debug.delay_ms / 1e3, f"{config.train.seed}/{membership.label}"
                ),
                explained=partial(explained, config, world),
            )
            self._encoder.leave_at = self._leave_at
            membership.store.put(f"{READY}/{membership.label}", True)
            try:
                self._encoder.run()
            except Exception as error:
                if not self.joins:
                    membership.abandon(reason_of(error))
                raise
            write_edges(config.run, membership.label, self._encoder.edges())
        membership.unwatch()

    def _begin(self, context: RankContext, modules: dict[str, ModuleState]) -> None:
        """Take the weights of the newest checkpoint, if it has the encoder."""
        for tries in range(_TRIES):
            try:
                begin_modules(self.config, context, modules, latest(self.config.run))
                return
            except CheckpointError:
                # Meanwhile the run may have removed it, and have saved another.
                if tries == _TRIES - 1:
                    raise

    def _leave(self, _number: int, _frame: FrameType | None) -> None:
        """Handler of a signal to leave."""
        self._leave_at = time.monotonic()
        if self._encoder is not None:
            self._encoder.leave_at = self._leave_at

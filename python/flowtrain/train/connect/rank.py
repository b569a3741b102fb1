"""The rank that a loop is: it hosts the job, plans, and takes part in every step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flowtrain.config.load import load
from flowtrain.config.schema import RunConfig
from flowtrain.data.workers import WorkerPool
from flowtrain.error_texts import reason_of
from flowtrain.events import next_attempt
from flowtrain.schedule import Action, roles_of, slots_of
from flowtrain.train.assembly.build import encoder_part, rank_of
from flowtrain.train.assembly.context import context_of
from flowtrain.train.assembly.events import record_events
from flowtrain.train.assembly.modules import begin_modules, build_module
from flowtrain.train.assembly.planners import evaluation_planner, training_planner
from flowtrain.train.assembly.reads import reading_of, reads_of
from flowtrain.train.connect.first import from_first
from flowtrain.train.connect.model import LoopModel
from flowtrain.train.connect.part import LoopPart
from flowtrain.train.control.host import JobHost
from flowtrain.train.control.job import READY, Job
from flowtrain.train.control.world import World
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.input.workers import reads_samples
from flowtrain.train.planning.planner import Planner
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.device import register
from flowtrain.train.ranks.evaluations import Evaluation
from flowtrain.train.ranks.membership import Membership
from flowtrain.train.ranks.rank import Rank
from flowtrain.train.state import atomic
from flowtrain.train.state.checkpoint_files import latest, read_meta
from flowtrain.train.state.ending import COMPLETE, failed, record_end, record_start
from flowtrain.train.state.job_file import write_job
from flowtrain.train.state.logs import EVALUATIONS, POOL, Log
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.resume import check_model
from flowtrain.train.state.run_folder import open_run, write_edges
from flowtrain_core import PoolTimeout

_LEAVE_S = 10.0


class LoopRank:
    """A rank of a job, which the first of them hosts.

    It has the backbone. The encoder is that of other processes, or colocated.

    Args:
        make: Makes the configuration of the run, on the first rank alone.
        world: World of the loop's ranks, `backbone` or `colocated`.
        loop: The loop's ranks, and the model without its tower.
        optimizer: Its optimizer.
        resume: Go on from the last checkpoint of the folder, if there is one.
        rate: The learning rate of the encoder in the present step; None if it does not train.

    Attributes:
        config: The run.
        part: Prepares the microbatches.
        update: Ends the steps.
        evaluation: Result of the last evaluation, and the step after which it was made.

    Raises:
        ConfigError: The folder of the run is in use, or holds a run.
        DataError: The samples cannot be used.
        JobFailed: No encoder rank has come, or the first rank has failed.
    """

    def __init__(
        self,
        make: Callable[[], RunConfig],
        world: str,
        loop: LoopModel,
        optimizer: torch.optim.Optimizer,
        *,
        resume: bool,
        rate: Callable[[], float] | None,
    ) -> None:
        self._world = world
        self._loop = loop
        self._process = os.getpid()
        self._resources = ExitStack()
        self._membership: Membership | None = None
        self._is_over = False
        self._hosts = False
        self.evaluation: tuple[int, Evaluation] | None = None
        try:
            found = from_first(loop, f"{world}.0", partial(self._hosted, make, resume=resume))
            if loop.rank != 0:
                self.config = load(Path(found["run"]) / "config.yaml")
            config, resume = self.config, found["resume"]
            self._log = Log(config.run / EVALUATIONS)
            job = Job(found["address"], found["nonce"])
            self._checkpoint = latest(config.run) if resume else None
            self._meta = None if self._checkpoint is None else read_meta(self._checkpoint)
            self._workers = self._started_workers()
            self._membership = membership = self._joined(job)
            workers = [] if self._workers is None else [self._workers]
            record_events(membership, self.config, workers, self._resources)
            self._rank = self._built(membership, optimizer, rate)
            self.update = self._rank.update
            membership.meet(READY)
        except BaseException as error:
            self.close(error)
            raise

    def actions(self) -> Iterator[Action]:
        """The actions of this rank, each before it is executed; at the end it has left the job.

        Raises:
            JobFailed: An encoder rank has ended or no longer answers.
            PlanError: A step cannot be planned.
        """
        membership = self._membership
        assert membership is not None
        yield from self._rank.actions(self.first)
        edges = self._rank.edges()
        membership.meet("done")
        self._plans.check()
        write_edges(self.config.run, membership.label, edges)
        if self._hosts:
            self._tell_left_out()
        self._end(COMPLETE)

    def _tell_left_out(self) -> None:
        """Say how many samples were not trained as they are: a loop has no log that does."""
        if counts := [f"{n:,} {how}" for how, n in self.update.left_out.items() if n]:
            print(
                f"flowtrain: samples of this loop: {', '.join(counts)}; `flowtrain data check` "
                "names them",
                file=sys.stderr,
                flush=True,
            )

    @contextmanager
    def computes(self, action: Action) -> Iterator[None]:
        """Within the block, the loop computes forward and backward of a microbatch.

        Args:
            action: Its backward.
        """
        assert self._membership is not None
        events = self._membership.activity.events
        events.begin_action(action)
        try:
            yield
        finally:
            events.end(last=action.last)

    def size_of(self, step: int) -> tuple[int, int]:
        """Microbatches of this rank in a step, and its target tokens over all ranks."""
        plan = self._plans.get(step)
        return len(slots_of(plan, self._role)), plan.num_targets

    def close(self, error: BaseException | None) -> None:
        """Close the job on all sides; a second call does nothing, nor one in a forked child.

        Args:
            error: Why, if it is not complete.
        """
        if self._is_over or os.getpid() != self._process:
            return
        reason = "its loop was left before the last step"
        if error is not None:
            reason = reason_of(error)
        if self._membership is not None:
            self._membership.abandon(reason)
        self._end(failed(reason))

    def _end(self, text: str) -> None:
        """Take the rank down, whose run has ended in this way."""
        self._is_over = True
        if self._hosts:
            record_end(self.config.run, text)
        self._resources.close()

    def failure(self) -> str | None:
        """Why the job has failed; None if it has not, after a short wait."""
        if self._membership is None or os.getpid() != self._process:
            return None
        return self._membership.failure()

    @property
    def first(self) -> int:
        """The first step."""
        return 0 if self._meta is None else self._meta.step + 1

    def _hosted(self, make: Callable[[], RunConfig], *, resume: bool) -> dict[str, Any]:
        """Host the job; return where it is."""
        self.config = config = make()
        first = self._resources.enter_context(open_run(config, resume=resume, logs_steps=False))
        self._hosts = True
        record_start(config.run)
        host = JobHost(
            config.flow.chosen,
            first=first,
            attempt=next_attempt(config.run),
            cells=2 * config.pool.max_cells,
            port=config.flow.port,
            timeout_s=config.flow.start_timeout_s,
        )
        self._resources.callback(self._end_host, host)
        atomic.write_text(config.run / POOL, host.job.pool + "\n")
        found = write_job(config.run, host.job, resume=resume)
        if not config.flow.chosen.colocated:
            waits = f"waits for encoder ranks: flowtrain encoder --job {config.run}"
            print(f"flowtrain: the loop {waits}", file=sys.stderr, flush=True)
        return found

    def _end_host(self, host: JobHost) -> None:
        """Remove the pool once the encoder ranks have left it."""
        host.wait_left(self.config.flow.chosen.labels, timeout_s=_LEAVE_S)
        with suppress(PoolTimeout):  # A rank that is stopped keeps what it has mapped.
            host.close()

    def _started_workers(self) -> WorkerPool | None:
        """The workers of this rank: processes for images, which a thread would slow the loop with.

        Texts and sizes alone, which the planner of the first rank needs, are read in a thread.
        """
        config, layout = self.config, self.config.flow.chosen
        if not reads_samples(layout, self._world, self._loop.rank):
            return None
        workers = WorkerPool(reading_of(config), config.data.workers if layout.colocated else 0)
        return self._resources.enter_context(workers)

    def _joined(self, job: Job) -> Membership:
        flow = self.config.flow
        membership = Membership(
            flow.chosen,
            self._world,
            self._loop.rank,
            job,
            timeout_s=flow.timeout_s,
            start_timeout_s=flow.start_timeout_s,
        )
        self._resources.callback(membership.leave)
        self._resources.callback(membership.unwatch)  # First: Ctrl-C may come while it starts.
        membership.watch()
        return membership

    def _built(
        self,
        membership: Membership,
        optimizer: torch.optim.Optimizer,
        rate: Callable[[], float] | None,
    ) -> Rank:
        config, loop = self.config, self._loop
        register(membership.pool, loop.device)
        world = World(
            self._world,
            loop.rank,
            loop.size,
            device=loop.device,
            activity=membership.activity,
            reduce_on=loop.reduce_on,
            makes_groups=False,
        )
        context = context_of(config, membership, world, first=self.first)
        self._plans = context.plans
        reads = {} if self._workers is None else reads_of(config, self._workers)
        planner, eval_planner = None, None
        if world.hosts_planner:
            planner, eval_planner = self._planners(context, reads)
        [self._role] = [r for r in roles_of(config) if r.label == membership.label]
        backbone = ModuleState(
            loop.model, lambda _: True, context.family.part_of, optimizer=optimizer
        )
        modules = {"backbone": backbone}
        records, gradients = context.loopback(), context.loopback()
        encoder = None
        if self._role.encoder:
            modules["encoder"] = build_module("encoder", config, context)
            encoder = encoder_part(
                config,
                context,
                modules["encoder"],
                reads,
                records=records,
                gradients=gradients,
            )
        checkpoints = begin_modules(config, context, modules, self._checkpoint)
        self.part = LoopPart(
            context,
            backbone,
            receiver=context.receiver("backbone", records),
            sender=context.sender("encoder", gradients),
            meets=False,
            answers=None,
        )
        check_model(config)
        return rank_of(
            config,
            context,
            self._role,
            checkpoints,
            encoder=encoder,
            backbone=self.part,
            planner=planner,
            eval_planner=eval_planner,
            rate=rate,
            evaluated=self._evaluated,
        )

    def _evaluated(self, step: int, evaluation: Evaluation | None) -> None:
        """Keep an evaluation, and log it; a loop has none that is left out."""
        if evaluation is None:
            return
        self.evaluation = step, evaluation
        if self._hosts:
            evaluation.write(self._log, step)

    def _planners(
        self, context: RankContext, reads: Mapping[str, SampleReads]
    ) -> tuple[Planner, Planner | None]:
        """The planners of steps and of evaluations, if there are any; they have started."""
        config, workers = self.config, self._workers
        assert workers is not None
        cursor = 0 if self._meta is None else self._meta.cursor
        planner = training_planner(config, context, reads, None, first=self.first, cursor=cursor)
        evaluations = evaluation_planner(config, context, reads, first=self.first)
        started = [each for each in (planner, evaluations) if each is not None]
        for each in started:
            each.start()
            self._resources.callback(each.join)
        self._resources.callback(workers.close)  # So that they wait for no read.
        for each in started:
            self._resources.callback(each.stop)
        return planner, evaluations

"""A worker: sets up one rank and runs it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

import torch
import torch.distributed as dist

from flowtrain import parent
from flowtrain.config.schema import RunConfig
from flowtrain.data.workers import WorkerPool
from flowtrain.models import varlen
from flowtrain.models.dtypes import DTYPES
from flowtrain.signals import STOPS
from flowtrain.train.assembly.build import build_rank
from flowtrain.train.assembly.context import context_of
from flowtrain.train.assembly.events import record_events
from flowtrain.train.assembly.modules import begin_modules, build_module
from flowtrain.train.assembly.reads import reads_of
from flowtrain.train.control.ending import EndOfProcess
from flowtrain.train.control.job import FIRST_STEP, LAUNCHER_PID, ON_HOST, READY, Job
from flowtrain.train.control.process_group import start_world
from flowtrain.train.control.threads import rank_threads
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.device import choose_device, register
from flowtrain.train.ranks.membership import Membership
from flowtrain.train.state.checkpoint_files import CheckpointError, latest, read_meta
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.resume import check_model
from flowtrain.train.state.run_folder import write_edges


class RankProcess:
    """Joins the job as one rank, sets the rank up, runs it, and takes it down.

    Args:
        config: The run.
        world: `encoder`, `backbone`, or `colocated`.
        rank: Rank in that world.
        job: Where the job is.
        resume: Resume from the latest checkpoint.
        workers: Workers of this rank, which it closes; see `workers_of`.
        stream: Reader of the stream, which it closes; see `stream_of`.
        interface: Address of this host that ranks on other hosts reach; empty if there are none.
        on_host: Name of this host for them.
    """

    def __init__(
        self,
        config: RunConfig,
        world: str,
        rank: int,
        job: Job,
        *,
        resume: bool,
        workers: WorkerPool | None = None,
        stream: WorkerPool | None = None,
        interface: str = "",
        on_host: str = "",
    ) -> None:
        self.config = config
        self.rank = rank
        self._interface = interface
        self._resources = ExitStack()
        self._reads: dict[str, SampleReads] = {}
        self._workers = [pool for pool in (workers, stream) if pool is not None]
        if workers is not None:
            self._resources.enter_context(workers)
            self._reads = reads_of(config, workers)
        self._stream: SampleReads | None = None
        if stream is not None:
            self._resources.enter_context(stream)
            timeout_s = config.flow.timeout_s
            self._stream = SampleReads(stream, config.data.name, timeout_s=timeout_s)
        flow = config.flow
        self.membership = Membership(
            flow.chosen,
            world,
            rank,
            job,
            timeout_s=flow.timeout_s,
            start_timeout_s=flow.start_timeout_s,
            ending=EndOfProcess(f"{world}.{rank}"),
            elastic=config.elastic,
        )
        if interface:
            self.membership.store.put(f"{ON_HOST}/{self.membership.label}", on_host)
        self.world = self.membership.world
        self.checkpoint = latest(config.run) if resume else None
        self.first = 0
        self.cursor = 0
        if self.checkpoint is not None:
            meta = read_meta(self.checkpoint)
            self.first, self.cursor = meta.step + 1, meta.cursor

    def run(self) -> None:
        """Run the rank to its end."""
        self.membership.watch()
        if self.membership.host_pid == os.getppid():
            # From here on the watcher notices the launcher's death, and can report it.
            parent.outlive()
        with _stops_passed_on(self.membership.ask_for_end):
            self._run()
        self.membership.leave()

    def _run(self) -> None:
        """Set the rank up, run it, and take it down."""
        membership = self.membership
        self._check_first()
        context = self._context()
        modules: dict[str, ModuleState] = {
            name: build_module(name, self.config, context) for name in self.world.modules
        }
        checkpoints = begin_modules(self.config, context, modules, self.checkpoint)
        with self._resources:
            record_events(membership, self.config, self._workers, self._resources)
            rank = build_rank(
                self.config,
                context,
                modules,
                checkpoints,
                self._reads,
                self._stream,
                first=self.first,
                cursor=self.cursor,
                resources=self._resources,
            )
            check_model(self.config)
            membership.meet(READY)
            try:
                rank.run(self.first)
            except Exception:
                # The steps before this one must not fail: other ranks may still execute them.
                with suppress(Exception):
                    context.plans.wait_for_others()
                with suppress(Exception):
                    checkpoints.wait()
                raise
            edges = rank.edges()
            membership.meet("done")
            context.plans.check()
            write_edges(self.config.run, membership.label, edges)
        membership.unwatch()
        dist.destroy_process_group()

    def _context(self) -> RankContext:
        membership = self.membership
        device = self._device()
        world = start_world(
            self.world.name,
            self.rank,
            self.world.size,
            store=membership.store,
            device=device,
            activity=membership.activity,
            interface=self._interface,
        )
        return context_of(self.config, membership, world, first=self.first)

    def _device(self) -> torch.device:
        train, flow = self.config.train, self.config.flow
        torch.set_num_threads(rank_threads(train.threads, ranks=len(flow.chosen.labels)))
        # How many ranks of the other world are on this host is not known where there are several.
        is_second = self.world.name == "backbone" and not self._interface
        first = flow.chosen.encoder_ranks if is_second else 0
        device = choose_device(self.config.model.device, self.rank, first=first)
        attention = varlen.named(device, DTYPES[self.config.model.pass_dtype])
        for line in filter(None, (register(self.membership.pool, device), attention)):
            # No `flowtrain: ` in front: the launcher takes such lines for the reason of an end.
            print(f"{self.membership.label}: {line}", file=sys.stderr, flush=True)
        return device

    def _check_first(self) -> None:
        """Refuse to start at another step than the launcher, which has cut the logs to its step.

        Raises:
            CheckpointError: The steps differ.
        """
        first = self.membership.store.get(FIRST_STEP, writer="the launcher")
        if self.first != first:
            raise CheckpointError(
                f"{self.config.run / 'checkpoints'}: {self.membership.label} would start at step "
                f"{self.first} ({self.checkpoint or 'no checkpoint'}), and the launcher at step "
                f"{first}: a rank of an earlier start has saved since, or the rank was not given "
                "the launcher's --resume; start it again with --resume once no other rank runs"
            )


@contextmanager
def _stops_passed_on(ask_for_end: Callable[[int], None]) -> Iterator[None]:
    """Within the block, signals to stop ask the launcher, unless it gets them itself."""
    if LAUNCHER_PID in os.environ:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set handlers.
        return

    def ask(number: int, _frame: FrameType | None) -> None:
        ask_for_end(number)

    # torchrun and schedulers send these to each rank that they started. They send some twice, and
    # kill a rank that takes too long, so that a second one has no meaning.
    handlers = {number: signal.signal(number, ask) for number in STOPS}
    yield
    # After an error they stay, as the process still tells why it ends.
    for number, handler in handlers.items():
        signal.signal(number, handler)

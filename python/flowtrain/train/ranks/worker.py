"""The process of one rank: `python -m flowtrain.train.ranks.worker`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from flowtrain import parent
from flowtrain.config.load import load
from flowtrain.config.schema import ConfigError, RunConfig
from flowtrain.data.jsonl import FileState, JsonlFile
from flowtrain.data.samples import SampleReader
from flowtrain.data.workers import ReaderPool
from flowtrain.models.adapter import VLMAdapter, adapter_for
from flowtrain.plan import Space
from flowtrain.train.control.heartbeat import Activity, Heartbeat
from flowtrain.train.control.job import FIRST, LAUNCHER, Job
from flowtrain.train.control.store import Board
from flowtrain.train.control.watcher import Watcher
from flowtrain.train.control.world import World
from flowtrain.train.input.prefetch import Prefetch
from flowtrain.train.input.reads import Reads
from flowtrain.train.planning.planner import Planner, Plans, PlanSource
from flowtrain.train.ranks.backbone import BackboneRank, wanted_texts
from flowtrain.train.ranks.context import DTYPES, Module, Seat
from flowtrain.train.ranks.device import choose_device, register
from flowtrain.train.ranks.encoder import EncoderRank, wanted_pixels
from flowtrain.train.ranks.hook import load_hook
from flowtrain.train.ranks.metrics import Metrics
from flowtrain.train.ranks.peak import job_peak_flops
from flowtrain.train.state.checkpoint import CheckpointError, Checkpoints, Mark, latest, read_mark
from flowtrain.train.state.resume import check_model, data_state
from flowtrain.train.state.run_folder import note_edges
from flowtrain_core import Pool

_FAREWELL_S = 1.5


class Worker:
    """Sets one rank up, runs it, and takes it down.

    Args:
        config: The run.
        world: `encoder` or `backbone`.
        rank: Rank in that world.
        job: Where the job is.
        resume: Go on from the latest checkpoint.
    """

    def __init__(self, config: RunConfig, world: str, rank: int, job: Job, *, resume: bool) -> None:
        self.config = config
        self.name = world
        self.rank = rank
        self.label = f"{world}.{rank}"
        flow = config.flow
        self.labels = [f"encoder.{r}" for r in range(flow.encoders)]
        self.labels += [f"backbone.{r}" for r in range(flow.backbones)]
        if self.label not in self.labels:
            # Refused before it joins: the end of a rank that has joined ends the run.
            raise ConfigError(
                f"RANK={rank}: {self.label} is not a rank of the job, which has "
                f"flow.encoders={flow.encoders} and flow.backbones={flow.backbones}; start as many"
            )
        self.activity = Activity()
        self.board = Board(
            job.store, job.nonce, timeout_s=flow.start_deadline_s, activity=self.activity
        )
        if not self.board.claim(self.label):
            raise RuntimeError(f"{self.label} has joined already; start each command once")
        self.pool = Pool.open(job.pool, label=self.label, timeout_s=flow.start_deadline_s)
        self.heartbeat = Heartbeat(
            self.activity,
            self.board.clone(),
            self.label,
            self.labels,
            deadline_s=flow.deadline_s,
            start_deadline_s=flow.start_deadline_s,
        )
        self.watcher = Watcher(self.pool, self.board.clone(), self.heartbeat, self.label)
        self.checkpoint = latest(config.run) if resume else None
        self._resources = ExitStack()
        self.mark: Mark | None = None
        self.first = 0
        self.cursor = 0
        if self.checkpoint is not None:
            self.mark = read_mark(self.checkpoint)
            self.first = self.mark.step + 1
            self.cursor = self.mark.cursor

    def run(self) -> None:
        self.heartbeat.start()
        self.watcher.start()
        if LAUNCHER in os.environ:
            # From here on the watcher sees its end, and this rank can say so.
            parent.outlive()
        self._check_first()
        device = self._device()
        flow = self.config.flow
        size = flow.encoders if self.name == "encoder" else flow.backbones
        world = World(
            self.name,
            self.rank,
            size,
            board=self.board,
            device=device,
            activity=self.activity,
        )
        adapter = adapter_for(self.config.model.folder)
        frozen = flow.mode == "frozen"
        space = Space(
            slab_bytes=self.config.pool.slab_bytes,
            row_bytes=adapter.seam_width * DTYPES[self.config.model.dtype].itemsize,
            trained=not frozen,
            depth=max(1, flow.staleness),
        )
        seat = Seat(
            config=self.config,
            world=world,
            board=self.board,
            pool=self.pool,
            activity=self.activity,
            adapter=adapter,
            plans=Plans(self.board, readers=len(self.labels)),
            space=space,
        )
        trains = (
            not frozen if self.name == "encoder" else "backbone" not in self.config.model.freeze
        )
        module = Module.build(self._model(adapter, device), self.config, trains=trains)
        checkpoints = Checkpoints(self.config, world, self.board)
        if self.checkpoint is not None and self.mark is not None:
            checkpoints.load(self.checkpoint, module, self.mark)
        with self._resources:
            reader = self._resources.enter_context(
                ReaderPool(reader_maker(self.config), self.config.data.workers)
            )
            reads = Reads(reader, self.config.data.path, deadline_s=flow.deadline_s)
            rank = self._rank(seat, module, reads, checkpoints)
            check_model(self.config)
            self._meet("ready")
            try:
                rank.run(self.first)
            except Exception:
                # A step that fails must not end those before it, which others may still carry out.
                with suppress(Exception):
                    seat.plans.wait_for_others()
                raise
            edges = rank.edges()
            self._meet("done")
            seat.plans.check()
            note_edges(self.config.run, self.label, edges)
        self.watcher.stop()
        self.heartbeat.stop()
        world.close()
        self.pool.close()

    def _rank(
        self, seat: Seat, module: Module, reads: Reads, checkpoints: Checkpoints
    ) -> EncoderRank | BackboneRank:
        rank = self.rank
        if self.name == "encoder":
            pixels = Prefetch(seat.plans, reads, lambda plan: wanted_pixels(rank, plan))
            return EncoderRank(seat, module, pixels, checkpoints)
        texts = Prefetch(seat.plans, reads, lambda plan: wanted_texts(rank, plan))
        metrics = planner = None
        if seat.world.leads:
            planner = self._planner(seat, reads)
            planner.start()
            metrics = Metrics(
                self.config.run,
                steps=self.config.train.steps,
                peak_flops=job_peak_flops(
                    seat.world.device,
                    seat.dtype,
                    ranks=len(self.labels),
                ),
            )
            self._resources.enter_context(closing(metrics))
        return BackboneRank(seat, module, texts, checkpoints, metrics=metrics, planner=planner)

    def _planner(self, seat: Seat, reads: Reads) -> Planner:
        source = PlanSource(
            self.config,
            reads=reads,
            num_samples=len(JsonlFile(self.config.data.path, data_state(self.config.run))),
            model_config=seat.adapter.config,
            step=self.first,
            cursor=self.cursor,
        )
        return Planner(
            source,
            board=self.board.clone(),
            log=self.config.run / "plan.log",
            need=seat.need,
            activity=self.activity,
            ahead=self.config.flow.plan_ahead,
            first=self.first,
        )

    def _model(self, adapter: VLMAdapter, device: torch.device) -> torch.nn.Module:
        model = self.config.model
        return adapter.build(
            "encoder" if self.name == "encoder" else "backbone",
            weights=model.path,
            seed=self.config.train.seed,
            dtype=DTYPES[model.dtype],
            device=device,
        )

    def _device(self) -> torch.device:
        flow = self.config.flow
        threads = self.config.train.threads or max(
            1, len(os.sched_getaffinity(0)) // (flow.encoders + flow.backbones)
        )
        torch.set_num_threads(threads)
        first = flow.encoders if self.name == "backbone" else 0
        device = choose_device(self.config.model.device, self.rank, first=first)
        if said := register(self.pool, device):
            # Lines that begin with `flowtrain: ` say why a rank ends; this one is no reason.
            print(f"{self.label}: {said}", file=sys.stderr, flush=True)
        return device

    def _check_first(self) -> None:
        """Refuse to go on from another step than that which the launcher cut the logs to."""
        first = self.board.get(FIRST, who="the launcher")
        if self.first != first:
            raise CheckpointError(
                f"{self.config.run / 'checkpoints'}: {self.label} would go on from step "
                f"{self.first} ({self.checkpoint or 'no checkpoint'}), and the launcher from step "
                f"{first}: a rank of an earlier start has saved since, or the rank was not given "
                "the launcher's --resume; start it again with --resume once no other rank runs"
            )

    def _meet(self, what: str) -> None:
        """Wait until every rank of both worlds has come this far."""
        self.board.put(f"{what}/{self.label}", True)
        self.board.wait([f"{what}/{label}" for label in self.labels], who="every rank")

    def fail(self, error: BaseException) -> None:
        """Leave why this rank ends where the launcher and the other ranks' watchers look for it."""
        try:
            self.board.clone(timeout_s=_FAREWELL_S).put(f"failed/{self.label}", _reason(error))
        except Exception:  # The store has died as well; its host's lane tells the others.
            return
        # A lost connection is how a peer's death looks from here: the watcher names the peer.
        self.watcher.join(_FAREWELL_S)


def reader_maker(config: RunConfig) -> Callable[[], SampleReader]:
    """Makes readers of the files that the launcher hashed, in any process of the run."""
    return partial(_make_reader, config, data_state(config.run))


def _make_reader(config: RunConfig, state: FileState) -> SampleReader:
    reader = SampleReader(config.model.folder, config.data, config.train.microbatch_tokens, state)
    check_model(config)
    return reader


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def say_end(label: str, error: BaseException) -> None:
    """Say on standard error why a rank ends."""
    with suppress(OSError):  # The disk of the log may be full; the launcher asks the board.
        traceback.print_exception(error)
        print(f"flowtrain: {label} ends: {_reason(error)}", file=sys.stderr, flush=True)


@record
def main(argv: list[str] | None = None) -> None:
    """Run the rank that the arguments and torch's RANK say; ends the process if it fails."""
    if (launcher := os.environ.get(LAUNCHER)) is not None:
        parent.end_with(int(launcher))
    parser = argparse.ArgumentParser(prog="python -m flowtrain.train.ranks.worker")
    parser.add_argument("config", type=Path, help="the run's config.yaml")
    parser.add_argument("--world", required=True, choices=("encoder", "backbone"))
    parser.add_argument("--store", required=True, help="host:port of the job's store")
    parser.add_argument("--nonce", required=True, help="name of the attempt")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args(argv)
    rank = int(os.environ["RANK"])
    label = f"{options.world}.{rank}"
    worker: Worker | None = None
    try:
        config = load(options.config)
        if config.debug.fault is not None:
            load_hook(config.debug.fault)(label)
        worker = Worker(
            config,
            options.world,
            rank,
            Job(options.store, options.nonce),
            resume=options.resume,
        )
        worker.run()
    except BaseException as error:
        say_end(label, error)
        if worker is not None:
            worker.fail(error)
        # Reader threads and an unfinished collective must not hold the process: its end is
        # what the other ranks are waiting to see.
        os._exit(1)


if __name__ == "__main__":
    main()

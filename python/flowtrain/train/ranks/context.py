"""Context of a rank, whichever modules it holds: made before the first step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flowtrain.config.flow import FlowConfig
from flowtrain.config.layout import ModuleName, RankLayout
from flowtrain.config.pool import Tier
from flowtrain.models.family import Family
from flowtrain.steps import Space
from flowtrain.train.control.activity import Activity
from flowtrain.train.control.board import Board
from flowtrain.train.control.store import JobStore
from flowtrain.train.control.world import World
from flowtrain.train.planning.plans import PublishedPlans
from flowtrain.train.ranks.segments import SegmentSizes
from flowtrain.train.records.loopback import Loopback
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.records.sender import RecordSender
from flowtrain_core import Pool


@dataclass(frozen=True, kw_only=True, slots=True)
class RankContext:
    """Connections and services of a rank, and what all ranks of the run have in common.

    Attributes:
        flow: Section `flow`, with the layout of the ranks.
        seed: Seed of dropout.
        dtype: Dtype of the passes.
        pool_dtype: Dtype of rows in the pool.
        tier: Memory of the pool in which rows lie, as of `Pool.add_segment`.
        world: Ranks that hold the same modules.
        store: The job's store.
        pool: The job's pool.
        activity: Told what this rank does and waits for.
        family: Family of the model.
        plans: Plans of the steps.
        space: How records are split into slabs.
        segments: How many slabs each segment has.
        board: The items of a run whose encoder ranks come and go; None for other runs.
    """

    flow: FlowConfig
    seed: int
    dtype: torch.dtype
    pool_dtype: torch.dtype
    tier: Tier
    world: World
    store: JobStore
    pool: Pool
    activity: Activity
    family: Family
    plans: PublishedPlans
    space: Space
    segments: SegmentSizes
    board: Board | None = None

    @property
    def layout(self) -> RankLayout:
        return self.flow.chosen

    def loopback(self) -> Loopback | None:
        """Takes the records of one direction that this rank sends to itself, if there are any."""
        return Loopback(self.world.replica) if self.layout.colocated else None

    def receiver(self, module: ModuleName, loopback: Loopback | None) -> RecordReceiver:
        """Receiver of the records for one module of this rank."""
        return RecordReceiver(
            self.pool,
            inbox=f"{module}.{self.world.replica}",
            space=self.space,
            activity=self.activity,
            loopback=loopback,
            board=self.board,
        )

    def sender(self, readers: ModuleName, loopback: Loopback | None) -> RecordSender:
        """Sender of records to the ranks that hold one module."""
        layout = self.layout
        return RecordSender(
            self.pool,
            readers=readers,
            num_readers=layout.encoder_ranks if readers == "encoder" else layout.backbone_ranks,
            space=self.space,
            dtype=self.pool_dtype,
            tier=self.tier,
            device=self.world.device.index or 0,
            activity=self.activity,
            loopback=loopback,
        )

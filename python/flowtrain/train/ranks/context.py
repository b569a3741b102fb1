"""Context of a rank, whichever modules it holds: made before the first step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flowtrain.config.layout import ModuleName, RankLayout
from flowtrain.config.schema import RunConfig
from flowtrain.models.dtypes import compute_dtype, pool_dtype
from flowtrain.models.family import Family
from flowtrain.steps import Space
from flowtrain.train.control.activity import Activity
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
    """Configuration, connections and services of a rank."""

    config: RunConfig
    world: World
    store: JobStore
    pool: Pool
    activity: Activity
    family: Family
    plans: PublishedPlans
    space: Space

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the passes."""
        return compute_dtype(self.config)

    @property
    def segments(self) -> SegmentSizes:
        return SegmentSizes(self.layout, self.config.pool, self.space)

    @property
    def layout(self) -> RankLayout:
        return self.config.flow.chosen

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
        )

    def sender(self, readers: ModuleName, loopback: Loopback | None) -> RecordSender:
        """Sender of records to the ranks that hold one module."""
        layout = self.layout
        return RecordSender(
            self.pool,
            readers=readers,
            num_readers=layout.encoder_ranks if readers == "encoder" else layout.backbone_ranks,
            space=self.space,
            dtype=pool_dtype(self.config),
            activity=self.activity,
            loopback=loopback,
        )

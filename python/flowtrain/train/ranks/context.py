"""Context of a rank, the same for both worlds: made before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.models.adapter import VLMAdapter
from flowtrain.steps import Space
from flowtrain.train.control.activity import Activity
from flowtrain.train.control.store import JobStore
from flowtrain.train.control.world import World
from flowtrain.train.planning.plans import PlanReader
from flowtrain.train.ranks.segments import SegmentSizes
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.records.sender import RecordSender
from flowtrain.train.state.module import DTYPES
from flowtrain_core import Pool


@dataclass(frozen=True, kw_only=True, slots=True)
class RankContext:
    """Configuration, connections and services of a rank."""

    config: RunConfig
    world: World
    store: JobStore
    pool: Pool
    activity: Activity
    adapter: VLMAdapter
    plans: PlanReader
    space: Space

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.config.model.dtype]

    @property
    def segments(self) -> SegmentSizes:
        return SegmentSizes(self.config, self.space)

    def receiver(self) -> RecordReceiver:
        """Receiver of the records in this rank's inbox."""
        return RecordReceiver(
            self.pool,
            inbox=self.world.label,
            space=self.space,
            activity=self.activity,
        )

    def sender(self, readers: Literal["encoder", "backbone"]) -> RecordSender:
        """Sender of records to the ranks of one world."""
        flow = self.config.flow
        return RecordSender(
            self.pool,
            readers=readers,
            num_readers=flow.encoder_ranks if readers == "encoder" else flow.backbone_ranks,
            space=self.space,
            dtype=self.dtype,
            activity=self.activity,
        )

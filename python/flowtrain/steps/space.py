"""The number of slabs that a plan needs, checked before the run and for every plan."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.steps.step import StepPlan
from flowtrain_core import FlowTrainError


class SpaceError(FlowTrainError, ValueError):
    """The pool is too small for a plan. The message gives the number of missing bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceNeed:
    """Minimum slabs of each rank's segment.

    Attributes:
        activation: Slabs of the segment of one encoder rank.
        gradient: Slabs of the segment of one backbone rank; 0 if the encoder does not train.
    """

    activation: int
    gradient: int

    def join(self, other: SpaceNeed) -> SpaceNeed:
        return SpaceNeed(
            activation=max(self.activation, other.activation),
            gradient=max(self.gradient, other.gradient),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Computes the slabs of records, plans and segments.

    A record is divided into slabs of one size, so a segment never fragments and its capacity is
    a number of slabs.

    Args:
        slab_bytes: Size of a slab.
        row_bytes: Size of the row of one image token, with all its features.
        trained: Whether gradients return to the encoder.
        depth: Whole steps that an activation segment holds, where it holds whole steps:
            max(1, `flow.staleness`), and one more if a batch of an evaluation can come while it
            holds `flow.staleness` steps.
        colocated: Whether each rank holds both modules. A rank's own items then stay with it, and
            activation segments hold whole steps in `frozen`, too, since two ranks that wait for
            each other's slabs would not come to reading.
        sharded: Whether passes of the encoder take all of its ranks. A rank that waited for a slab
            within a step would keep the others from the items that have to be read first.
    """

    slab_bytes: int
    row_bytes: int
    trained: bool
    depth: int = 1
    colocated: bool = False
    sharded: bool = False

    def __post_init__(self) -> None:
        if self.slab_bytes < self.row_bytes:
            raise SpaceError(
                f"pool.slab_bytes={self.slab_bytes}: the row of one image token takes "
                f"{self.row_bytes} bytes; raise pool.slab_bytes to at least that"
            )

    @property
    def slab_rows(self) -> int:
        return self.slab_bytes // self.row_bytes

    def parts(self, num_rows: int) -> int:
        """Slabs of a record with `num_rows` rows."""
        return -(-num_rows // self.slab_rows)

    def need(self, plan: StepPlan) -> SpaceNeed:
        """Minimum slabs with which this plan can finish.

        If gradients return: whole steps, since an encoder rank takes the gradients of a step only
        after it has sent all records of the step. Also in a colocated run, where a rank reads
        after it has sent, and with a sharded encoder. Otherwise: the largest item, since items are
        encoded in the order in which they are read.
        """
        made: dict[int, int] = {}
        read: dict[int, int] = {}
        largest = 0
        for item in plan.items:
            if item.is_dummy or (self.colocated and item.encoder == item.reader):
                continue
            slabs = self.parts(item.num_rows)
            made[item.encoder] = made.get(item.encoder, 0) + slabs
            read[item.reader] = read.get(item.reader, 0) + slabs
            largest = max(largest, slabs)
        if not (self.trained or self.colocated or self.sharded):
            return SpaceNeed(activation=largest, gradient=0)
        return SpaceNeed(
            activation=self.depth * max(made.values(), default=0),
            gradient=max(read.values(), default=0) if self._returns(plan) else 0,
        )

    def _returns(self, plan: StepPlan) -> bool:
        """Whether gradients of a plan return."""
        return self.trained and plan.kind == "train"

    def total_bytes(self, need: SpaceNeed, *, encoder_ranks: int, backbone_ranks: int) -> int:
        """Size of the whole pool with segments of this size."""
        return self.slab_bytes * (encoder_ranks * need.activation + backbone_ranks * need.gradient)

    def limit_bytes(self, *, pool_bytes: int | None, max_slabs: int) -> int:
        """Maximum size of the whole pool.

        Args:
            pool_bytes: Size of the whole pool, or None if it is not set.
            max_slabs: Maximum slabs of the whole pool if the size is not set.
        """
        return max_slabs * self.slab_bytes if pool_bytes is None else pool_bytes

    def fit(
        self,
        need: SpaceNeed,
        *,
        encoder_ranks: int,
        backbone_ranks: int,
        pool_bytes: int | None,
        max_slabs: int,
        scale: float,
        who: str,
    ) -> SpaceNeed:
        """Slabs of each segment: `scale` times the need, or the share of `pool_bytes`.

        `scale` is reduced if the need fits into `max_slabs` but the multiple does not.

        Args:
            need: Minimum slabs of each segment.
            encoder_ranks: Encoder ranks.
            backbone_ranks: Backbone ranks.
            pool_bytes: Size of the whole pool, or None if it is not set.
            max_slabs: Maximum slabs of the whole pool if the size is not set.
            scale: Multiple of the need if the size is not set.
            who: What has this need, for the error.

        Raises:
            SpaceError: pool_bytes or max_slabs is below the need.
        """
        minimum = self.total_bytes(need, encoder_ranks=encoder_ranks, backbone_ranks=backbone_ranks)
        if pool_bytes is not None and minimum == 0:
            # The first plans have no image, so all segments get the same share.
            segments = encoder_ranks + (backbone_ranks if self.trained else 0)
            slabs = pool_bytes // (self.slab_bytes * segments)
            return SpaceNeed(activation=slabs, gradient=slabs if self.trained else 0)
        limit = self.limit_bytes(pool_bytes=pool_bytes, max_slabs=max_slabs)
        if minimum > limit:
            name, value = ("bytes", pool_bytes) if pool_bytes else ("max_cells", max_slabs)
            raise SpaceError(
                f"pool.{name}={value}: {who} needs at least {minimum} bytes ("
                f"{encoder_ranks} encoder ranks x {need.activation} slabs + "
                f"{backbone_ranks} backbone ranks x {need.gradient} slabs of {self.slab_bytes} "
                f"bytes); {minimum - limit} bytes are missing; raise pool.{name}, or lower "
                f"train.global_batch"
            )
        factor = limit / minimum if minimum else 1.0
        if pool_bytes is None:
            factor = min(scale, factor)
        return SpaceNeed(
            activation=int(need.activation * factor), gradient=int(need.gradient * factor)
        )

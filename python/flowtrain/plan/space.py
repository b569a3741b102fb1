"""How many slabs a plan needs, checked before the run and for every plan."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.plan.step import StepPlan


class SpaceError(ValueError):
    """The pool is too small for a plan; the message gives the bytes that are missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceNeed:
    """Least slabs of each rank's segment.

    Attributes:
        activation: Slabs of one encoder rank's segment.
        gradient: Slabs of one backbone rank's segment; 0 where nothing before the cut trains.
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
    """How records become slabs.

    A record is cut into slabs of one size, so that a segment never fragments and its capacity
    is a plain count.

    Args:
        slab_bytes: Size of a slab.
        row_bytes: Size of one image token's row: pooled feature and deepstack taps.
        trained: Whether gradients return.
        depth: Whole steps that an activation segment holds in the trained modes, max(1, k).
    """

    slab_bytes: int
    row_bytes: int
    trained: bool
    depth: int = 1

    def __post_init__(self) -> None:
        if self.slab_bytes < self.row_bytes:
            raise SpaceError(
                f"pool.slab_bytes={self.slab_bytes}: one image token's row takes "
                f"{self.row_bytes} bytes; raise pool.slab_bytes to at least that"
            )

    @property
    def slab_rows(self) -> int:
        return self.slab_bytes // self.row_bytes

    def parts(self, num_tokens: int) -> int:
        """Slabs of a record of so many rows."""
        return -(-num_tokens // self.slab_rows)

    def need(self, plan: StepPlan) -> SpaceNeed:
        """Least slabs with which this plan can finish.

        Trained: a whole step, since its gradients return only after its last slot is read.
        Frozen: the largest item, since items are made in the order in which they are read.
        """
        made: dict[int, int] = {}
        read: dict[int, int] = {}
        largest = 0
        for item in plan.items:
            slabs = self.parts(item.num_tokens)
            made[item.encoder] = made.get(item.encoder, 0) + slabs
            read[item.reader] = read.get(item.reader, 0) + slabs
            largest = max(largest, slabs)
        if not self.trained:
            return SpaceNeed(activation=largest, gradient=0)
        return SpaceNeed(
            activation=self.depth * max(made.values(), default=0),
            gradient=max(read.values(), default=0),
        )

    def total_bytes(self, need: SpaceNeed, *, encoders: int, backbones: int) -> int:
        """Size of the whole pool with such segments."""
        return self.slab_bytes * (encoders * need.activation + backbones * need.gradient)

    def limit_bytes(self, *, pool_bytes: int | None, max_slabs: int) -> int:
        """Size that the whole pool may have.

        Args:
            pool_bytes: Size of the whole pool, or None where it is free.
            max_slabs: Maximum slabs of the whole pool where the size is free.
        """
        return max_slabs * self.slab_bytes if pool_bytes is None else pool_bytes

    def fit(
        self,
        need: SpaceNeed,
        *,
        encoders: int,
        backbones: int,
        pool_bytes: int | None,
        max_slabs: int,
        scale: float,
        who: str,
    ) -> SpaceNeed:
        """Slabs to give each segment: `scale` times the need, or what `pool_bytes` holds.

        `scale` is lowered where the need fits into `max_slabs` and so many times of it does not.

        Args:
            need: Least slabs of each segment.
            encoders: Encoder ranks.
            backbones: Backbone ranks.
            pool_bytes: Size of the whole pool, or None where it is free.
            max_slabs: Maximum slabs of the whole pool where the size is free.
            scale: Multiple of the need where the size is free.
            who: Whose need it is, for the error.

        Raises:
            SpaceError: pool_bytes or max_slabs is below the need.
        """
        least = self.total_bytes(need, encoders=encoders, backbones=backbones)
        if pool_bytes is not None and least == 0:
            # The first plans have no image, so that they say nothing of the shares.
            segments = encoders + (backbones if self.trained else 0)
            slabs = pool_bytes // (self.slab_bytes * segments)
            return SpaceNeed(activation=slabs, gradient=slabs if self.trained else 0)
        limit = self.limit_bytes(pool_bytes=pool_bytes, max_slabs=max_slabs)
        if least > limit:
            name, value = ("bytes", pool_bytes) if pool_bytes else ("max_cells", max_slabs)
            raise SpaceError(
                f"pool.{name}={value}: {who} cannot do with less than {least} bytes ("
                f"{encoders} encoder ranks x {need.activation} slabs + {backbones} backbone ranks "
                f"x {need.gradient} slabs of {self.slab_bytes} bytes); {least - limit} bytes "
                f"are missing; raise pool.{name}, or lower train.global_batch"
            )
        factor = limit / least if least else 1.0
        if pool_bytes is None:
            factor = min(scale, factor)
        return SpaceNeed(
            activation=int(need.activation * factor), gradient=int(need.gradient * factor)
        )

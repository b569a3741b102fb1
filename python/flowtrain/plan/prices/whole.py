"""A module in one stage: the fewest blocks that are computed again so that it fits into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.partition import LEVELS, Level
from flowtrain.plan.prices.chain import Bounds, Chain
from flowtrain.plan.prices.costs import Costs


@dataclass(frozen=True, slots=True, eq=False)
class _OfLevel:
    """What a level of recomputation takes, by the number of the first blocks that it applies to.

    Attributes:
        level: Its place in LEVELS.
        blocks: Numbers of blocks, ascending, shape [num_choices].
        need: Bytes of a rank, which fall with the number, shape [num_rows, num_choices].
        times_s: Seconds of a microbatch, which rise, of the same shape.
    """

    level: int
    blocks: IntArray
    need: FloatArray
    times_s: FloatArray


class Whole:
    """All layers of a module on each rank, for some rows. The first blocks are computed again.

    Args:
        chain: The layers.
        costs: Their costs.
        rows_bytes: Rows of the encoder, and their gradients, shape [num_rows].
        levels: Sets of levels of recomputation, of one of which the blocks have theirs; only some
            are computed again if it has `none`.
    """

    def __init__(
        self, chain: Chain, costs: Costs, rows_bytes: FloatArray, levels: Sequence[Sequence[Level]]
    ) -> None:
        count, head = chain.layers_of_kind, chain.tables.head
        self._states = costs.states.sum(0) @ count
        kept_head = costs.kept[:, 0, head] * (count[head] > 0)
        whole_kept = costs.kept[:, 0] @ count
        self._pass_s = (costs.forward.sum(1) + costs.backward.sum(1)) @ count
        self._levels = []
        for level, others in ((level, own) for own in levels for level in own):
            number = LEVELS.index(level)
            spared = (costs.kept[:, 0] - costs.kept[:, number])[:, chain.again]
            # A block that is computed again has all its activations while it runs backward.
            running = spared + costs.working.block[chain.again]
            running = _from_none(numpy.maximum.accumulate(running, axis=1))
            running = numpy.maximum(running, costs.working.block.max())
            kept = whole_kept[:, None] - _from_none(spared.cumsum(1))
            need = kept + costs.working.beside(kept, kept_head[:, None], running)
            need += self._states + rows_bytes[:, None]
            again_s = _from_none(costs.again[:, number][:, chain.again].cumsum(1))
            blocks = numpy.arange(len(chain.again) + 1)
            if level == "none":
                blocks = blocks[:1]
            elif "none" not in others:
                blocks = blocks[-1:]
            times_s = self._pass_s[:, None] + again_s
            self._levels.append(_OfLevel(number, blocks, need[:, blocks], times_s[:, blocks]))
        self._rows = numpy.arange(len(rows_bytes))

    def fit(self, memory_bytes: float, other_bytes: float) -> tuple[Bounds, IntArray, IntArray]:
        """Times with a limit of memory, and what is computed again.

        Args:
            memory_bytes: What a rank may use.
            other_bytes: As for `partition`.

        Returns:
            The times; and for each row the place of a level in LEVELS, and the blocks that it
            applies to, both of shape [num_rows].
        """
        fill_s = numpy.full(len(self._rows), numpy.inf)
        chosen, blocks = numpy.zeros((2, len(self._rows)), numpy.int64)
        for each in self._levels:
            fits = each.need <= memory_bytes
            fewest = fits.argmax(1)
            level_s = each.times_s[self._rows, fewest]
            better = fits[:, -1] & (level_s < fill_s)
            fill_s[better] = level_s[better]
            chosen[better], blocks[better] = each.level, each.blocks[fewest][better]
        fill_s[self._states + other_bytes > memory_bytes] = numpy.inf
        longest_s = numpy.where(numpy.isfinite(fill_s), fill_s, self._pass_s)
        return Bounds(fill_s, longest_s), chosen, blocks


def _from_none(sums: FloatArray) -> FloatArray:
    """Values for the first blocks, and for none of them, shape [num_rows, num_blocks + 1]."""
    return numpy.concatenate([numpy.zeros((len(sums), 1)), sums], axis=1)

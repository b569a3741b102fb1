"""Time that the stages of a plan spend on messages, for microbatches of any size."""

from __future__ import annotations

from dataclasses import replace

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.partition import LEVELS
from flowtrain.plan.prices.costs import SECONDS, Costs
from flowtrain.plan.prices.pipeline import Pipelines
from flowtrain.plan.search.coupled import Priced

_COMPUTES, _GATHERS = (SECONDS.index("forward"), SECONDS.index("backward")), SECONDS.index("shards")
_MESSAGES = [n for n in range(len(SECONDS)) if n not in (*_COMPUTES, _GATHERS)]


class Messages:
    """What stages take beside computing, by the size of a microbatch.

    Collectives, and sends to the next stage, grow with the tokens of a microbatch. Sums of
    gradients are the same for all, and so are gathered weights, which are hidden less where less is
    computed. The costs of a plan are evaluated for microbatches of some sizes, and
    interpolated.

    Attributes:
        computing_s: Forward and backward passes of a mean microbatch without messages,
            recomputation included, by kind of layer, shape [2, num_stages, num_kinds].

    Args:
        priced: The plan.
    """

    def __init__(self, priced: Priced) -> None:
        self._priced = priced
        pipeline, cut = priced.pipeline, priced.cut
        self._counts = numpy.array(pipeline.stage_counts(cut.stages))
        # The part of the layers of each kind that a stage computes again.
        again = [pipeline.chain.recomputed_kinds(stage) for stage in cut.stages]
        self._again = numpy.array(again) / numpy.maximum(self._counts, 1)
        self._levels = [LEVELS.index(stage.recompute) for stage in cut.stages]
        # Without a token, gradients are added to those of the microbatches before.
        adds_s = self._passes(self._costs(0.0), list(_COMPUTES)) * self._counts
        self.computing_s = self._passes(pipeline.costs, list(_COMPUTES)) * self._counts - adds_s
        sizes = [(1.0, pipeline.costs)]
        most = max(2.0, pipeline.row.most_tokens / pipeline.row.tokens)
        for size in (0.0, 0.25, 0.5, 0.75, *numpy.linspace(1, most, 4)[1:].tolist()):
            try:
                sizes.append((size, self._costs(size)))
            except ValueError:
                continue  # The times of layers are not valid for this size.
        sizes.sort(key=lambda each: each[0])
        self._sizes = numpy.array([size for size, _ in sizes])
        self._message_s = numpy.array(
            [(self._passes(costs, _MESSAGES) * self._counts + adds_s).sum(-1) for _, costs in sizes]
        )
        self._gather_s = numpy.array(
            [
                (self._passes(costs, [_GATHERS], again=False) * self._counts).sum(-1)
                for _, costs in sizes
            ]
        )
        mean = (
            self.computing_s.sum(-1)
            + self._at(self._message_s, 1.0)
            + self._at(self._gather_s, 1.0)
        )
        whole_s = numpy.array([cut.forward_s, cut.backward_s])
        # One stage sends nothing; what is left is rounding.
        self._send_s = numpy.maximum(whole_s - mean, 0.0) if pipeline.stages > 1 else 0 * whole_s

    def _costs(self, size: float) -> Costs:
        """Costs of a microbatch of a part of the mean tokens, or of more."""
        priced, pipeline = self._priced, self._priced.pipeline
        row = pipeline.row
        encoded = tuple(size * tokens for tokens in row.encoded)
        scaled = Pipelines(
            pipeline.chain,
            pipeline.shape,
            [replace(row, tokens=size * row.tokens, encoded=encoded)],
            microbatches=[pipeline.num_microbatches],
            pool=priced.context.pool,
            rules=priced.context.rules,
            rows_bytes=[0.0],
        )
        return scaled.costs

    def _passes(self, costs: Costs, which: list[int], *, again: bool = True) -> FloatArray:
        """Some of the times of both passes by kind, shape [2, num_stages, num_kinds]."""
        tables = self._priced.pipeline.chain.tables
        forward, backward = costs.forward[0][which].sum(0), costs.backward[0][which].sum(0)
        repeated = self._again * again * (tables.block * tables.gradient * forward)
        if 0 in which:
            # Attention may be kept; no message is in it.
            spared = costs.again[0, -1] - costs.again[0, self._levels]
            repeated -= self._again * spared
        return numpy.array([numpy.broadcast_to(forward, self._counts.shape), backward + repeated])

    def seconds(self, tokens: FloatArray, computing_s: FloatArray) -> FloatArray:
        """Seconds beside computing, shape [2, num_stages, num_microbatches, num_replicas].

        Args:
            tokens: Tokens of each microbatch over those of the mean one, shape [num_microbatches,
                num_replicas].
            computing_s: Seconds of computing of both passes, of the shape of the result.
        """
        mean_s = numpy.maximum(self.computing_s.sum(-1), 1e-30)[:, :, None, None]
        found: FloatArray = self._send_s[:, :, None, None] * tokens
        load = computing_s / mean_s
        last = self._sizes[-1]
        for half, stage in numpy.ndindex(found.shape[:2]):
            message_s = numpy.interp(tokens, self._sizes, self._message_s[:, half, stage])
            # Beyond the last size, messages grow in proportion.
            found[half, stage] += message_s * numpy.maximum(1.0, tokens / last)
            found[half, stage] += numpy.interp(
                load[half, stage], self._sizes, self._gather_s[:, half, stage]
            )
        return found

    def _at(self, values: FloatArray, size: float) -> FloatArray:
        found: FloatArray = values[int(numpy.searchsorted(self._sizes, size))]
        return found

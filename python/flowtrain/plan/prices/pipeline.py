"""Price of a module as a pipeline of stages, of which there may be one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.partition import LEVELS, Level
from flowtrain.plan.prices.chain import Bounds, Chain
from flowtrain.plan.prices.costs import SECONDS, STATES, Costs, Shape, costs_of, update_s
from flowtrain.plan.prices.network import Network
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.whole import Whole
from flowtrain.plan.result import RankBytes, Seconds, StageLayout
from flowtrain.plan.space import RECOMPUTE, GpuPool, Rules


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Stages of a pipeline with the times of a microbatch, and of the end of a step.

    Attributes:
        stages: The stages.
        forward_s: Forward pass of each stage, its send included.
        backward_s: The same of the backward pass, recomputation included.
        heaviest_s: Seconds by which the heaviest sample of a batch makes a step longer.
        reduce_s: Sum of the gradients, and gather of the weights that other replicas step, as far
            as these are not hidden; the longest of the stages.
        optimizer_s: The optimizer's step; the longest of the stages.
    """

    stages: tuple[StageLayout, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    heaviest_s: float
    reduce_s: float
    optimizer_s: float

    @property
    def stage_s(self) -> tuple[float, ...]:
        return tuple(f + b for f, b in zip(self.forward_s, self.backward_s, strict=True))

    @property
    def fill_s(self) -> float:
        """Seconds of a microbatch through all stages, forward and backward."""
        return sum(self.stage_s)

    @property
    def longest_s(self) -> float:
        """Seconds of a microbatch on the longest stage."""
        return max(self.stage_s)

    def step_s(self, microbatches: int) -> float:
        """Seconds of a step."""
        waits_s = (microbatches - 1) * self.longest_s
        return self.fill_s + waits_s + self.heaviest_s + self.update_s

    @property
    def update_s(self) -> float:
        """Seconds between the last backward pass and the next step."""
        return self.reduce_s + self.optimizer_s


def heaviest_waits(chain: Chain, shape: Shape, microbatches: FloatArray) -> FloatArray:
    """Mean microbatches for which a step waits for its heaviest sample, as an array.

    Args:
        chain: Layers of the module.
        shape: Its mesh.
        microbatches: Microbatches of a replica per step.
    """
    mesh = shape.mesh
    share = chain.heaviest_share * mesh.dp
    if mesh.pp > 1 or shape.meets:
        return numpy.maximum(0.0, share * microbatches - 1)
    return numpy.maximum(0.0, share - 1) * microbatches


class Pipelines:
    """A module on a mesh, for several numbers of microbatches per step.

    Args:
        chain: Its layers.
        shape: The mesh.
        rows: What a microbatch has.
        microbatches: Microbatches of a replica per step, for each of the rows.
        pool: GPUs on which it runs.
        rules: Constants of the prices.
        rows_bytes: As for `Chain.cut`, for each of the rows.
        levels: Sets of levels of recomputation, of one of which the blocks have theirs.
        whole_encoders: As for `Chain.cut`.

    Raises:
        ValueError: The times are not valid for a row.
    """

    def __init__(
        self,
        chain: Chain,
        shape: Shape,
        rows: Sequence[Row],
        *,
        microbatches: Sequence[int],
        pool: GpuPool,
        rules: Rules,
        rows_bytes: Sequence[float],
        levels: Sequence[Sequence[Level]] = (RECOMPUTE,),
        whole_encoders: bool = False,
    ) -> None:
        self.chain, self.shape, self.rows = chain, shape, rows
        self.microbatches = numpy.array(microbatches, numpy.float64)
        self.rows_bytes = numpy.array(rows_bytes)
        self._pool, self._rules, self._levels = pool, rules, levels
        self._whole_encoders = whole_encoders
        self._network = Network(pool.topology, shape.gpus)
        self.costs: Costs = costs_of(
            chain.tables,
            shape,
            rows,
            self._network,
            layers=chain.layers_of_kind,
            passes_per_step=self.microbatches,
            memory_bytes_per_s=pool.memory_bytes_per_s,
            host=rules.host,
            exposed=rules.exposed_share,
        )

    def bounds(self, memory_bytes: float, other_bytes: float = 0) -> Bounds:
        """Lower bounds of the times, exact for one stage; the fill includes `heaviest_s`.

        Args:
            memory_bytes: What a rank may use.
            other_bytes: As for `partition`.
        """
        bounds = self._bounds(memory_bytes, other_bytes)
        return replace(bounds, fill_s=bounds.fill_s + self.heaviest_s(bounds.longest_s))

    def heaviest_s(self, longest_s: FloatArray) -> FloatArray:
        """Seconds by which the heaviest sample of a batch makes a step longer, shape [num_rows].

        It is not split. Replicas that meet in each microbatch, and pipelines, wait for its
        microbatch. A replica of one stage that does not has other microbatches with less.

        Args:
            longest_s: Seconds of a mean microbatch on the longest stage, shape [num_rows].
        """
        return heaviest_waits(self.chain, self.shape, self.microbatches) * longest_s

    def _bounds(self, memory_bytes: float, other_bytes: float) -> Bounds:
        if self.shape.mesh.pp > 1:
            return self.chain.bounds(
                self.costs,
                stages=self.shape.mesh.pp,
                microbatches=self.microbatches,
                memory_bytes=memory_bytes,
                other_bytes=other_bytes,
                levels=[level for levels in self._levels for level in levels],
            )
        return self._whole.fit(memory_bytes, other_bytes)[0]

    @cached_property
    def _whole(self) -> Whole:
        return Whole(self.chain, self.costs, 2 * self.rows_bytes, self._levels)

    @property
    def least_update_s(self) -> float:
        """Lower bound of the time behind the last backward pass.

        Of several stages, one has at least an equal share of the layers of any kind.
        """
        count, stages = self.chain.layers_of_kind, self.shape.mesh.pp
        if stages == 1:
            return sum(self._update(count, math.inf, math.inf))
        kind = int(count.argmax())
        share = numpy.zeros_like(count)
        share[kind] = -(-count[kind] // stages)
        return sum(self._update(share, math.inf, math.inf))

    def _update(self, count: IntArray, forward_s: float, backward_s: float) -> tuple[float, float]:
        return update_s(
            self.chain.tables,
            self.costs,
            self.shape,
            count,
            forward_s,
            backward_s,
            network=self._network,
            memory_bytes_per_s=self._pool.memory_bytes_per_s,
            host=self._rules.host,
            exposed=self._rules.exposed_share,
        )


class Pipeline(Pipelines):
    """A module on a mesh, for one number of microbatches; the arguments have one entry."""

    @property
    def row(self) -> Row:
        return self.rows[0]

    @property
    def num_microbatches(self) -> int:
        return int(self.microbatches[0])

    @property
    def stages(self) -> int:
        return self.shape.mesh.pp

    def cut(self, memory_bytes: int, other_bytes: int = 0) -> Cut | None:
        """The stages with the shortest step, or None if none fit.

        Args:
            memory_bytes: What a rank may use.
            other_bytes: As for `partition`.
        """
        if self.stages == 1:
            return self._one_stage(memory_bytes, other_bytes)
        left = int(memory_bytes - self.costs.working.block.max())
        if left < 1:
            return None
        cuts = [
            self.chain.cut(
                self.costs,
                self.shape,
                self.row,
                microbatches=self.num_microbatches,
                memory_bytes=left,
                other_bytes=other_bytes,
                link_bytes_per_s=self._network.slowest(self.shape.mesh.pp_group).bytes_per_s,
                rows_bytes=float(self.rows_bytes[0]),
                rows_s=self._rows_s(),
                levels=levels,
                whole_encoders=self._whole_encoders,
            )
            for levels in self._levels
        ]
        fitting = [cut for cut in cuts if cut is not None]
        if not fitting:
            return None
        found = min(fitting, key=lambda cut: cut.step_s)
        stages = tuple(
            StageLayout(first=stage.first, end=stage.end, recompute=stage.level)
            for stage in found.stages
        )
        return self._priced(
            stages,
            [stage.forward_s + stage.forward_send_s for stage in found.stages],
            [stage.backward_s + stage.backward_send_s for stage in found.stages],
        )

    def _rows_s(self) -> float:
        """Seconds in which the first stage gets the rows of a microbatch from other modules.

        Encoders have the time in which all ranks send as many, which counts for what they receive
        as well: here is what is left, since no rank behind the first stage receives any.
        """
        mesh, model, work = self.shape.mesh, self.chain.tables.model, self.chain.tables.work
        num_bytes = sum(
            work.itemsize * encoder.row_width * tokens
            for encoder, tokens in zip(model.encoders, self.row.encoded, strict=True)
        )
        if not (num_bytes and self.rows_bytes[0]):
            return 0.0
        return (1 - 1 / mesh.pp) * self._pool.rows_s(num_bytes / (mesh.tp * mesh.cp))

    def _one_stage(self, memory_bytes: int, other_bytes: int) -> Cut | None:
        bounds, (level,), (blocks,) = self._whole.fit(memory_bytes, other_bytes)
        if not math.isfinite(bounds.fill_s[0]):
            return None
        stage = StageLayout(
            first=0,
            end=len(self.chain.kinds),
            recompute=LEVELS[level] if blocks else "none",
            recompute_layers=int(blocks) if 0 < blocks < len(self.chain.again) else None,
        )
        forward_s = float(self.costs.forward[0].sum(0) @ self.chain.layers_of_kind)
        return self._priced((stage,), [forward_s], [float(bounds.fill_s[0]) - forward_s])

    def _priced(
        self, stages: tuple[StageLayout, ...], forward_s: list[float], backward_s: list[float]
    ) -> Cut:
        longest_s = max(map(sum, zip(forward_s, backward_s, strict=True)))
        counts = self.stage_counts(stages)
        updates = [
            self._update(*stage) for stage in zip(counts, forward_s, backward_s, strict=True)
        ]
        tables, tied_s = self.chain.tables, self._tied_s()
        ends_s = [
            tied_s if count[[tables.embedding, tables.head]].any() else 0.0 for count in counts
        ]
        return Cut(
            stages=stages,
            forward_s=tuple(forward_s),
            backward_s=tuple(backward_s),
            heaviest_s=float(self.heaviest_s(numpy.array([longest_s]))[0]),
            reduce_s=max(
                reduce_s + end_s for (reduce_s, _), end_s in zip(updates, ends_s, strict=True)
            ),
            optimizer_s=max(step for _, step in updates),
        )

    def _tied_s(self) -> float:
        """Seconds in which both ends of a pipeline sum the gradients of a tied embedding.

        Both have a copy, and exchange its gradients behind the last backward pass.

        Source: Megatron-LM, megatron/core/distributed/finalize_model_grads.py.
        """
        tables, mesh = self.chain.tables, self.shape.mesh
        num_bytes = tables.state[2] * tables.tied[1] / mesh.tp
        if mesh.pp == 1 or not num_bytes:
            return 0.0
        return self._network.slowest(mesh.pp_group).seconds(float(num_bytes))

    def stage_counts(self, stages: tuple[StageLayout, ...]) -> list[IntArray]:
        """Layers of each kind on each stage, each of shape [num_kinds]."""
        return self.chain.stage_kinds([stage.end for stage in stages])

    def memory(self, stages: tuple[StageLayout, ...]) -> tuple[RankBytes, ...]:
        """Memory of a rank of each stage, by kind."""
        return tuple(
            self._rank_bytes(number, stage, count)
            for number, (stage, count) in enumerate(
                zip(stages, self.stage_counts(stages), strict=True)
            )
        )

    def _rank_bytes(self, number: int, stage: StageLayout, count: IntArray) -> RankBytes:
        costs, head = self.costs, self.chain.tables.head
        in_flight = min(self.num_microbatches, self.stages - number)
        again = self.chain.recomputed_kinds(stage)
        spared = costs.kept[0, 0] - costs.kept[0, LEVELS.index(stage.recompute)]
        kept = costs.kept[0, 0] @ count - spared @ again
        running = (numpy.where(again > 0, spared, 0.0) + costs.working.block)[count > 0].max()
        working = costs.working
        if self.stages > 1 and not count[head]:
            working = replace(working, head=0.0 * working.head)
        kept_head = costs.kept[0, 0, head] * (count[head] > 0)
        states = dict(zip(STATES, (costs.states @ count).tolist(), strict=True))
        return RankBytes(
            **states,
            activations=in_flight * float(kept),
            working=float(working.beside(kept, kept_head, running).max()),
            host=float(costs.host.sum(0) @ count),
            rows=(in_flight + 1) * float(self.rows_bytes[0]) if number == 0 else 0.0,
        )

    def seconds(self, cut: Cut) -> Seconds:
        """Time of a microbatch on the longest stage by what it is spent on."""
        number = max(range(len(cut.stages)), key=lambda stage: cut.stage_s[stage])
        count = self.stage_counts(cut.stages)[number]
        costs = self.costs
        both = (costs.forward[0] + costs.backward[0]) @ count
        named = dict(zip(SECONDS, both.tolist(), strict=True))
        stage = cut.stages[number]
        # What is computed again includes its collectives.
        named["recompute"] = float(
            costs.again[0, LEVELS.index(stage.recompute)] @ self.chain.recomputed_kinds(stage)
        )
        # What is left is sent; one stage sends nothing.
        sends_s = cut.stage_s[number] - sum(named.values()) if self.stages > 1 else 0.0
        return Seconds(**named, pp=max(0.0, sends_s))

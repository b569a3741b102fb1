"""Price of an encoder that runs on its own: on ranks of its own, or before the backbone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy

from flowtrain.plan.arrays import IntArray
from flowtrain.plan.partition import LEVELS
from flowtrain.plan.prices.chain import Chain
from flowtrain.plan.prices.costs import SECONDS, STATES, Costs, Shape, costs_of, update_s
from flowtrain.plan.prices.network import Network
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.result import RankBytes, Seconds
from flowtrain.plan.space import GpuPool, Rules

_FULL = LEVELS.index("full")


@dataclass(frozen=True, slots=True)
class Chunks:
    """Parts of a step, of which encoders keep one at a time.

    Each chunk of slots runs encoder forward, backbone, and encoder backward before the next chunk
    begins.

    Attributes:
        count: How many there are.
        most_tokens: Maximum tokens that a replica makes for one.
        meets: Whether replicas wait for each other in each.
    """

    count: int
    most_tokens: float
    meets: bool

    @property
    def meetings(self) -> int:
        """Parts of the step in which replicas wait for each other."""
        return self.count if self.meets else 1


@dataclass(frozen=True, kw_only=True)
class EncoderPrice:
    """Times and memory of an encoder.

    Attributes:
        shape: Its mesh.
        recompute: Whether it encodes again before it runs backward, and keeps nothing.
        forward: Forward pass of its inputs.
        backward: Backward pass, with the forward pass that is run again.
        transfer_s: Seconds to send their rows to the backbone: each rank sends its part.
        reduce_s: Sum of the gradients, and gather of the weights that other replicas step, as far
            as these are not hidden.
        optimizer_s: The optimizer's step.
        fixed: Memory of a rank besides what it holds for each group of inputs.
        held: Memory that it holds for a group, or a chunk of one, from the forward to the backward
            pass.
        meetings: Parts of a group in which replicas wait for each other.
        again: Number of blocks, from the first, that are computed again in the backward pass.
    """

    shape: Shape
    recompute: bool
    forward: Seconds
    backward: Seconds
    transfer_s: float
    reduce_s: float
    optimizer_s: float
    fixed: RankBytes
    held: RankBytes
    meetings: int = 1
    again: int = 0

    def memory(self, in_flight: int = 1) -> RankBytes:
        """Memory of a rank.

        Args:
            in_flight: Groups of inputs that it holds.
        """
        return replace(
            self.fixed,
            activations=in_flight * self.held.activations,
            rows=in_flight * self.held.rows,
        )

    @cached_property
    def both(self) -> Seconds:
        """Both passes."""
        names = Seconds.__dataclass_fields__
        return Seconds(**{n: getattr(self.forward, n) + getattr(self.backward, n) for n in names})

    @cached_property
    def both_s(self) -> float:
        """Seconds of both passes."""
        return self.forward.total + self.backward.total

    @cached_property
    def has_backward(self) -> bool:
        """Whether anything in front of the cut trains."""
        return self.backward.total > 0

    @cached_property
    def once_s(self) -> float:
        """Seconds of a step that ranks spend on it which then compute the backbone."""
        return self.fill_s + self.update_s

    @cached_property
    def microbatch_s(self) -> float:
        """Seconds between two groups of inputs: rows are sent while others are computed."""
        return max(self.both_s, self.transfer_s)

    @cached_property
    def first_s(self) -> float:
        """Seconds of the forward pass of a group of inputs, its rows sent."""
        return self.forward.total + self.transfer_s

    @cached_property
    def last_s(self) -> float:
        """Seconds of the backward pass of a group of inputs, the gradients of its rows sent."""
        return self.backward.total + self.transfer_s if self.has_backward else 0.0

    @cached_property
    def fill_s(self) -> float:
        """Seconds of both passes of a group of inputs, its rows and their gradients sent."""
        return self.first_s + self.last_s

    @cached_property
    def update_s(self) -> float:
        """Seconds between the last backward pass and the next step."""
        return self.reduce_s + self.optimizer_s


def least_s(chain: Chain, shape: Shape, *, encoder: int, tokens: float, groups: int) -> float:
    """Seconds of both passes without communication, a lower bound of the price.

    Args:
        chain: As for `encoder_prices`, as the others.
        shape: The mesh.
        encoder: Number of the encoder.
        tokens: Tokens that it makes.
        groups: Parts of the step.

    Raises:
        ValueError: The times are not valid for the items.
    """
    tokens, item = _items(chain.tables, encoder, tokens, groups)
    passes = chain.tables.input_passes(encoder, item, shape.mesh.tp)
    return tokens / item * float(passes[:2].sum(0) @ chain.layers_of_kind)


def _items(tables: Tables, encoder: int, tokens: float, groups: int) -> tuple[float, float]:
    """Tokens that a replica makes between two meetings, and at once."""
    work, modality = tables.work, tables.model.encoders[encoder].modality
    # An input is not split, so that all replicas wait for the largest one.
    tokens = max(tokens, work.largest_input_of(modality, groups))
    return tokens, min(tokens, work.largest_item(modality))


def _chunk_items(
    tables: Tables, encoder: int, tokens: float, chunks: Chunks
) -> tuple[float, float]:
    """The same of a step whose slots are computed by chunks; items are of one chunk."""
    work, modality = tables.work, tables.model.encoders[encoder].modality
    parts = chunks.meetings
    tokens = parts * max(tokens / parts, work.largest_input_of(modality, parts))
    return tokens, min(tokens / chunks.count, work.largest_item(modality))


def encoder_prices(
    chain: Chain,
    shape: Shape,
    *,
    encoder: int,
    tokens: float,
    groups: int,
    pool: GpuPool,
    rules: Rules,
    chunks: Chunks | None = None,
) -> list[EncoderPrice]:
    """Prices of an encoder whose ranks each compute some inputs at a time, item by item.

    The first keeps its activations. If anything trains, others keep less: one encodes each item
    again, and keeps nothing; by chunks, some compute the first blocks of each item again.

    Args:
        chain: Layers in front of the cut.
        shape: Its mesh; tp and dp only.
        encoder: Number of the encoder.
        tokens: Tokens that a replica makes between two meetings, in the mean.
        groups: How often the replicas meet in a step.
        pool: Its GPUs.
        rules: Constants of the prices.
        chunks: Parts of what it makes between two meetings; None keeps all of it at once.

    Raises:
        ValueError: The times are not valid for the items.
    """
    tables = chain.tables
    work, mesh = tables.work, shape.mesh
    own = tables.model.encoders[encoder]
    largest = work.largest_input(own.modality)
    if chunks is None:
        tokens, item = _items(tables, encoder, tokens, groups)
        most = max(rules.headroom * tokens, largest)
    else:
        tokens, item = _chunk_items(tables, encoder, tokens, chunks)
        most = max(chunks.most_tokens, largest)
    network = Network(pool.topology, shape.gpus)
    row = Row(0.0, _alone(tables, encoder, item), 0.0, _alone(tables, encoder, most), 0.0)
    items = tokens / item
    costs = costs_of(
        tables,
        shape,
        [row],
        network,
        layers=chain.layers_of_kind,
        passes_per_step=numpy.array([groups * items]),
        memory_bytes_per_s=pool.memory_bytes_per_s,
        host=rules.host,
        exposed=rules.exposed_share,
    )
    count = chain.layers_of_kind
    forward, backward = items * (costs.forward[0] @ count), items * (costs.backward[0] @ count)
    has_backward = bool(backward.sum() > 0)
    reduce_s, optimizer_s = update_s(
        tables,
        costs,
        shape,
        count,
        float(forward.sum()) / items,
        float(backward.sum()) / items,
        network=network,
        memory_bytes_per_s=pool.memory_bytes_per_s,
        host=rules.host,
        exposed=rules.exposed_share,
    )
    row_bytes = work.itemsize * own.row_width
    kept = float(costs.kept[0, 0] @ count)
    of_item = max(item, largest) / most
    # Without a backward pass, no more than about one layer exists at a time. With one, gradients
    # take the place of what is kept.
    layer = 0.0 if has_backward else _layer_bytes(tables, encoder, most) / mesh.tp
    states = dict(zip(STATES, (costs.states @ count).tolist(), strict=True))
    # They stay from the forward pass to the backward pass, also while the backbone runs.
    gathered = costs.working.gathered
    states["weights"] += gathered
    if chunks is not None:
        states["gradients"] += costs.working.sent
    kept_item = numpy.array([[of_item * kept]])
    beside = costs.working.beside(kept_item, 0.0, costs.working.block.max())
    working = float(beside.max()) - gathered
    rows = row_bytes * most * (2 if has_backward else 1) / mesh.tp
    keeps = EncoderPrice(
        shape=shape,
        recompute=False,
        forward=Seconds(**dict(zip(SECONDS, forward.tolist(), strict=True))),
        backward=Seconds(**dict(zip(SECONDS, backward.tolist(), strict=True))),
        transfer_s=pool.rows_s(row_bytes * tokens / mesh.tp) if tokens else 0.0,
        reduce_s=reduce_s,
        optimizer_s=optimizer_s,
        fixed=RankBytes(
            **states,
            working=of_item * layer + working,
            host=float(costs.host.sum(0) @ count),
        ),
        held=RankBytes(activations=kept, rows=rows),
        meetings=chunks.meetings if chunks else 1,
    )
    if not has_backward:
        return [keeps]
    if chunks is not None:
        some = _some_of(chain.again)
        return [keeps, *(_with_less(keeps, chain, costs, items, of_item, n) for n in some)]
    # Layers that are no blocks stay gathered until the backward pass of the item.
    again_s = keeps.forward.total - items * float(costs.forward[0, 5] @ (count * ~tables.block))
    return [
        keeps,
        replace(
            keeps,
            recompute=True,
            backward=replace(keeps.backward, recompute=again_s),
            fixed=replace(keeps.fixed, working=of_item * kept + working),
            held=RankBytes(rows=rows),
        ),
    ]


def _some_of(blocks: IntArray) -> list[int]:
    """Numbers of blocks that may be computed again: quarters of them."""
    return sorted({len(blocks) * part // 4 for part in range(1, 5)} - {0})


def _with_less(
    keeps: EncoderPrice, chain: Chain, costs: Costs, items: float, of_item: float, number: int
) -> EncoderPrice:
    """A price with some blocks computed again; one of an item has all its activations meanwhile."""
    again = chain.first_blocks(number)
    spared = costs.kept[0, 0] - costs.kept[0, _FULL]
    saved = float(spared @ again)
    running = of_item * float(spared[again > 0].max())
    return replace(
        keeps,
        again=number,
        backward=replace(keeps.backward, recompute=items * float(costs.again[0, _FULL] @ again)),
        fixed=replace(keeps.fixed, working=keeps.fixed.working + running),
        held=replace(keeps.held, activations=keeps.held.activations - saved),
    )


def _alone(tables: Tables, encoder: int, tokens: float) -> tuple[float, ...]:
    """Tokens of each encoder in a row of one of them."""
    found = [0.0] * len(tables.model.encoders)
    found[encoder] = tokens
    return tuple(found)


def _layer_bytes(tables: Tables, encoder: int, tokens: float) -> float:
    """Bytes of the largest tensors that a block has while it runs: its MLP's, four widths each."""
    tower_tokens = tokens * tables.inputs(encoder, 1.0).vision_tokens
    return 8.0 * tables.work.itemsize * tower_tokens * tables.model.encoders[encoder].width

"""Layouts of a run on the cores of one host: sampled steps, planned as the run plans its own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from flowtrain.config.layout import RankLayout
from flowtrain.cost.step import RankTimes
from flowtrain.plan.cached import words_of
from flowtrain.plan.host.choice import Choice
from flowtrain.plan.host.sampled import SampledSteps
from flowtrain.plan.run_layout import RunLayout

# Ranks for each core; waiting ranks leave their core to others.
_RANKS_PER_CORE = 1.5
# Part of a step that each rank too many costs, as a share of the cores: such ranks run in turn,
# with smaller batches. A cautious value: three colocated ranks on two cores took 1.4 to 1.5 times
# as long as two, and this says 1.1.
_CROWDING = 0.2


def choose_on_cores(
    steps: SampledSteps,
    times: RankTimes,
    *,
    cores: int,
    threads: int = 1,
    reduce_bytes: float,
    read_s: float,
    source: str,
    cache_hits: float = 0.0,
) -> Choice:
    """The layout with the shortest estimated step.

    Args:
        steps: Sampled steps of the run.
        times: Times of a rank with its threads.
        cores: Cores, over which the threads of the ranks are spread.
        threads: Threads of a rank.
        reduce_bytes: Bytes per second that a rank sends in an all-reduce.
        read_s: Seconds of a core to read a sample.
        source: Where the times are from.
        cache_hits: Expected share of the images whose features are in the cache of the run: these
            are neither read nor encoded.
    """
    # As many cores as a rank has threads count as one.
    units = max(1, cores // threads)

    def priced(layout: RankLayout) -> float:
        return step_seconds(
            steps,
            layout,
            times,
            cores=units,
            reduce_bytes=reduce_bytes,
            read_s=(1 - cache_hits) * read_s / threads,
            encoded=1 - cache_hits,
        )

    layouts = candidates(
        cores=units,
        max_ranks=max(1, min(int(_RANKS_PER_CORE * units), steps.global_batch)),
        encoder_share=_encoder_share(steps, times, encoded=1 - cache_hits),
    )
    seconds = {layout: priced(layout) for layout in layouts}
    best, *others = sorted(seconds.items(), key=lambda each: each[1])
    return Choice(
        layout=RunLayout(ranks=best[0]),
        step_s=best[1],
        where=f"{cores} core{'s' * (cores > 1)}",
        source=source + words_of(cache_hits),
        next_best=(RunLayout(ranks=others[0][0]), others[0][1]) if others else None,
    )


def step_seconds(
    steps: SampledSteps,
    layout: RankLayout,
    times: RankTimes,
    *,
    cores: int,
    reduce_bytes: float,
    read_s: float,
    encoded: float = 1.0,
) -> float:
    """Estimated mean seconds of a step.

    Plans of the sampled steps give the work of each rank. A phase lasts as long as its slowest
    rank, and at least its work divided by the cores. Colocated ranks have one phase, and decoupled
    ones too if the encoder need not wait for the update; otherwise the modules run one
    after the other. The optimizers are a phase of their own, behind the sum of the gradients.
    Samples are read on cores that a phase leaves idle; if they are not enough, the step is longer.

    Args:
        steps: The sampled steps.
        layout: The layout.
        times: Times on one core.
        cores: Cores, over which the ranks are spread.
        reduce_bytes: Bytes per second that a rank sends in an all-reduce.
        read_s: Seconds of a core to read a sample.
        encoded: Share of the images that are encoded.
    """
    reading_s = steps.global_batch * read_s

    def phase(loads: Sequence[float]) -> float:
        return max(*loads, sum(loads) / cores)

    in_turn = not layout.colocated and steps.mode == "strict"
    found = []
    for plan in steps.plans(layout):
        worlds = [
            [steps.rank_seconds(plan, world, rank, times) for rank in range(world.size)]
            for world in layout.worlds
        ]
        computing = [[encoded * rank.encode + rank.backbone for rank in w] for w in worlds]
        phases = computing if in_turn else [[load for world in computing for load in world]]
        updates = [rank.update for world in worlds for rank in world]
        work_s = sum(map(sum, phases)) + sum(updates) + reading_s
        found.append(max(sum(map(phase, phases)) + phase(updates), work_s / cores))
    reduce_s = max(
        2 * steps.trained_bytes(world) * (world.size - 1) / world.size / reduce_bytes
        for world in layout.worlds
    )
    surplus = max(0, len(layout.labels) - cores) / cores
    return (statistics.fmean(found) + reduce_s) * (1 + _CROWDING * surplus)


def _encoder_share(steps: SampledSteps, times: RankTimes, *, encoded: float) -> float:
    """The encoder's share of forward and backward passes on one rank."""
    alone = RankLayout.colocated_on(1)
    (world,) = alone.worlds
    ranks = [steps.rank_seconds(plan, world, 0, times) for plan in steps.plans(alone)]
    encode, backbone = (sum(getattr(rank, n) for rank in ranks) for n in ("encode", "backbone"))
    return encoded * encode / (encoded * encode + backbone)


def candidates(*, cores: int, max_ranks: int, encoder_share: float) -> list[RankLayout]:
    """Layouts that may be the best.

    Args:
        cores: Cores.
        max_ranks: Maximum ranks in all.
        encoder_share: The encoder's share of the work; decoupled ranks are divided about so.
    """
    totals = sorted({1, min(cores, max_ranks), max_ranks})
    found = [RankLayout.colocated_on(ranks) for ranks in totals]
    for total in totals:
        near = round(total * encoder_share)
        found += [
            RankLayout.decoupled(encoder, total - encoder)
            for encoder in range(near - 1, near + 2)
            if 0 < encoder < total
        ]
    return found

"""Whether a plan stays the best if a figure is another one than assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from flowtrain.cost.layers import Counts, Layer
from flowtrain.cost.timing import DataSheetTiming, Efficiency, PassSeconds, Timing
from flowtrain.cost.topology import Link
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.fixed import only
from flowtrain.plan.report.answer import Scaled
from flowtrain.plan.result import Plan
from flowtrain.plan.search import search
from flowtrain.plan.space import GpuPool, Rules
from flowtrain.plan.work import Work

FACTORS = (0.9, 1.1)
"""Efficiencies that are tried, over those that are assumed."""

EXPOSED = "exposed share of collectives"
EXPOSED_FACTORS = (0.5, 2.0)
"""Exposed shares that are tried, over the assumed one: the range of what was published."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _ScaledTimes:
    """Times that all take as many times as long."""

    timing: Timing
    factor: float

    def seconds(
        self, layer: Layer, counts: Counts, *, tp: int = 1, cp: int = 1, ep: int = 1
    ) -> PassSeconds:
        found = self.timing.seconds(layer, counts, tp=tp, cp=cp, ep=ep)
        return PassSeconds(
            forward=self.factor * found.forward,
            backward_input=self.factor * found.backward_input,
            backward_weight=self.factor * found.backward_weight,
            attention=self.factor * found.attention,
        )


def _linear(pool: GpuPool, factor: float) -> GpuPool:
    if not isinstance(pool.timing, DataSheetTiming):
        return pool
    linear = _better(pool.timing.linear, factor)
    return replace(pool, timing=replace(pool.timing, linear=linear))


def _attention(pool: GpuPool, factor: float) -> GpuPool:
    if not isinstance(pool.timing, DataSheetTiming):
        return pool
    attention = _better(pool.timing.attention, factor)
    return replace(pool, timing=replace(pool.timing, attention=attention))


def _better(efficiency: Efficiency, factor: float) -> Efficiency:
    return replace(efficiency, maximum=min(1.0, factor * efficiency.maximum))


def _measured(pool: GpuPool, factor: float) -> GpuPool:
    if isinstance(pool.timing, DataSheetTiming):
        return pool
    return replace(pool, timing=_ScaledTimes(timing=pool.timing, factor=1 / factor))


def _memory(pool: GpuPool, factor: float) -> GpuPool:
    timing = pool.timing
    if isinstance(timing, DataSheetTiming):
        timing = replace(timing, memory_bytes_per_s=factor * timing.memory_bytes_per_s)
    return replace(pool, memory_bytes_per_s=factor * pool.memory_bytes_per_s, timing=timing)


def _inside(pool: GpuPool, factor: float) -> GpuPool:
    link = _faster(pool.topology.inside, factor)
    return replace(pool, topology=replace(pool.topology, inside=link))


def _between(pool: GpuPool, factor: float) -> GpuPool:
    link = _faster(pool.topology.between, factor)
    return replace(pool, topology=replace(pool.topology, between=link))


def _faster(link: Link, factor: float) -> Link:
    return replace(link, bytes_per_s=factor * link.bytes_per_s)


EFFICIENCIES: dict[str, Callable[[GpuPool, float], GpuPool]] = {
    "products with a weight": _linear,
    "attention": _attention,
    "measured times": _measured,
    "memory bandwidth": _memory,
    "links inside nodes": _inside,
    "links between nodes": _between,
}
"""Functions that multiply an efficiency; pools that do not have it are returned as they are."""


def scaled_rankings(
    model: ModelDescription, work: Work, pools: Sequence[GpuPool], plans: Sequence[Plan]
) -> tuple[Scaled, ...]:
    """Which of some plans is the best if one figure is lower, or higher, than assumed.

    Args:
        model: The model.
        work: The step.
        pools: The GPUs, with the efficiencies that are assumed.
        plans: The plans, the best first. They are priced again for mean samples.
    """
    found = []
    for name, factor, scaled, rules in _cases(pools):
        steps_s = [_step_s(model, work, scaled, rules, plan) for plan in plans]
        winner = min(range(len(plans)), key=lambda number: steps_s[number])
        found.append(
            Scaled(
                name=name,
                factor=factor,
                winner=plans[winner],
                stays=steps_s[0] == steps_s[winner],
                loss=steps_s[0] / steps_s[winner] - 1,
            )
        )
    return tuple(found)


def _cases(pools: Sequence[GpuPool]) -> Iterator[tuple[str, float, list[GpuPool], Rules]]:
    """Pools and rules with one figure that is changed, its name, and the factor."""
    rules = Rules()
    for name, scale in EFFICIENCIES.items():
        for factor in FACTORS:
            scaled = [scale(pool, factor) for pool in pools]
            if scaled != list(pools):
                yield name, factor, scaled, rules
    for factor in EXPOSED_FACTORS:
        share = min(1.0, factor * rules.exposed_share)
        yield EXPOSED, factor, list(pools), replace(rules, exposed_share=share)


def _step_s(
    model: ModelDescription, work: Work, pools: Sequence[GpuPool], rules: Rules, plan: Plan
) -> float:
    """Seconds of a plan's layout for mean samples."""
    report = search(
        model, work, pools, space=only(plan), rules=rules, keep=1, neighbours=False, batches=0
    )
    return float(report.best.step_s)

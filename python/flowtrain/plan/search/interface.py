"""Searches for the plan with the shortest step."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Collection, Hashable, Iterator, Sequence

from flowtrain import progress
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.result import Mode, Plan, PlanReport
from flowtrain.plan.search.assumptions import assumptions_of
from flowtrain.plan.search.best import Best
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.convert import plan_of
from flowtrain.plan.search.coupled import Colocated, Prefix, Priced
from flowtrain.plan.search.disaggregated import Disaggregated, Fronts
from flowtrain.plan.search.draws import sample_test
from flowtrain.plan.search.finished import Finished
from flowtrain.plan.search.infeasible import no_plan
from flowtrain.plan.search.launches import launch_warning
from flowtrain.plan.search.simulate import Simulation
from flowtrain.plan.space import GpuPool, Rules, Space
from flowtrain.plan.work import Work

DEFAULT_SPACE, DEFAULT_RULES = Space(), Rules()

_SEARCHED = 64  # GPUs; for neighbours with more, not all layouts are searched.


def search(
    model: ModelDescription,
    work: Work,
    pools: Sequence[GpuPool],
    *,
    space: Space = DEFAULT_SPACE,
    rules: Rules = DEFAULT_RULES,
    keep: int = 20,
    neighbours: bool = True,
    batches: int = 8,
    seed: int = 0,
) -> PlanReport:
    """Find the plans with the shortest steps.

    The result is that of pricing every plan of the space: candidates are only left out if a lower
    bound of their step is not below the last of the plans kept or that of the same layout, or if
    they do not fit into memory. A layout on fewer GPUs is no other one.

    Args:
        model: The model.
        work: The step.
        pools: GPUs of each type. A module is on GPUs of one type.
        space: Plans to search.
        rules: Constants of the prices.
        keep: Number of plans to return; so many of all plans and of the uniform ones are simulated,
            and more as long as they may be the shortest, but at most `MOST_SIMULATED` of each.
        neighbours: Whether to search with one GPU or node less, and one more. With more than 64
            GPUs, that is among the layouts that are returned, and all of the mode of the best.
        batches: Sampled batches on which the plans kept are simulated; 0 for none.
        seed: Seed of these samples.

    Raises:
        NoPlanError: No plan fits; the message says what is missing.
        ValueError: There is no pool, `keep` is below 1, or samples have tokens that no encoder
            makes.
    """
    if not pools or keep < 1:
        raise ValueError(f"pools={len(pools)}, keep={keep}: both must be at least 1")
    if not work.share.has_inputs and "prefix" not in space.modes:
        raise ValueError(
            f"workload '{work.workload.name}' has no images, so that there is no encoder to place "
            f"(modes={', '.join(space.modes)}); add mode prefix"
        )
    model = model.with_inputs(work.share)
    contexts = [Context(model, work, pool, space, rules) for pool in pools]
    finished = Finished(pools, Simulation(work, batches=batches, seed=seed) if batches else None)
    uniform, best = finished.best(keep), finished.best(keep)
    consider_uniform(uniform, contexts)
    for plan in uniform.plans:
        best.add(plan)
    consider_modules(best, contexts)
    if not best.plans:
        raise no_plan(contexts)
    all_simulated = finished.finish(best, keep)
    all_uniform_simulated = finished.finish(uniform, keep)
    found = finished.plans[:keep]
    plans = [plan for _, plan in found]
    sure = [(priced, plan) for priced, plan in found if math.isfinite(plan.best_s)]
    smaller, larger = None, None
    if neighbours and len(pools) == 1:
        smaller = _with_less(contexts[0], best.plans[:keep])
        larger = _with_more(contexts[0], best.plans[:keep])
    counts: collections.Counter[str] = collections.Counter()
    for context in contexts:
        counts.update(context.counts)
    return PlanReport(
        model=model.name,
        gpus={pool.gpu_type: pool.gpus for pool in pools},
        samples=work.batch,
        best=plans[0],
        uniform=next((plan for _, plan in finished.plans if plan.mode == "prefix"), None),
        plans=tuple(plans),
        cheapest=finished.of(best.plans[0]),
        smaller=smaller,
        larger=larger,
        counts=dict(counts),
        cheapest_uniform=finished.of(uniform.plans[0]) if uniform.plans else None,
        assumptions=tuple(assumptions_of(model, work, pools, rules, space.tp)),
        warnings=(warning,) if (warning := launch_warning(found[0][0])) else (),
        sample_test=sample_test(sure, seed=seed) if batches and sure else None,
        simulated=len(finished.plans) if batches else 0,
        all_simulated=all_simulated,
        all_uniform_simulated=all_uniform_simulated,
    )


def consider_uniform(best: Best[Priced], contexts: Sequence[Context]) -> None:
    """Consider plans with one layout for the whole model.

    Args:
        best: The best plans so far.
        contexts: The model on each pool.
    """
    if "prefix" in contexts[0].space.modes:
        for context, gpus in progress.over("plans of one layout", _budgets(contexts)):
            best.consider(Prefix.all_of(context, gpus, best))


def consider_modules(best: Best[Priced], contexts: Sequence[Context], *, at_least: int = 1) -> None:
    """Consider plans whose modules have layouts of their own.

    Args:
        best: The best plans so far.
        contexts: The model on each pool.
        at_least: GPUs that a plan has at least; fewer are known to be no better.
    """
    if not contexts[0].work.share.has_inputs:
        return  # Without images, there is nothing to encode.
    modes = contexts[0].space.modes
    if "colocated" in modes:
        for context, gpus in progress.over("colocated plans", _budgets(contexts)):
            if gpus >= at_least:
                best.consider(Colocated.all_of(context, gpus, best))
    if "disaggregated" in modes:
        places = itertools.product(contexts, repeat=len(contexts[0].model.encoders))
        fronts = [Fronts(each) for each in places]
        shares = [
            (context, front, gpus)
            for context in contexts
            for front in fronts
            for gpus in context.shares()
        ]
        for context, front, gpus in progress.over("disaggregated plans", shares):
            best.consider(Disaggregated.all_of(context, front, gpus, best))


def _budgets(contexts: Sequence[Context]) -> list[tuple[Context, int]]:
    """Each pool with each number of its GPUs that a plan may have."""
    return [(context, gpus) for context in contexts for gpus in context.budgets()]


def _with_less(context: Context, known: Sequence[Priced]) -> tuple[int, Plan] | None:
    """The best plan for the next smaller budget, or the best of known layouts of a large one."""
    smaller = [gpus for gpus in context.pool.budgets() if gpus < context.pool.gpus]
    if not smaller:
        return None
    less = context.of_budget(smaller[-1])
    best: Best[Priced] = Best(1)
    _consider_known(best, less, known)
    if less.pool.gpus <= _SEARCHED or not best.plans:
        consider_all(best, [less])
    return (smaller[-1], plan_of(best.plans[0], [less.pool])) if best.plans else None


def _consider_known(best: Best[Priced], context: Context, known: Sequence[Priced]) -> None:
    """Consider layouts that are good on another number of GPUs, with other replicas.

    And all of the mode of the best one, on all GPUs. A good plan, found soon, spares prices of many
    others.
    """
    kinds: dict[tuple[Mode, int], set[Hashable]] = collections.defaultdict(set)
    for plan in known:
        mesh = plan.pipeline.shape.mesh
        ranks = mesh.tp * mesh.cp * mesh.pp
        kinds[plan.mode, context.pool.gpus // ranks * ranks].add(plan.kind)
    budgets = context.budgets()
    for (mode, gpus), wanted in kinds.items():
        if mode != "disaggregated" and gpus in budgets:
            best.consider(_coupled(mode, context, gpus, best, only=wanted))
    # The mode of the best is a good one here, too.
    if known[0].mode != "disaggregated":
        best.consider(_coupled(known[0].mode, context, budgets[0], best))


def _coupled(
    mode: Mode,
    context: Context,
    gpus: int,
    best: Best[Priced],
    only: Collection[Hashable] | None = None,
) -> Iterator[Prefix | Colocated]:
    if mode == "prefix":
        yield from Prefix.all_of(context, gpus, best, only)
    else:
        yield from Colocated.all_of(context, gpus, best, only)


def _with_more(context: Context, known: Sequence[Priced]) -> tuple[int, Plan] | None:
    """The best plan for the next larger budget, of which the known ones are some."""
    pool = context.pool
    node = pool.topology.devices_per_node
    gpus = pool.gpus + 1 if pool.gpus < node else (pool.gpus // node + 1) * node
    if context.space.runtime.one_node and gpus > node:
        return None
    larger = context.of_budget(gpus)
    best: Best[Priced] = Best(1)
    best.add(known[0])
    _consider_known(best, larger, known)
    if gpus <= _SEARCHED:
        if "prefix" in larger.space.modes:
            best.consider(Prefix.all_of(larger, gpus, best))
        consider_modules(best, [larger], at_least=gpus)
    return gpus, plan_of(best.plans[0], [larger.pool])


def best_plan(context: Context) -> Priced | None:
    """The plan of a pool with the shortest step, or None if none fits."""
    best: Best[Priced] = Best(1)
    consider_all(best, [context])
    return best.plans[0] if best.plans else None


def consider_all(best: Best[Priced], contexts: Sequence[Context]) -> None:
    """Consider all plans.

    Args:
        best: The best plans so far.
        contexts: The model on each pool.
    """
    consider_uniform(best, contexts)
    consider_modules(best, contexts)

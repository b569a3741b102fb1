"""Says what is missing if no plan fits, and what would make one fit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.result import NoPlanError, OutOfRangeError
from flowtrain.plan.search.best import Best
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.coupled import Colocated, Prefix
from flowtrain.plan.search.disaggregated import Disaggregated, Fronts
from flowtrain.plan.space import GpuPool, Rules, Space
from flowtrain.plan.work import Work

_GIB = 1 << 30
_MAX_GPUS = 4096
_MAX_FACTOR = 1 << 12
_PRECISION = 1.02
_FLOAT32_BYTES = 4
DEFAULT_RULES = Rules()


def no_plan(contexts: Sequence[Context]) -> NoPlanError:
    """The error for pools on which no plan fits.

    Args:
        contexts: The model on each pool, after a search without result.
    """
    context = max(contexts, key=lambda each: each.pool.gpus * each.pool.memory_bytes)
    model, work, pool = context.model, context.work, context.pool
    space, rules = context.space, context.rules
    budget = " + ".join(f"{each.pool.gpus} {each.pool.gpu_type}" for each in contexts)
    said = (
        f"{model.name}: no plan for batch={work.batch} fits {budget} with "
        f"{rules.usable(pool) / _GIB:.3g} GiB to use on each"
    )
    if context.out_of_range and not context.counts["memory"]:
        return OutOfRangeError(f"{said}: the times are not valid for any; {context.out_of_range}")
    ways = []
    memory = _least_memory(model, work, pool, space, rules)
    if memory is not None:
        missing = (memory - rules.usable(pool)) / _GIB
        ways.append(
            f"{missing:.3g} GiB are missing on each of {pool.gpus} GPUs "
            f"({memory / _GIB:.3g} GiB fit)"
        )
    gpus = _fewest_gpus(model, work, pool, space, rules)
    if gpus is not None:
        ways.append(f"the smallest budget that fits is {gpus} {pool.gpu_type}")
    if space.one_host:
        # Other spaces have sharding and recomputation, which change the run less.
        ways += changes(model, work, pool, space, rules)
    if not ways:
        cap = work.microbatch_tokens or work.longest
        ways.append(
            f"neither more memory nor more GPUs help: allow more sizes in the space, "
            f"or change batch={work.batch} or the {cap} tokens of a microbatch"
        )
    return NoPlanError(f"{said}: {'; '.join(ways)}")


def changes(
    model: ModelDescription, work: Work, pool: GpuPool, space: Space, rules: Rules = DEFAULT_RULES
) -> Iterator[str]:
    """Overrides that would make a plan fit, or what they need of each GPU; each alone and both.

    Args:
        model: The model.
        work: The step.
        pool: The GPUs.
        space: Plans to search.
        rules: Constants of the prices.
    """
    bare = _without_masters(work)
    smaller = _with_small_rows(model, work, pool, space, rules)
    both = _with_small_rows(model, bare, pool, space, rules)
    found = {_overrides(work, changed): changed for changed in (smaller, bare, both)}
    for words, changed in found.items():
        if words:
            yield f"{words} {needed(model, changed, pool, space, rules)}"


def _overrides(work: Work, changed: Work) -> str:
    """The overrides of a run that change a step."""
    words = []
    if changed.microbatch_tokens != work.microbatch_tokens:
        words.append(f"train.microbatch_tokens={changed.microbatch_tokens}")
    if changed.optim.master_weights != work.optim.master_weights:
        words.append("optim.master_weights=false")
    return " ".join(words)


def _with_small_rows(
    model: ModelDescription, work: Work, pool: GpuPool, space: Space, rules: Rules
) -> Work:
    """The step with the largest microbatches that fit, or the smallest with valid times."""
    cap = work.microbatch_tokens
    least = max(work.longest, math.ceil(rules.headroom * work.share.tokens))
    if cap is None or cap <= least:
        return work
    halves = [cap >> power for power in range(1, cap.bit_length())]
    found = work
    for tokens in [*(half for half in halves if half > least), least]:
        smaller = replace(work, microbatch_tokens=tokens)
        if _any_fits(Context(model, smaller, pool, space, rules)):
            return smaller
        if _least_memory(model, smaller, pool, space, rules) is None:
            break  # Its rows are too small for the times.
        found = smaller
    return found


def _without_masters(work: Work) -> Work:
    if not work.optim.master_weights or work.itemsize >= _FLOAT32_BYTES:
        return work
    return replace(work, optim=replace(work.optim, master_weights=False))


def needed(
    model: ModelDescription, work: Work, pool: GpuPool, space: Space, rules: Rules = DEFAULT_RULES
) -> str:
    """Whether a plan fits, or the memory that the smallest one needs of each GPU, in words.

    Args:
        model: The model.
        work: The step.
        pool: The GPUs.
        space: Plans to search.
        rules: Constants of the prices.
    """
    if _any_fits(Context(model, work, pool, space, rules)):
        return "fits"
    memory = _least_memory(model, work, pool, space, rules)
    return "does not help" if memory is None else f"needs {memory / _GIB:.3g} GiB"


def _least_memory(
    model: ModelDescription, work: Work, pool: GpuPool, space: Space, rules: Rules
) -> int | None:
    """Bytes to use on each GPU with which a plan fits, within 2 %."""

    def fits(factor: float) -> bool:
        larger = replace(pool, memory_bytes=int(factor * pool.memory_bytes))
        return _any_fits(Context(model, work, larger, space, rules))

    high = next((2.0**n for n in range(1, _MAX_FACTOR.bit_length()) if fits(2.0**n)), None)
    if high is None:
        return None
    low = high / 2
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return rules.usable(replace(pool, memory_bytes=int(high * pool.memory_bytes)))


def _fewest_gpus(
    model: ModelDescription, work: Work, pool: GpuPool, space: Space, rules: Rules
) -> int | None:
    """The smallest budget with which a plan fits."""
    context = Context(model, work, pool, space, rules)

    def fits(gpus: int) -> bool:
        return _any_fits(context.of_budget(gpus))

    most = pool.topology.devices_per_node if space.one_host else max(_MAX_GPUS, pool.gpus)
    budgets = replace(pool, gpus=most).budgets()
    low = sum(budget <= pool.gpus for budget in budgets)  # The first that may fit.
    step = 1
    while low + step - 1 < len(budgets) and not fits(budgets[low + step - 1]):
        step *= 2
    high = low + step - 1
    if high >= len(budgets):
        return None
    low += step // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(budgets[middle]) else (middle + 1, high)
    return budgets[low]


def _any_fits(context: Context) -> bool:
    return any(candidate.priced() is not None for candidate in _all(context))


def _all(context: Context) -> Iterator[Prefix | Colocated | Disaggregated]:
    """All candidates of a pool, those with the most GPUs first."""
    modes = context.space.modes
    with_images = context.work.share.has_inputs
    fronts = Fronts((context,) * len(context.model.encoders))
    for gpus in context.budgets():
        kinds: list[Iterable[Prefix | Colocated]] = []
        if "prefix" in modes:
            kinds.append(Prefix.all_of(context, gpus, Best(1)))
        if "colocated" in modes and with_images:
            kinds.append(Colocated.all_of(context, gpus, Best(1)))
        yield from itertools.chain(*kinds)
    if "disaggregated" in modes and with_images:
        for gpus in context.shares():
            yield from Disaggregated.all_of(context, fronts, gpus, Best(1))

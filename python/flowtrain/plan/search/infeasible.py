"""Says what is missing if no plan fits, and what would make one fit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from flowtrain.config.dtypes import ITEMSIZES
from flowtrain.plan.result import NoPlanError, OutOfRangeError
from flowtrain.plan.runtime import FLOWTRAIN
from flowtrain.plan.search.best import Best
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.coupled import Colocated, Prefix
from flowtrain.plan.search.disaggregated import Disaggregated, Fronts
from flowtrain.plan.work import Work

_GIB = 1 << 30
_MAX_GPUS = 4096
_FACTORS = [2.0**n for n in range(1, 13)]  # Of the memory of a GPU.
_PRECISION = 1.02
_NAMES = {size: name for name, size in ITEMSIZES.items()}


def no_plan(contexts: Sequence[Context]) -> NoPlanError:
    """The error for pools on which no plan fits.

    Args:
        contexts: The model on each pool, after a search without result.
    """
    context = max(contexts, key=lambda each: each.pool.gpus * each.pool.memory_bytes)
    model, work, pool = context.model, context.work, context.pool
    budget = " + ".join(f"{each.pool.gpus} {each.pool.gpu_type}" for each in contexts)
    ways = []
    memory = _least_memory(context)
    if memory is None and context.out_of_range:
        return OutOfRangeError(
            f"{model.name}: the times on {budget} are not valid for any plan of "
            f"batch={work.batch}; {context.out_of_range}"
        )
    if memory is not None:
        missing = (memory - context.usable_bytes) / _GIB
        ways.append(
            f"{missing:.3g} GiB are missing on "
            f"{f'each of {pool.gpus} GPUs' if pool.gpus > 1 else 'the GPU'} "
            f"({memory / _GIB:.3g} GiB fit)"
        )
    gpus = _fewest_gpus(context)
    if gpus is not None:
        node = pool.topology.devices_per_node
        ways.append(f"the smallest budget that fits is {gpus} {pool.gpu_type} in nodes of {node}")
    if context.space.runtime.name == FLOWTRAIN.name:
        # Other spaces have more GPUs and more parallelism, which change the run less.
        ways += changes(context)
    if not ways:
        cap = work.microbatch_tokens or work.longest
        ways.append(
            f"neither more memory nor more GPUs help: allow more sizes in the space, "
            f"or change batch={work.batch} or the {cap} tokens of a microbatch"
        )
    return NoPlanError(
        f"{model.name}: no plan for batch={work.batch} fits {budget} with "
        f"{context.usable_bytes / _GIB:.3g} GiB to use on each: {'; '.join(ways)}"
    )


def changes(context: Context) -> Iterator[str]:
    """Overrides that would make a plan fit, or what they need of each GPU; each alone and both.

    Args:
        context: What is to be planned.
    """
    bare = context.with_work(_without_masters(context.work))
    on_host = context.with_work(_offloaded(context.work))
    variants = (bare, on_host)
    changed = (_with_small_rows(context), *variants, *map(_with_small_rows, variants))
    found = {_overrides(context.work, each.work): each for each in changed}
    for words, each in found.items():
        if words:
            yield f"{words} {needed(each)}"


def _overrides(work: Work, changed: Work) -> str:
    """The overrides of a run that change a step."""
    words = []
    if changed.microbatch_tokens != work.microbatch_tokens:
        words.append(f"train.microbatch_tokens={changed.microbatch_tokens}")
    if changed.stored_itemsize != work.stored_itemsize:
        words.append(f"model.dtype={_NAMES[changed.stored_itemsize]}")
    if changed.optim.offload != work.optim.offload:
        words.append("optim.offload=true")
    return " ".join(words)


def _with_small_rows(context: Context) -> Context:
    """With the largest microbatches that fit, or the smallest with valid times."""
    work = context.work
    cap = work.microbatch_tokens
    least = max(work.longest, math.ceil(context.rules.headroom * work.share.tokens))
    if cap is None or cap <= least:
        return context
    halves = [cap >> power for power in range(1, cap.bit_length())]
    found = context
    for tokens in [*(half for half in halves if half > least), least]:
        smaller = context.with_work(replace(work, microbatch_tokens=tokens))
        if _any_fits(smaller):
            return smaller
        if not _fits_with(smaller, _FACTORS[-1]):
            break  # Its rows are too small for the times.
        found = smaller
    return found


def _without_masters(work: Work) -> Work:
    return replace(work, stored_itemsize=work.itemsize)


def _offloaded(work: Work) -> Work:
    return replace(work, optim=replace(work.optim, offload=True))


def needed(context: Context) -> str:
    """Whether a plan fits, or the memory that the smallest one needs of each GPU, in words.

    Args:
        context: What is to be planned.
    """
    if _any_fits(context):
        return "fits"
    memory = _least_memory(context)
    return "does not help" if memory is None else f"needs {memory / _GIB:.3g} GiB"


def _least_memory(context: Context) -> int | None:
    """Bytes to use on each GPU with which a plan fits, within 2 %."""
    high = next((n for n in _FACTORS if _fits_with(context, n)), None)
    if high is None:
        return None
    low = high / 2
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _fits_with(context, middle) else (middle, high)
    return _with_memory(context, high).usable_bytes


def _fits_with(context: Context, factor: float) -> bool:
    """Whether a plan fits with so many times the memory."""
    return _any_fits(_with_memory(context, factor))


def _with_memory(context: Context, factor: float) -> Context:
    return context.of_memory(int(factor * context.pool.memory_bytes))


def _fewest_gpus(context: Context) -> int | None:
    """The smallest budget with which a plan fits."""
    pool = context.pool
    failed = pool.gpus

    def fits(gpus: int) -> bool:
        nonlocal failed
        found = _any_fits(context.of_budget(gpus), above=failed)
        failed = failed if found else max(failed, gpus)
        return found

    one_node = context.space.runtime.one_node
    most = pool.topology.devices_per_node if one_node else max(_MAX_GPUS, pool.gpus)
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


def _any_fits(context: Context, *, above: int = 0) -> bool:
    return any(candidate.priced() is not None for candidate in _all(context, above))


def _all(context: Context, above: int) -> Iterator[Prefix | Colocated | Disaggregated]:
    """All candidates of a pool, those with the most GPUs first.

    Args:
        context: The pool.
        above: A budget on which nothing fits. Modules that share their GPUs need more.
    """
    modes = context.space.modes
    with_images = context.work.share.has_inputs
    fronts = Fronts((context,) * len(context.model.encoders))
    for gpus in itertools.takewhile(lambda budget: budget > above, context.budgets()):
        kinds: list[Iterable[Prefix | Colocated]] = []
        if "prefix" in modes:
            kinds.append(Prefix.all_of(context, gpus, Best(1)))
        if "colocated" in modes and with_images:
            kinds.append(Colocated.all_of(context, gpus, Best(1)))
        yield from itertools.chain(*kinds)
    if "disaggregated" in modes and with_images:
        for gpus in context.shares():
            yield from Disaggregated.all_of(context, fronts, gpus, Best(1))

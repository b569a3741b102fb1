"""Checks the input of the allocator, and says what is missing if nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy

from flowtrain.plan.allocation.candidates import MAX_GPUS_BITS, Candidates
from flowtrain.plan.allocation.problem import Block, Module, Problem, first_true, shortages
from flowtrain.plan.arrays import FloatArray
from flowtrain_core import FlowTrainError

Offers = Mapping[str, Candidates | Sequence[Candidates]]
"""Candidates by name of the module; several, if the module can be on several types of GPU."""

Limit = int | Mapping[str, int]
"""One limit for all types of GPU, or a limit by type."""


class NoAllocationError(FlowTrainError, ValueError):
    """No allocation fits; the message says what is missing.

    Attributes:
        gpus: The smallest budget that fits, in the form of the argument; None if more GPUs do not
            help.
        more_bytes: Bytes that a GPU lacks, if more memory alone helps.
    """

    def __init__(
        self, message: str, *, gpus: Limit | None = None, more_bytes: int | None = None
    ) -> None:
        super().__init__(message)
        self.gpus = gpus
        self.more_bytes = more_bytes


def build(candidates: Offers, *, gpus: Limit, microbatches: int, memory_bytes: Limit) -> Problem:
    """The problem, which has a solution.

    Raises:
        ValueError: An argument is out of its range, or a type of GPU has no limit.
        NoAllocationError: Nothing fits.
    """
    if not candidates:
        raise ValueError("candidates: give one module or more")
    _whole("microbatches", microbatches, 1, 31)
    offers = {name: _listed(name, offer) for name, offer in candidates.items()}
    types = list(dict.fromkeys(offer.gpu_type for of in offers.values() for offer in of))
    _limits("gpus", gpus, types, MAX_GPUS_BITS)
    _limits("memory_bytes", memory_bytes, types, 60)
    budgets = types if isinstance(gpus, Mapping) else ["all"]
    limits = [gpus[name] for name in budgets] if isinstance(gpus, Mapping) else [gpus]
    modules = []
    for name, of in offers.items():
        taken_from = [types.index(o.gpu_type) if isinstance(gpus, Mapping) else 0 for o in of]
        modules.append(_module(name, of, taken_from, memory_bytes))
    blocks = [_blocks(module) for module in modules]
    _check_fit(modules, budgets, limits, gpus, memory_bytes)
    return Problem(
        modules=modules,
        blocks=blocks,
        budgets=budgets,
        limits=limits,
        microbatches=microbatches,
        ceilings=_distinct([block.microbatch_s for of in blocks for block in of.values()]),
        updates=_distinct([block.update_s for of in blocks for block in of.values()]),
    )


def _distinct(times_s: Sequence[FloatArray]) -> FloatArray:
    return numpy.unique(numpy.concatenate(times_s))


def _listed(name: str, offer: Candidates | Sequence[Candidates]) -> list[Candidates]:
    listed = [offer] if isinstance(offer, Candidates) else list(offer)
    if not listed:
        raise ValueError(f"module '{name}': no candidates; give one or more")
    types = [each.gpu_type for each in listed]
    for gpu_type in types:
        if types.count(gpu_type) > 1:
            raise ValueError(
                f"module '{name}': {types.count(gpu_type)} sets of candidates on '{gpu_type}'; "
                "join them into one"
            )
    return listed


def _whole(name: str, value: int, low: int, high_bits: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, numpy.integer)):
        raise ValueError(f"{name}={value!r}: must be an integer")
    if not low <= value <= 1 << high_bits:
        raise ValueError(f"{name}={value}: must be from {low} to 2^{high_bits}")


def _limits(name: str, limit: Limit, types: Sequence[str], high_bits: int) -> None:
    if not isinstance(limit, Mapping):
        _whole(name, limit, 1, high_bits)
        return
    for gpu_type in types:
        if gpu_type not in limit:
            known = ", ".join(f"'{each}'" for each in limit) or "none"
            raise ValueError(
                f"{name}: no entry for GPU type '{gpu_type}', which has candidates; entries: "
                f"{known}"
            )
    for gpu_type, value in limit.items():
        _whole(f"{name}['{gpu_type}']", value, 0, high_bits)


def _of_type(limit: Limit, gpu_type: str) -> int:
    return limit[gpu_type] if isinstance(limit, Mapping) else limit


def _module(
    name: str, offers: Sequence[Candidates], budgets: Sequence[int], memory_bytes: Limit
) -> Module:
    counts = [len(each) for each in offers]
    limit = [_of_type(memory_bytes, each.gpu_type) for each in offers]
    return Module(
        name=name,
        types=tuple(each.gpu_type for each in offers),
        of_type=numpy.repeat(numpy.arange(len(offers)), counts),
        budget=numpy.repeat(numpy.array(budgets), counts),
        index=numpy.concatenate([numpy.arange(count) for count in counts]),
        gpus=numpy.concatenate([each.gpus for each in offers]),
        microbatch_s=numpy.concatenate([each.microbatch_s for each in offers]),
        fill_s=numpy.concatenate([each.fill_s for each in offers]),
        update_s=numpy.concatenate([each.update_s for each in offers]),
        memory_bytes=numpy.concatenate([each.memory_bytes for each in offers]),
        limit_bytes=numpy.repeat(numpy.array(limit, numpy.int64), counts),
    )


def _blocks(module: Module) -> dict[int, Block]:
    fits = module.memory_bytes <= module.limit_bytes
    found = {}
    for budget in numpy.unique(module.budget[fits]).tolist():
        found[budget] = Block.of(module, numpy.flatnonzero(fits & (module.budget == budget)))
    return found


def _fewest(modules: Sequence[Module], more_bytes: int) -> list[dict[int, int]]:
    """For each module, GPUs that it needs at least, by budget, if each GPU had more memory."""
    found = []
    for module in modules:
        fits = module.memory_bytes - module.limit_bytes <= more_bytes
        found.append(
            {
                budget: int(module.gpus[fits & (module.budget == budget)].min())
                for budget in numpy.unique(module.budget[fits]).tolist()
            }
        )
    return found


def _check_fit(
    modules: Sequence[Module],
    budgets: Sequence[str],
    limits: Sequence[int],
    gpus: Limit,
    memory_bytes: Limit,
) -> None:
    for module in modules:
        lacks = module.memory_bytes - module.limit_bytes
        row = int(lacks.argmin())
        if lacks[row] > 0:
            need, gpu_type = int(module.memory_bytes[row]), module.types[module.of_type[row]]
            raise NoAllocationError(
                f"module '{module.name}': none of its {len(lacks)} candidates fits "
                f"memory_bytes={memory_bytes}; the smallest needs {need} bytes on a GPU of type "
                f"'{gpu_type}', {lacks[row]} more; raise memory_bytes, or offer candidates that "
                "need less",
                more_bytes=int(lacks[row]),
            )
    fewest = _fewest(modules, 0)
    assignment, short = min(shortages(fewest, limits), key=lambda found: sum(found[1]))
    if not any(short):
        return
    needs = ", ".join(
        f"{module.name} {of_module[budget]}" + (f" {budgets[budget]}" if len(budgets) > 1 else "")
        for module, of_module, budget in zip(modules, fewest, assignment, strict=True)
    )
    enough = [limit + gpus for limit, gpus in zip(limits, short, strict=True)]
    by_name = dict(zip(budgets, enough, strict=True))
    smallest = {**gpus, **by_name} if isinstance(gpus, Mapping) else enough[0]
    excess = numpy.unique(numpy.concatenate([m.memory_bytes - m.limit_bytes for m in modules]))
    excess = excess[excess > 0]

    def enough_with(number: int) -> bool:
        found = shortages(_fewest(modules, int(excess[number])), limits)
        return any(not any(short) for _, short in found)

    at = first_true(len(excess), enough_with)
    more_bytes = int(excess[at]) if at < len(excess) else None
    way_out = f"raise gpus to {smallest}"
    if more_bytes is not None:
        way_out += f", or memory_bytes by {more_bytes}"
    raise NoAllocationError(
        f"no allocation fits gpus={gpus}: the modules need at least {needs}, {sum(short)} more; "
        f"{way_out}",
        gpus=smallest,
        more_bytes=more_bytes,
    )

"""Gives GPUs and a layout to each module of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from flowtrain.plan.allocation.bound import relaxed_s
from flowtrain.plan.allocation.build import Limit, NoAllocationError, Offers, build
from flowtrain.plan.allocation.candidates import MAX_GPUS_BITS
from flowtrain.plan.allocation.dflop import dflop
from flowtrain.plan.allocation.exact import ROUNDING, exact
from flowtrain.plan.allocation.flowtrain import flowtrain
from flowtrain.plan.allocation.problem import Problem, Rows
from flowtrain.plan.allocation.ranked import ranked as best_choices

POLICIES: dict[str, Callable[[Problem], Rows | None]] = {
    "exact": exact,
    "flowtrain": flowtrain,
    "dflop": dflop,
}

_COLUMNS = ("GPUs", "microbatch ms", "fill ms", "update ms", "used GiB", "free GiB")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A module's layout.

    Attributes:
        gpu_type: Type of its GPUs.
        index: Index among the module's candidates of this type.
        gpus: Number of its GPUs.
        microbatch_s: Seconds from one microbatch to the next.
        fill_s: Seconds of the first microbatch through the module.
        update_s: Seconds after the last microbatch.
        memory_bytes: Peak memory of the GPU that needs the most.
        free_bytes: Memory that is left there.
    """

    gpu_type: str
    index: int
    gpus: int
    microbatch_s: float
    fill_s: float
    update_s: float
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """GPUs and layouts of all modules.

    Attributes:
        choices: Layout by name of the module.
        microbatches: Microbatches per step.
        bound_s: A step that no allocation within the same limits is below.
    """

    choices: Mapping[str, Choice]
    microbatches: int
    bound_s: float

    @property
    def gpus(self) -> int:
        """Number of GPUs, of all types; others stay idle."""
        return sum(choice.gpus for choice in self.choices.values())

    @property
    def step_s(self) -> float:
        """The objective: sum of fill times + (microbatches - 1) x longest time + longest update."""
        choices = self.choices.values()
        fill_s = sum(choice.fill_s for choice in choices)
        longest_s = max(choice.microbatch_s for choice in choices)
        return fill_s + (self.microbatches - 1) * longest_s + max(c.update_s for c in choices)

    @property
    def gap(self) -> float:
        """Step over bound, minus 1: no allocation is better by a larger share of the bound."""
        if self.step_s == self.bound_s:
            return 0.0
        return self.step_s / self.bound_s - 1 if self.bound_s else math.inf

    @property
    def bottleneck(self) -> str:
        """Name of the module with the longest time per microbatch."""
        return max(self.choices, key=lambda name: self.choices[name].microbatch_s)

    @property
    def rate(self) -> float:
        """FlowTrain's G: microbatches per second of the slowest module."""
        return min(self._rates())

    @property
    def mismatch(self) -> float:
        """FlowTrain's F: the highest rate of a module minus the lowest."""
        return max(self._rates()) - self.rate if max(self._rates()) > self.rate else 0.0

    def _rates(self) -> list[float]:
        times = [choice.microbatch_s for choice in self.choices.values()]
        return [1 / time_s if time_s else math.inf for time_s in times]

    def explain(self) -> str:
        """A table of the modules."""
        width = max(6, *(len(name) for name in self.choices))
        types = max(4, *(len(choice.gpu_type) for choice in self.choices.values()))
        form = f"{{:<{width}}}  {{:<{types}}}  {{:>9}}  {{:>5}}  {{:>13}}" + "  {:>9}" * 4
        lines = [form.format("module", "type", "candidate", *_COLUMNS)]
        for name, choice in self.choices.items():
            times = [choice.microbatch_s, choice.fill_s, choice.update_s]
            sizes = [choice.memory_bytes, choice.free_bytes]
            lines.append(
                form.format(
                    name,
                    choice.gpu_type,
                    choice.index,
                    choice.gpus,
                    *(f"{1e3 * time_s:.3f}" for time_s in times),
                    *(f"{size / 2**30:.2f}" for size in sizes),
                )
            )
        lines[1 + list(self.choices).index(self.bottleneck)] += "  longest"
        return "\n".join(lines)


def solve(
    candidates: Offers,
    *,
    gpus: Limit,
    microbatches: int,
    memory_bytes: Limit,
    policy: str = "exact",
) -> Allocation:
    """Choose a candidate for each module.

    Minimizes the sum of `fill_s` over the modules, plus (microbatches - 1) times the largest
    `microbatch_s`, plus the largest `update_s`. GPUs may stay idle, so that the step is never
    longer with more of them.

    Args:
        candidates: Candidates by name of the module; a list of several, one for each type of GPU,
            if the module can be on several types.
        gpus: Number of GPUs of all types together, or by type.
        microbatches: Microbatches per step, the same for all candidates.
        memory_bytes: Memory of a GPU, of all types or by type.
        policy: One of POLICIES: "exact"; or, for comparison, "flowtrain", which maximizes the rate
            of the slowest module, or "dflop", for two modules that use all GPUs of one budget.

    Raises:
        ValueError: An argument is out of its range, a type of GPU has no limit, or the policy does
            not know such a problem.
        NoAllocationError: Nothing fits, or nothing that the policy allows.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy '{policy}': choose from {', '.join(POLICIES)}")
    problem = build(candidates, gpus=gpus, microbatches=microbatches, memory_bytes=memory_bytes)
    rows = POLICIES[policy](problem)
    if rows is None:
        raise NoAllocationError(
            f"policy '{policy}' allows no allocation of gpus={gpus}, others do; use policy='exact'"
        )
    return _allocation(problem, rows)


def ranked(
    candidates: Offers, *, gpus: Limit, microbatches: int, memory_bytes: Limit, count: int
) -> list[Allocation]:
    """The best allocations in order, each with another candidate of one module at least.

    Args:
        candidates: As in `solve`.
        gpus: As in `solve`.
        microbatches: As in `solve`.
        memory_bytes: As in `solve`.
        count: How many; fewer are returned if there are fewer.

    Raises:
        ValueError: As in `solve`, or count is less than 1.
        NoAllocationError: Nothing fits.
    """
    if count < 1:
        raise ValueError(f"count={count}: must be 1 or more")
    problem = build(candidates, gpus=gpus, microbatches=microbatches, memory_bytes=memory_bytes)
    choices = best_choices(problem, count)
    bound_s = relaxed_s(problem, choices[0])
    return [_allocation(problem, rows, bound_s) for rows in choices]


def curve(
    candidates: Offers, *, gpus: Iterable[int], microbatches: int, memory_bytes: Limit
) -> dict[int, Allocation]:
    """The best allocation for several numbers of GPUs.

    Args:
        candidates: As in `solve`.
        gpus: Numbers of GPUs, each of all types together.
        microbatches: As in `solve`.
        memory_bytes: As in `solve`.

    Returns:
        Allocations by number of GPUs, ascending; without those numbers that are too small.

    Raises:
        ValueError: As in `solve`.
        NoAllocationError: Nothing fits the largest number.
    """
    budgets = sorted(set(gpus), reverse=True)
    if not budgets or budgets[-1] < 1:
        raise ValueError(f"gpus={budgets}: give one number of GPUs or more, each at least 1")
    problem = build(
        candidates, gpus=budgets[0], microbatches=microbatches, memory_bytes=memory_bytes
    )
    found: dict[int, Allocation] = {}
    rows: Rows | None = None
    for budget in budgets:
        problem = replace(problem, limits=[budget])
        if rows is None or problem.gpus(rows) > budget:
            rows = exact(problem)
        if rows is None:
            break
        found[budget] = _allocation(problem, rows)
    return dict(reversed(found.items()))


def next_useful(
    candidates: Offers,
    *,
    gpus: Limit,
    microbatches: int,
    memory_bytes: Limit,
    gpu_type: str | None = None,
) -> Allocation | None:
    """The best allocation for the smallest number of GPUs that is better than that of `gpus`.

    Args:
        candidates: As in `solve`.
        gpus: As in `solve`.
        microbatches: As in `solve`.
        memory_bytes: As in `solve`.
        gpu_type: Which type gets more GPUs, if `gpus` has several.

    Returns:
        None if no number of GPUs helps.

    Raises:
        ValueError: As in `solve`, or gpu_type is not one of the types.
        NoAllocationError: Nothing fits.
    """
    problem = build(candidates, gpus=gpus, microbatches=microbatches, memory_bytes=memory_bytes)
    budget = _budget(problem, gpus, gpu_type)
    rows = exact(problem)
    assert rows is not None, "build refuses a problem without a solution"
    below_s = problem.step_s(rows) * (1 - ROUNDING)

    def better(limit: int) -> Rows | None:
        limits = list(problem.limits)
        limits[budget] = limit
        return exact(replace(problem, limits=limits), below_s=below_s)

    low = problem.limits[budget]
    high = sum(max(int(of.gpus[-1]) for of in blocks.values()) for blocks in problem.blocks)
    high = min(high, 1 << MAX_GPUS_BITS)
    best = better(high) if high > low else None
    if best is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        rows = better(middle)
        if rows is None:
            low = middle
        else:
            best, high = rows, middle
    limits = list(problem.limits)
    limits[budget] = high
    return _allocation(replace(problem, limits=limits), best)


def _budget(problem: Problem, gpus: Limit, gpu_type: str | None) -> int:
    """Number of the budget that gets more GPUs."""
    if gpu_type is None and len(problem.budgets) == 1:
        return 0
    if not isinstance(gpus, Mapping) or gpu_type not in problem.budgets:
        known = ", ".join(problem.budgets) if isinstance(gpus, Mapping) else "none, for gpus=int"
        raise ValueError(f"gpu_type={gpu_type!r}: choose from {known}")
    return problem.budgets.index(gpu_type)


def _allocation(problem: Problem, rows: Rows, bound_s: float | None = None) -> Allocation:
    choices = {}
    for module, row in zip(problem.modules, rows, strict=True):
        memory_bytes = int(module.memory_bytes[row])
        choices[module.name] = Choice(
            gpu_type=module.types[module.of_type[row]],
            index=int(module.index[row]),
            gpus=int(module.gpus[row]),
            microbatch_s=float(module.microbatch_s[row]),
            fill_s=float(module.fill_s[row]),
            update_s=float(module.update_s[row]),
            memory_bytes=memory_bytes,
            free_bytes=int(module.limit_bytes[row]) - memory_bytes,
        )
    if bound_s is None:
        bound_s = relaxed_s(problem, rows)
    return Allocation(choices=choices, microbatches=problem.microbatches, bound_s=bound_s)

"""One interface to all policies."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy
from numpy.typing import ArrayLike, NDArray

from flowtrain_core._C import FlowTrainError
from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.arguments import check_choice, check_length, costs, integer, integers
from flowtrain_core.packing.assignment import Assignment
from flowtrain_core.packing.encoder import COUPLINGS, Coupling
from flowtrain_core.packing.policies import POLICIES
from flowtrain_core.packing.problem import IntArray, Layout, Problem
from flowtrain_core.packing.select import oldest_first, priorities

Objective = Literal["lockstep", "accumulate", "max-microbatch", "pipeline"]
Oversize = Literal["error", "drop"]
_OBJECTIVES, _OVERSIZES = get_args(Objective), get_args(Oversize)

# Shares of the token capacity to fill when samples may wait, tried in order; a fuller step balances
# worse. 1 gives a sample of any length room in an empty step; it is an int, since 1.0 would round
# the room above 2^53. 0 takes only the samples that may not wait any longer.
_FILLS = (0.985, 0.96, 0.92, 0.85, 0.7, 0.5, 0.3, 1, 0)
_NO_SAMPLES = numpy.zeros(0, numpy.int32)


class NoRoomError(FlowTrainError, ValueError):
    """No room was found for some samples, or there is none; the arguments are valid."""


def schedule(
    tokens: ArrayLike,
    cost: ArrayLike,
    encoder_cost: ArrayLike | None = None,
    *,
    ranks: int,
    microbatches: int,
    max_tokens: int,
    objective: Objective = "lockstep",
    stages: int = 1,
    policy: str = "flowtrain-best",
    coupling: Coupling = "prepass",
    age: ArrayLike | None = None,
    max_age: int = 0,
    oversize: Oversize = "error",
    **options: Any,
) -> Assignment:
    """Place the samples of a step on ranks and microbatch slots.

    A pure function: the same input gives the same plan on every rank. Neither a common factor of
    the costs nor the order of equal samples changes which samples share a microbatch.

    Args:
        tokens: Tokens of each sample, integers of shape [num_samples].
        cost: Backbone cost of each sample in any unit, int64 or float64 of shape [num_samples].
        encoder_cost: Encoder cost of each sample, in the same unit, or None.
        ranks: Data-parallel ranks.
        microbatches: Slots of each rank.
        max_tokens: Maximum tokens of a microbatch.
        objective: What to minimize: "lockstep", the sum over slots of the slowest rank;
            "accumulate", the slowest rank's sum over its slots; "max-microbatch", the heaviest
            microbatch; "pipeline", the slowest rank's sum over its slots and, for each stage but
            one, its heaviest slot again.
        stages: Pipeline stages of each rank, for the objective "pipeline"; a cost is then what
            each of them takes.
        policy: One of POLICIES.
        coupling: Where encoder work goes: "prepass", all of it before the first slot, distributed
            over the ranks; "slot", in the slot of its sample, distributed over the ranks;
            "rigid", on the rank and in the slot of its sample.
        age: Steps that each sample has waited, shape [num_samples]; None is 0 for all.
        max_age: With 0 every sample is placed. Else a sample may be carried until its age is
            max_age, and is placed then; which samples form a step then depends on the layout.
        oversize: What to do with a sample above the cap: an error, or drop it and list it in
            `dropped`.
        options: Keyword arguments of the policy.

    Raises:
        ValueError: Invalid input; the message names argument or sample, value and limit.
        NoRoomError: No room was found for some samples; the message says whether it is proven that
            there is none.
    """
    check_choice(objective, "objective", _OBJECTIVES)
    check_choice(policy, "policy", POLICIES)
    check_choice(coupling, "coupling", COUPLINGS)
    check_choice(oversize, "oversize", _OVERSIZES)
    max_age = integer(max_age, "max_age", minimum=0, bits=62)
    if stages != 1 and objective != "pipeline":
        raise ValueError(
            f"stages={stages}: objective '{objective}' has no stages; pass objective='pipeline'"
        )
    ranks, microbatches = integer(ranks, "ranks"), integer(microbatches, "microbatches")
    stages, max_tokens = integer(stages, "stages"), integer(max_tokens, "max_tokens", bits=62)
    lengths = integers(tokens, "tokens")
    given = costs(cost, "cost")
    whole, unit = kernels.integer_costs(given, "cost")
    encoder = encoder_whole = None
    encoder_unit = unit
    if encoder_cost is not None:
        encoder = costs(encoder_cost, "encoder_cost")
        check_length("encoder_cost", encoder, lengths)
        encoder_whole, encoder_unit = kernels.integer_costs(encoder, "encoder_cost")
    check_length("cost", given, lengths)
    count = len(lengths)
    placed: IntArray | None = None  # All.
    if oversize == "drop" and (lengths > max_tokens).any():
        placed = numpy.flatnonzero(lengths <= max_tokens)
    # Dropped samples may have any length.
    checked = lengths if placed is None else numpy.minimum(lengths, max_tokens)
    kernels.check(checked, whole, ranks, microbatches, max_tokens, stages)

    def problem(which: IntArray | None, place_all: bool) -> Problem:
        return Problem(
            tokens=_of(lengths, which),
            cost=_of(whole, which),
            encoder_cost=None if encoder_whole is None else _of(encoder_whole, which),
            unit=unit,
            encoder_unit=encoder_unit,
            ranks=ranks,
            microbatches=microbatches,
            max_tokens=max_tokens,
            objective=objective,
            stages=stages,
            place_all=place_all,
        )

    run = POLICIES[policy]
    if max_age == 0:
        taken, which = placed, problem(placed, True)
        layout = run(which, **options)
        missing = _NO_SAMPLES if layout.bound is not None else numpy.flatnonzero(layout.slot < 0)
    else:
        those = numpy.arange(count) if placed is None else placed
        waited = numpy.zeros(count, numpy.int64) if age is None else integers(age, "age")
        check_length("age", waited, lengths)
        must = waited[those] >= max_age
        for fill in _FILLS:
            room = int(fill * ranks * microbatches * max_tokens)
            priority = numpy.where(must, 0, 1)
            if objective == "lockstep":
                priority = priorities(
                    lengths[those],
                    whole[those],
                    must,
                    ranks=ranks,
                    microbatches=microbatches,
                    max_tokens=max_tokens,
                    room=room,
                )
            taken = those[oldest_first(lengths[those], waited[those], priority=priority, room=room)]
            which = problem(taken, fill == 0)
            layout = run(which, **options)
            missing = numpy.flatnonzero((layout.slot < 0) & (waited[taken] >= max_age))
            if not len(missing) and ((layout.slot >= 0).any() or not len(those)):
                break
    if len(missing):
        raise _no_room(which, int(missing[0] if taken is None else taken[missing[0]]))
    if which.encoder_cost is not None and layout.encoder_slot is None:
        layout = COUPLINGS[coupling](which, layout)
    return Assignment(
        slot=_spread(layout.slot, taken, count),
        rank=_spread(layout.rank, taken, count),
        encoder_slot=_spread_some(layout.encoder_slot, taken, count),
        encoder_rank=_spread_some(layout.encoder_rank, taken, count),
        dropped=_others(placed, count),
        ranks=ranks,
        microbatches=layout.microbatches,
        max_tokens=max_tokens,
        objective=objective,
        stages=stages,
        bound=_bound(layout, which, given.dtype.kind == "f") * unit,
        tokens=lengths,
        cost=given,
        encoder_cost=encoder,
    )


def _bound(layout: Layout, problem: Problem, rounded: bool) -> float:
    """Bound in integer costs, minus the maximum error of rounding."""
    bound = layout.bound
    if bound is None:
        here = layout.slot >= 0
        bound = kernels.bound(
            problem.tokens[here],
            problem.cost[here],
            problem.ranks,
            layout.microbatches,
            problem.max_tokens,
            problem.objective,
            problem.stages,
        )
    if not rounded:
        return float(bound)
    # Each cost is right to half a unit, so no schedule's value is off by more than half a unit for
    # each sample (and, of a pipeline, each stage).
    return max(0.0, bound - len(problem) * problem.stages / 2)


def _no_room(problem: Problem, first: int) -> NoRoomError:
    """The error for samples that must be placed and have no bin; `first` is the one to name."""
    impossible, tries = kernels.search_bins(problem.tokens, problem.bins, problem.max_tokens)
    bins = f"{problem.ranks} x {problem.microbatches} bins of max_tokens={problem.max_tokens}"
    samples = f"{len(problem)} samples with {int(problem.tokens.sum())} tokens"
    said = (
        f"{samples} cannot fit into {bins}"
        if impossible
        else f"no room for {samples} was found in {bins} in {tries} tries"
    )
    return NoRoomError(f"{said}; sample {first} has no bin; raise microbatches or max_tokens")


def _of(values: IntArray, which: IntArray | None) -> IntArray:
    return values if which is None else values[which]


def _spread(
    values: NDArray[numpy.int32], where: IntArray | None, count: int
) -> NDArray[numpy.int32]:
    if where is None:
        return values
    out = numpy.full(count, -1, numpy.int32)
    out[where] = values
    return out


def _others(placed: IntArray | None, count: int) -> NDArray[numpy.int32]:
    if placed is None:
        return _NO_SAMPLES
    return numpy.setdiff1d(numpy.arange(count), placed).astype(numpy.int32)


def _spread_some(
    values: NDArray[numpy.int32] | None, where: IntArray | None, count: int
) -> NDArray[numpy.int32] | None:
    return None if values is None else _spread(values, where, count)

"""Plans of a run: what is decided before it starts."""

from flowtrain.plan.allocation import (
    Allocation,
    Candidates,
    NoAllocationError,
    curve,
    next_useful,
    ranked,
    solve,
)

__all__ = [
    "Allocation",
    "Candidates",
    "NoAllocationError",
    "curve",
    "next_useful",
    "ranked",
    "solve",
]

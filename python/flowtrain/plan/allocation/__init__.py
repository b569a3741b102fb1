"""Allocation of GPUs and layouts to the modules of a model."""

from flowtrain.plan.allocation.build import NoAllocationError
from flowtrain.plan.allocation.candidates import Candidates
from flowtrain.plan.allocation.interface import (
    POLICIES,
    Allocation,
    Choice,
    curve,
    next_useful,
    ranked,
    solve,
)

__all__ = [
    "POLICIES",
    "Allocation",
    "Candidates",
    "Choice",
    "NoAllocationError",
    "curve",
    "next_useful",
    "ranked",
    "solve",
]

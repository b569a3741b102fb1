"""Policies by name; each maps a problem to a layout."""

from flowtrain_core.packing.policies.arrival import arrival_order, in_order_packing
from flowtrain_core.packing.policies.balancers import equal_count_differencing, longest_first
from flowtrain_core.packing.policies.best import flowtrain_best
from flowtrain_core.packing.policies.decreasing import best_fit_decreasing
from flowtrain_core.packing.policies.dflop import dflop
from flowtrain_core.packing.policies.entrain import entrain
from flowtrain_core.packing.policies.flowtrain import flowtrain
from flowtrain_core.packing.policies.omnibal import omnibal
from flowtrain_core.packing.policies.rigid import flowtrain_rigid
from flowtrain_core.packing.problem import Policy

POLICIES: dict[str, Policy] = {
    "flowtrain-best": flowtrain_best,
    "flowtrain-rigid": flowtrain_rigid,
    "arrival": arrival_order,
    "in-order": in_order_packing,
    "best-fit-decreasing": best_fit_decreasing,
    "longest-first": longest_first,
    "equal-count-differencing": equal_count_differencing,
    "flowtrain": flowtrain,
    "omnibal": omnibal,
    "dflop": dflop,
    "entrain": entrain,
}

__all__ = ["POLICIES"]

"""Policies by name; each is one file."""

from flowtrain_core.packing.policies.best import flowtrain_best
from flowtrain_core.packing.problem import Policy

POLICIES: dict[str, Policy] = {
    "flowtrain-best": flowtrain_best,
}

__all__ = ["POLICIES"]

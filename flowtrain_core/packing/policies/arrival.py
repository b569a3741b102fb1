"""Arrival order: what a plain data loader does."""

from __future__ import annotations

import numpy

from flowtrain_core.packing.policies._grid import in_bin_order
from flowtrain_core.packing.policies._partition import next_fit
from flowtrain_core.packing.problem import Layout, Problem


def arrival_order(problem: Problem) -> Layout:
    """Give each microbatch the same number of samples, in order; close a full one early."""
    each = max(1, -(-len(problem) // problem.bins))
    ones = numpy.ones(len(problem), numpy.int64)
    return in_bin_order(problem, next_fit(problem.tokens, problem.max_tokens, ones, each))


def in_order_packing(problem: Problem) -> Layout:
    """Fill microbatches to the cap, as samples come.

    Source: Megatron-Core, `megatron/core/datasets/data_schedule.py`.
    """
    cap = problem.max_tokens
    return in_bin_order(problem, next_fit(problem.tokens, cap, problem.tokens, cap))

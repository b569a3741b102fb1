"""Token packers of closed batches: longest first."""

from __future__ import annotations

import numpy

from flowtrain_core._C import packing as kernels
from flowtrain_core.packing.policies._grid import in_bin_order
from flowtrain_core.packing.problem import Layout, Problem


def best_fit_decreasing(problem: Problem) -> Layout:
    """Pack the longest samples first, each into the fullest bin with room; blind to cost.

    Source: Johnson (1973); as in TRL's `_pack_bfd` and the greedy knapsack of Megatron-LM's
    multimodal example.
    """
    order = numpy.argsort(-problem.tokens, kind="stable")
    return in_bin_order(problem, kernels.best_fit(problem.tokens, problem.max_tokens, order))

"""Choices that no other one is at least as good as in everything."""

from __future__ import annotations

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray

_BLOCK = 512  # Choices that are compared at once.


def not_beaten(values: FloatArray) -> IntArray:
    """Numbers of the columns that no other one is at most as large as in all rows, ascending.

    Of equal columns the first one is kept. A column is only beaten by one in front of it in
    lexicographic order, so that blocks in this order are compared with what is kept so far.

    Args:
        values: Shape [num_rows, num_columns].
    """
    order = numpy.lexsort(values[::-1])
    kept = numpy.zeros(0, numpy.int64)
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        block = block[~(values[:, kept, None] <= values[:, None, block]).all(0).any(0)]
        no_worse = (values[:, block, None] <= values[:, None, block]).all(0)
        block = block[~numpy.triu(no_worse, 1).any(0)]
        kept = numpy.append(kept, block)
    return numpy.sort(kept)

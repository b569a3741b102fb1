"""Loads that several tests draw."""

from __future__ import annotations

import numpy


def lognormal_step(seed: int, count: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    random = numpy.random.default_rng(seed)
    tokens = numpy.exp(random.normal(7, 0.8, count)).clip(1, 20000).astype(numpy.int64)
    return tokens, tokens * 7.0e4 + tokens.astype(float) ** 2

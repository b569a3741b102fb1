"""Candidates that look like layouts of a VLM on GPUs, drawn from a seed."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.random import Generator

from flowtrain.plan.allocation import Candidates

KINDS = ("two", "three", "pools", "total", "tight", "ties", "random")
"""An encoder and a backbone; two encoders and a backbone; modules that can be on several types of
GPU, with a budget for each type or one for all; memory that few candidates fit; times of few
different values; and times that have nothing to do with each other."""

_GIB = 1 << 30
_LAYERS = 60


@dataclass(frozen=True, slots=True)
class Instance:
    """Candidates by module, and the limits of `solve`."""

    candidates: dict[str, list[Candidates]]
    limits: dict[str, Any]


def small(kind: str, *, gpus: int, seed: int) -> Instance:
    """An instance that can be enumerated; in some nothing fits."""
    random = numpy.random.default_rng([KINDS.index(kind), gpus, seed])
    limits: dict[str, Any] = {
        "gpus": gpus,
        "microbatches": int(2 ** random.uniform(0, 6)),
        "memory_bytes": int(random.uniform(20, 90) * _GIB),
    }
    count = {"two": 2, "tight": 2, "three": 3}.get(kind, int(random.integers(1, 4)))
    most = {1: 2000, 2: 1000, 3: 100}[count]
    names = [*("vision", "audio")[: count - 1], "backbone"]
    types = ["gpu"]
    if kind in ("pools", "total"):
        types = ["fast", "small", "old"][: int(random.integers(2, 4))]
    if kind == "pools":
        shares = random.dirichlet(numpy.ones(len(types)))
        limits["gpus"] = {of: int(gpus * share) for of, share in zip(types, shares, strict=True)}
        limits["memory_bytes"] = {of: int(random.uniform(20, 90) * _GIB) for of in types}
    offers = {}
    for name in names:
        some = types if len(types) == 1 else random.permutation(types)[: random.integers(1, 3)]
        of_module = []
        for gpu_type in some:
            if kind in ("ties", "random"):
                made = _unrelated(random, kind, gpus)
            elif name == "backbone":
                made = _backbone(random, gpus, _slot(gpus))
            else:
                made = _encoder(random, gpus, _slot(gpus))
            of_module.append(_candidates(_thinned(random, made, most // len(some)), str(gpu_type)))
        offers[name] = of_module
    if kind == "tight":
        share = random.uniform(0.02, 0.3)
        sizes = [each.memory_bytes for of in offers.values() for each in of]
        limits["memory_bytes"] = int(max(numpy.quantile(size, share) for size in sizes))
    return Instance(offers, limits)


def large(modules: int, *, gpus: int, seed: int, microbatches: int | None = None) -> Instance:
    """All layouts of one to three encoders and a backbone on up to 10,240 GPUs.

    Tensor parallelism stays within a node. A backbone has all divisors of its layers as stages and
    all divisors of a microbatch's samples as replicas; an encoder has any number of replicas.
    """
    random = numpy.random.default_rng([modules, gpus, seed])
    offers = {}
    for name in ("vision", "audio", "video")[: modules - 1]:
        offers[name] = [_candidates(_encoder(random, gpus, _slot(gpus)), "gpu")]
    offers["backbone"] = [_candidates(_backbone(random, gpus, _slot(gpus)), "gpu")]
    if microbatches is None:
        microbatches = int(2 ** random.uniform(1, 7))
    return Instance(
        offers,
        {
            "gpus": gpus,
            "microbatches": microbatches,
            "memory_bytes": int(random.uniform(60, 90) * _GIB),
        },
    )


def _slot(gpus: int) -> int:
    """Samples of one microbatch of all replicas."""
    return 15 << max(0, int(math.log2(gpus / 128))) if gpus >= 128 else max(2, gpus // 8)


def _candidates(table: numpy.ndarray, gpu_type: str) -> Candidates:
    """From columns of GPUs, seconds of a microbatch, of filling and of an update, and GiB."""
    return Candidates(
        gpus=table[:, 0].astype(numpy.int64),
        microbatch_s=table[:, 1],
        fill_s=table[:, 2],
        update_s=table[:, 3],
        memory_bytes=(table[:, 4] * _GIB).astype(numpy.int64),
        gpu_type=gpu_type,
    )


def _thinned(random: Generator, table: numpy.ndarray, most: int) -> numpy.ndarray:
    return table if len(table) <= most else random.permutation(table)[:most]


def _encoder(random: Generator, gpus: int, slot: int) -> numpy.ndarray:
    """Layouts (tp, pp, replicas, recomputation) of an encoder that shares out the images."""
    work_s, state = random.uniform(0.02, 0.6) * slot, random.uniform(2, 40)
    tables = []
    for tp, pp in itertools.product((1, 2, 4, 8), (1, 2, 4)):
        replicas = numpy.arange(1, gpus // (tp * pp) + 1)
        images = numpy.ceil(2 * slot / replicas) / (2 * slot)
        for slower, kept in ((1.0, 1.0), (1.08, 0.6), (1.33, 0.1)):
            busy_s = work_s * images * slower * (1 + 0.04 * (tp - 1)) / (tp * pp)
            own = state / (tp * pp)
            tables.append(
                numpy.stack(
                    [
                        replicas * tp * pp,
                        busy_s + 2e-4,
                        pp * (busy_s + 2e-4) + 1e-3,
                        own * (0.002 + 0.01 * (1 - 1 / replicas)),
                        own * (0.4 + 0.6 / replicas) + 2 * slot * images * kept * 3 / tp,
                    ],
                    axis=1,
                )
            )
    return numpy.concatenate(tables)


def _backbone(random: Generator, gpus: int, slot: int) -> numpy.ndarray:
    """Layouts (tp, cp, pp, replicas, recomputation) of a decoder."""
    work_s, state = random.uniform(0.3, 3) * slot, random.uniform(60, 900)
    stages = [count for count in range(1, _LAYERS) if _LAYERS % count == 0]
    replicas = [count for count in range(1, slot + 1) if slot % count == 0]
    levels = ((1.0, 1.0), (1.08, 0.6), (1.33, 0.1))
    rows = []
    for tp, cp, pp, dp in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16), stages, replicas):
        if tp * cp * pp * dp > gpus:
            continue
        for slower, kept in levels:
            slow = slower * (1 + 0.03 * (tp - 1)) * (1 + 0.02 * (cp - 1))
            busy_s = work_s * slow / (tp * cp * pp * dp) + 1e-3
            own = state / (tp * pp)
            rows.append(
                (
                    tp * cp * pp * dp,
                    busy_s,
                    pp * busy_s + 5e-4 * (pp - 1),
                    own * (0.002 + 0.012 * (1 - 1 / (dp * cp))),
                    own * (0.4 + 0.6 / (dp * cp)) + slot / dp * kept * 40 / (tp * cp),
                )
            )
    return numpy.array(rows)


def _unrelated(random: Generator, kind: str, gpus: int) -> numpy.ndarray:
    """Up to 100 rows; "ties" have times of 0 to 4 seconds."""
    count = int(random.integers(1, 101))
    times = random.uniform(0, 4, (count, 3))
    taken = random.integers(1, max(2, gpus // 2), count)
    size = random.uniform(0, 60, count)
    if kind == "ties":
        times, size = times.round(), size.round(-1)
    return numpy.column_stack([taken, times[:, [0]], times[:, [1]], times[:, [2]], size])

"""Sizes of the samples of a run's first steps, read before it starts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy

from flowtrain.config.schema import RunConfig
from flowtrain.data.errors import DataError
from flowtrain.data.mixture import sample_order
from flowtrain.data.records import Dataset
from flowtrain.data.samples import SampleMeta, SampleReader
from flowtrain.data.workers import ReaderPool
from flowtrain.models.family import Family
from flowtrain.workloads import Workload

_STEPS = 4
_SECONDS = 1.5


def first_samples(config: RunConfig) -> list[SampleMeta]:
    """Sizes of the first samples that fit, of up to four steps, as many as can be read in 1.5 s.

    Raises:
        DataError: The samples cannot be read.
    """
    reader = SampleReader(config.model.folder, config.data, config.train.microbatch_tokens)
    drawn = _first_numbers(config)
    end = time.perf_counter() + _SECONDS
    metas: list[SampleMeta] = []
    # A thread reads, so that a stream that hangs ends only these reads.
    with ReaderPool(lambda: reader, 0) as pool:
        for sample in drawn:
            read = pool.submit("meta", sample)
            if not read.wait(config.flow.timeout_s):
                raise DataError(
                    f"{reader.where(sample)}: being read for more than flow.timeout_s="
                    f"{config.flow.timeout_s:g} s; check the data set, or raise flow.timeout_s"
                )
            with suppress(DataError):
                if (meta := read.result()).fit != "dropped":
                    metas.append(meta)
            if time.perf_counter() > end:
                break
    whole = len(metas) - len(metas) % config.train.global_batch
    return metas[:whole] or metas


def _first_numbers(config: RunConfig) -> Iterable[int]:
    """Numbers of the samples of the first steps, without those of a second epoch."""
    dataset = Dataset(config.data)
    wanted = _STEPS * config.train.global_batch
    if dataset.is_stream:
        return range(wanted)
    order = sample_order(config.data, dataset, seed=config.train.seed)
    return map(order.index, range(min(order.epoch_draws, wanted)))


def workload_of(config: RunConfig, family: Family, samples: Sequence[SampleMeta]) -> Workload:
    """Samples for the search of the planner."""
    flops = [
        family.sample_flops(meta.num_tokens, meta.grids, num_targets=meta.num_targets)
        for meta in samples
    ]
    return Workload(
        name=f"the first samples of {config.data.name}",
        tokens=numpy.array([meta.num_tokens for meta in samples], numpy.int64),
        visual_tokens=numpy.array([sum(meta.image_lengths) for meta in samples], numpy.int64),
        cost=numpy.array([each.on("backbone", family.projector_side) for each in flops]),
        encoder_cost=numpy.array([each.on("encoder", family.projector_side) for each in flops]),
        images=numpy.array([len(meta.grids) for meta in samples], numpy.int64),
    )

"""The samples of a run's first steps: their sizes, and the time to read one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from flowtrain.config.schema import RunConfig
from flowtrain.data.calls import Call
from flowtrain.data.errors import DataError
from flowtrain.data.mixture import sample_order
from flowtrain.data.records import Dataset
from flowtrain.data.sample_meta import SampleMeta
from flowtrain.data.samples import SampleReader
from flowtrain.data.workers import WorkerPool
from flowtrain.models.family import Family
from flowtrain.workloads import Workload

_STEPS = 4
_SECONDS = 1.5
# Samples whose reads are timed, and the time after which no more are.
_TIMED = 8
_TIMED_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSamples:
    """Samples of the first steps that fit.

    Attributes:
        sizes: Their sizes.
        read_s: Seconds of a core to read one with its pixels.
    """

    sizes: list[SampleMeta]
    read_s: float


def first_samples(config: RunConfig) -> FirstSamples:
    """The samples of up to four steps, as many as can be read in 1.5 s.

    Raises:
        DataError: The samples cannot be read.
    """
    reader = SampleReader(config.model.folder, config.data, config.train.microbatch_tokens)
    drawn = _first_numbers(config)
    start = time.perf_counter()
    metas: list[SampleMeta] = []
    timed_s: list[float] = []
    # A thread reads, so that a stream that hangs ends only these reads.
    with WorkerPool(lambda: reader, 0) as pool:

        def read(method: str, sample: int, *arguments: Any) -> Call:
            call = pool.submit(method, sample, *arguments)
            if not call.wait(config.flow.timeout_s):
                raise DataError(
                    f"{reader.where(sample)}: being read for more than flow.timeout_s="
                    f"{config.flow.timeout_s:g} s; check the data set, or raise flow.timeout_s"
                )
            return call

        for sample in drawn:
            before = time.perf_counter()
            if before - start > _SECONDS:
                break
            sizes = read("meta", sample)
            try:
                meta = sizes.result()
            except DataError:
                continue  # Of this sample; the run says what is wrong with it.
            if meta.fit == "dropped":
                continue
            metas.append(meta)
            if len(timed_s) < _TIMED and before - start < _TIMED_SECONDS:
                # In a run, samples are read together, so that code and tables are in the caches.
                for _ in range(2):
                    before = time.perf_counter()
                    read("meta", sample)
                    for image, grid in enumerate(meta.grids):
                        read("pixels", sample, image, grid)
                timed_s.append(time.perf_counter() - before)
    whole = len(metas) - len(metas) % config.train.global_batch
    return FirstSamples(
        sizes=metas[:whole] or metas, read_s=statistics.fmean(timed_s) if timed_s else 0.0
    )


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

"""Fills a cache of features ahead of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from flowtrain.cache import CacheFolder, Context, Writer
from flowtrain.config.checks import require
from flowtrain.config.schema import RunConfig
from flowtrain.cost.flops import Grid
from flowtrain.data.pixel_maker import PixelMaker, SamplePixels, StoredRows
from flowtrain.data.records import Dataset
from flowtrain.data.workers import WorkerPool
from flowtrain.models.compiled import compile_blocks, takes_attention
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.family import Family
from flowtrain.models.registry import family_for
from flowtrain.train.input.workers import Reading, fork_workers
from flowtrain.train.launch.cache import check_cache
from flowtrain.train.launch.threads import threads_of
from flowtrain.train.ranks.device import choose_device
from flowtrain.train.ranks.feature_context import feature_context
from flowtrain.train.ranks.features import bytes_of
from flowtrain.train.state.trained import Trained

_T = TypeVar("_T")

# What is read ahead for each worker.
_SAMPLES_AHEAD, _IMAGES_AHEAD = 32, 4


@dataclass(kw_only=True, slots=True)
class Filled:
    """What `fill` did."""

    encoded: int = 0
    """Images and videos that were encoded and stored."""
    found: int = 0
    """Those that were stored already, such as by a call that was stopped."""
    left_out: int = 0
    """Those that cannot be used, and those without a file."""
    stopped: str | None = None
    """Why the others are not stored; None if there are none."""


def fill(
    config: RunConfig,
    *,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, samples: None,
) -> Filled:
    """Encode the images of a run's samples, also those of its evaluations, and store the features.

    They are those that its ranks look up, if these have the threads, or the kind of GPU, of this
    process.

    Args:
        config: The run.
        workers: Processes that read images; with 0 a thread does.
        progress: Called with the number of samples whose images are done, and of all.

    Raises:
        ConfigError: The run has no cache, or a stream; or as `check_cache`.
        CacheError: The folder of the cache cannot be used.
        DataError: A sample cannot be used, as in the run.
        DeviceError: There is no device of `model.device`.
    """
    cache = config.flow.cache
    require(cache.path is not None, "flow.cache.path is not set: give the folder to fill")
    assert cache.path is not None
    family = family_for(config.model.folder, projector_side=config.projector_side)
    check_cache(cache, family)
    samples = _samples_of(config)
    reading = Reading(
        model=config.model.folder,
        data=config.data,
        max_tokens=config.train.microbatch_tokens,
        held_out=None if config.held_out is None else (config.held_out, None),
    )
    filled, folders = Filled(), CacheFolder(cache.path, cache.max_bytes)
    with fork_workers(reading, workers) as pool:
        tower = _Tower(config, family)
        with folders.use(tower.context()) as folder:
            writer = Writer(folders, folder)
            found = _features(pool, samples, str(folder), ahead=max(1, workers))
            for sample, grid, features in found:
                if isinstance(features, StoredRows):
                    filled.found += 1
                elif features.key is None:
                    filled.left_out += 1
                else:
                    filled.encoded += writer.put(features.key, bytes_of(tower(features, grid)))
                if (stopped := writer.stopped) is not None:
                    filled.stopped = stopped
                    break
                progress(sample + 1, len(samples))
            writer.close()
    return filled


def _samples_of(config: RunConfig) -> list[tuple[str, int]]:
    """The samples of a run: attribute of the reader that reads it, and number."""
    found = []
    for prefix, data in (("", config.data), ("held_out.", config.held_out)):
        if data is None:
            continue
        dataset = Dataset(data)
        require(
            not dataset.is_stream,
            f"{data.name}: a stream is read by its run alone, which fills the cache in its first "
            "epoch; leave this command out",
        )
        limit = config.eval.samples if prefix else None
        samples = min(len(dataset), limit or len(dataset))
        found += [(prefix, sample) for sample in range(samples)]
    return found


def _features(
    pool: WorkerPool, samples: list[tuple[str, int]], folder: str, *, ahead: int
) -> Iterator[tuple[int, Grid, SamplePixels | StoredRows]]:
    """Place of its sample, grid, and what `SampleReader.features` returns, for each image."""
    metas = (pool.submit(f"{prefix}meta", sample) for prefix, sample in samples)
    images = (
        (place, grid, pool.submit(f"{prefix}features", sample, image, grid, folder))
        for place, ((prefix, sample), meta) in enumerate(
            zip(samples, _ahead(metas, ahead * _SAMPLES_AHEAD), strict=True)
        )
        if meta.result().fit != "dropped"
        for image, grid in enumerate(meta.result().grids)
    )
    for place, grid, call in _ahead(images, ahead * _IMAGES_AHEAD):
        yield place, grid, call.result()


def _ahead(items: Iterator[_T], count: int) -> Iterator[_T]:
    """The items, of which so many are taken before the first is returned."""
    taken: deque[_T] = deque()
    for item in items:
        taken.append(item)
        if len(taken) > count:
            yield taken.popleft()
    yield from taken


class _Tower:
    """Encodes images as the ranks of a run do, each alone."""

    def __init__(self, config: RunConfig, family: Family) -> None:
        self._device = choose_device(config.model.device, 0, first=0)
        torch.set_num_threads(threads_of(config))
        self._dtype = DTYPES[config.model.pass_dtype]
        self._row_dtype = DTYPES[config.pool.dtype or config.model.pass_dtype]
        self._family, self._folder = family, config.model.folder
        self._pixels = PixelMaker(family)
        trained = Trained(config.trained_parts, config.optim)
        freeze = partial(trained.freeze, part_of=family.part_of, dtype=self._dtype)
        self._module = family.build(
            "encoder",
            weights=config.model.path,
            seed=config.train.seed,
            dtype=DTYPES[config.model.dtype],
            device=self._device,
            before_load=freeze,
        )
        freeze(self._module)
        self._compiled = config.model.compile
        if self._compiled:
            attention = takes_attention(self._device, self._dtype)
            compile_blocks(family, self._module, attention=attention)

    def context(self) -> Context:
        return feature_context(
            self._family,
            self._module,
            self._folder,
            dtype=self._dtype,
            row_dtype=self._row_dtype,
            device=self._device,
            compiled=self._compiled,
        )

    def __call__(self, image: SamplePixels, grid: Grid) -> torch.Tensor:
        pixels = self._pixels([image], [grid], dtype=self._dtype, device=self._device)
        with torch.no_grad():
            rows: torch.Tensor = self._module(pixels, [grid])
        return rows.to(self._row_dtype)

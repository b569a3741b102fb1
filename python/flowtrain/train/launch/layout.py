"""`flow.layout: auto`: the layout of a run, chosen before its ranks start."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Iterable
from concurrent.futures import wait
from contextlib import suppress

from flowtrain.config.checks import ConfigError
from flowtrain.config.layout import RankLayout
from flowtrain.config.load import load
from flowtrain.config.schema import RunConfig
from flowtrain.data.errors import DataError
from flowtrain.data.mixture import sample_order
from flowtrain.data.records import Dataset
from flowtrain.data.samples import SampleMeta, SampleReader
from flowtrain.data.workers import ReaderPool
from flowtrain.models.family import Family
from flowtrain.models.registry import family_for
from flowtrain.steps.estimate import Rates, Work, candidates, step_seconds
from flowtrain.train.launch.calibration import available_workers, measured_rates
from flowtrain.train.state.module import DTYPES

# Ranks for each core; waiting ranks leave their core to others.
_RANKS_PER_CORE = 1.5
_SAMPLED_STEPS = 4
_SAMPLED_S = 1.5


def with_layout(config: RunConfig, *, resume: bool) -> RunConfig:
    """The configuration with a layout in numbers.

    If it has none, a resumed run keeps the layout in its folder. For another run the layout with
    the shortest estimated step is chosen, and a line on standard error says why.
    """
    layout = config.flow.rank_layout
    if layout is None and resume:
        layout = _layout_of(config)
    if layout is None:
        layout = _chosen(config)
    return dataclasses.replace(config, flow=config.flow.with_layout(layout))


def _layout_of(config: RunConfig) -> RankLayout | None:
    """The layout of the run in the folder of a configuration, if there is one."""
    written = config.run / "config.yaml"
    return load(written).flow.rank_layout if written.exists() else None


def _chosen(config: RunConfig) -> RankLayout:
    workers = available_workers(config.model.device)
    if workers == 0:
        raise ConfigError(
            "model.device=cuda: torch sees no CUDA device; `flowtrain doctor` says why, and "
            "model.device=cpu does without"
        )
    work = _sampled_work(config)
    if not work.steps:
        # The ranks will say what is wrong with the samples.
        return RankLayout.colocated_on(1)
    rates = measured_rates(config.model.device, DTYPES[config.model.dtype])
    per_worker = _RANKS_PER_CORE if config.model.device == "cpu" else 1
    layouts = candidates(
        workers=workers,
        max_ranks=max(1, min(int(per_worker * workers), config.train.global_batch)),
        encoder_share=_encoder_share(work, rates),
    )
    seconds = {each: step_seconds(work, each, rates, workers=workers) for each in layouts}
    best, *others = sorted(layouts, key=lambda each: seconds[each])
    _say(best, others, seconds, f"{workers} {'cores' if config.model.device == 'cpu' else 'GPUs'}")
    return best


def _say(
    best: RankLayout, others: list[RankLayout], seconds: dict[RankLayout, float], where: str
) -> None:
    text = f"flowtrain: layout {best}: estimated {seconds[best]:.3g} s a step on {where}"
    if others:
        text += f"; next best {others[0]}: {seconds[others[0]]:.3g} s"
    print(f"{text}; fix it with flow.layout", file=sys.stderr)


def _sampled_work(config: RunConfig) -> Work:
    """Costs of the first steps, from samples that can be used."""
    family = family_for(config.model.folder, projector_side=config.projector_side)
    metas = _first_samples(config)
    batch = config.train.global_batch
    steps = [metas[i : i + batch] for i in range(0, len(metas), batch)]
    itemsize = DTYPES[config.model.dtype].itemsize
    parameters = family.parameter_counts()
    return Work(
        steps=steps,
        cost=[[_backbone_cost(family, meta) for meta in samples] for samples in steps],
        image_cost=functools.cache(family.image_flops),
        mode=config.flow.mode,
        recompute=config.flow.recompute,
        trains_backbone="backbone" in config.trained_parts,
        encoder_bytes=parameters["encoder"] * itemsize,
        backbone_bytes=parameters["backbone"] * itemsize,
        microbatch_tokens=config.train.microbatch_tokens,
        item_tokens=config.flow.item_tokens,
    )


def _first_samples(config: RunConfig) -> list[SampleMeta]:
    """Sizes of the first samples that fit, as many as can be read in the time for it."""
    reader = SampleReader(config.model.folder, config.data, config.train.microbatch_tokens)
    drawn = _first_numbers(config)
    end = time.perf_counter() + _SAMPLED_S
    metas: list[SampleMeta] = []
    # A thread reads, so that a stream that hangs ends only these reads.
    with ReaderPool(lambda: reader, 0) as pool:
        for sample in drawn:
            read = pool.submit("meta", sample)
            if not wait([read], timeout=config.flow.timeout_s).done:
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
    wanted = _SAMPLED_STEPS * config.train.global_batch
    if dataset.is_stream:
        return range(wanted)
    order = sample_order(config.data, dataset, seed=config.train.seed)
    return map(order.index, range(min(order.epoch_draws, wanted)))


def _backbone_cost(family: Family, meta: SampleMeta) -> float:
    flops = family.sample_flops(meta.num_tokens, meta.grids, num_targets=meta.num_targets)
    return flops.on("backbone", family.projector_side)


def _encoder_share(work: Work, rates: Rates) -> float:
    """The encoder's share of forward and backward."""
    passes = work.passes
    encoder = passes.encoder * sum(
        work.image_cost(grid) for step in work.steps for meta in step for grid in meta.grids
    )
    backbone = passes.backbone * sum(map(sum, work.cost))
    return encoder / (encoder + backbone)

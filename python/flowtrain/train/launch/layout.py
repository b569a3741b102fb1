"""`flow.layout: auto`: the layout of a run, chosen by the planner before its ranks start."""

from __future__ import annotations

import sys
from collections import Counter

from flowtrain.config.checks import require
from flowtrain.config.layout import RankLayout
from flowtrain.config.schema import RunConfig
from flowtrain.cores import available_cores, cpu_name
from flowtrain.cost.rates import RateTimes
from flowtrain.data.errors import DataError
from flowtrain.data.records import Dataset
from flowtrain.data.sizes import read_sizes
from flowtrain.models.describe import describe_family
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.family import Family
from flowtrain.models.lora import with_lora
from flowtrain.models.registry import family_for
from flowtrain.plan.cached import expected_hits
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.host import Choice, choose_on_cores, choose_on_gpus
from flowtrain.plan.host.sampled import SampledModel, SampledSteps
from flowtrain.plan.profiles import core_times
from flowtrain.plan.run_layout import RunLayout
from flowtrain.train.launch.calibration import core_rates, visible_gpus
from flowtrain.train.launch.first_samples import first_samples, workload_of
from flowtrain.train.launch.threads import threads_of
from flowtrain.train.state.run_folder import written_config


def with_layout(config: RunConfig, *, resume: bool) -> RunConfig:
    """The configuration with a layout in numbers, as `chosen_layout` returns it."""
    return chosen_layout(config, resume=resume)[0]


def chosen_layout(config: RunConfig, *, resume: bool) -> tuple[RunConfig, Choice | None]:
    """The configuration with a layout in numbers, and with what the layout needs of the modules.

    If it has none, a resumed run keeps the layout in its folder. For another run the layout with
    the shortest estimated step is chosen, and a line on standard error says why. What the run gives
    of section `parallel` holds in any case.

    Returns:
        The configuration; and what was chosen, if it was now.

    Raises:
        ConfigError: No layout fits into the memory of the GPUs, or `flow.profile` is unusable.
        DataError: The samples cannot be read.
    """
    if config.flow.rank_layout is not None:
        return config, None
    choice = None
    before = written_config(config.run) if resume else None
    if before is not None and (ranks := before.flow.rank_layout) is not None:
        layout = RunLayout(
            ranks=ranks,
            parallel=before.parallel,
            recompute=before.flow.recompute,
            chunk_slots=before.flow.chunk_slots,
        )
    else:
        choice = _chosen(config)
        # Without samples, the ranks will say what is wrong with them.
        layout = choice.layout if choice else RunLayout(ranks=RankLayout.colocated_on(1))
    return layout.beside(config.parallel).applied(config), choice


def _chosen(config: RunConfig) -> Choice | None:
    profile = config.flow.profile
    require(
        profile is None or profile.is_file(),
        f"flow.profile={profile}: there is no such file; run `flowtrain profile`, or leave it out",
    )
    require(
        profile is None or not config.lora.adapters,
        f"flow.profile={profile} with section lora: adapters are not in measured times; leave "
        "flow.profile out",
    )
    family = family_for(config.model.folder, projector_side=config.projector_side)
    choose = _on_gpus if config.model.device == "cuda" else _on_cores
    choice = choose(config, family)
    if choice is not None:
        print(f"flowtrain: {choice}", file=sys.stderr)
    return choice


def _on_gpus(config: RunConfig, family: Family) -> Choice | None:
    cluster, calibrated = visible_gpus(config)
    try:
        samples = read_sizes(config)
    except (DataError, OSError):
        samples = workload_of(config, family, first_samples(config).sizes)
    if not len(samples):
        return None
    return choose_on_gpus(
        config,
        _described(config, family),
        samples,
        cluster,
        calibrated,
        cache_hits=expected_hits(config, samples, samples=_num_samples(config)),
    )


def _num_samples(config: RunConfig) -> int:
    """Samples of an epoch; 0 for a stream."""
    dataset = Dataset(config.data)
    return 0 if dataset.is_stream else len(dataset)


def _described(config: RunConfig, family: Family) -> ModelDescription:
    model = describe_family(family, name=config.model.folder.resolve().name)
    return with_lora(model, family, config.lora.ranks) if config.lora.adapters else model


def _stepped_sizes(config: RunConfig, family: Family) -> dict[str, int]:
    """Values of each parameter that is stepped if its part trains."""
    if not config.lora.adapters:
        return family.parameter_sizes()
    return family_for(
        config.model.folder, projector_side=config.projector_side, lora=config.lora
    ).trainable_sizes()


def _on_cores(config: RunConfig, family: Family) -> Choice | None:
    samples = first_samples(config)
    if not samples.sizes:
        return None
    itemsize = DTYPES[config.model.pass_dtype].itemsize
    part_bytes: Counter[str] = Counter()
    for name, size in _stepped_sizes(config, family).items():
        part_bytes[family.part_of(name)] += itemsize * size
    workload = workload_of(config, family, samples.sizes)
    steps = SampledSteps(
        SampledModel(
            layers=_described(config, family).layers if config.lora.adapters else family.layers,
            counts=family.counts,
            projector_side=family.projector_side,
            part_bytes=part_bytes,
        ),
        samples.sizes,
        global_batch=config.train.global_batch,
        mode=config.flow.mode,
        recompute=config.flow.recompute,
        trained=config.trained_parts,
        microbatch_tokens=config.train.microbatch_tokens,
        # With a cache, each image is encoded alone.
        item_tokens=config.item_tokens if config.flow.cache.path is None else 1,
        parallel=config.parallel,
        logit_bytes=config.train.logit_bytes,
    )
    threads = threads_of(config)
    rates = core_rates(DTYPES[config.model.pass_dtype], threads=threads)
    profile = config.flow.profile
    return choose_on_cores(
        steps,
        RateTimes(rates, part_bytes, itemsize=itemsize)
        if profile is None
        else core_times(
            profile,
            family.layers,
            device=cpu_name(),
            dtype=config.model.pass_dtype,
            threads=threads,
            compiled=config.model.compile,
        ),
        cores=available_cores(),
        threads=threads,
        reduce_bytes=rates.reduce_bytes,
        read_s=samples.read_s,
        source="calibration" if profile is None else profile.name,
        cache_hits=expected_hits(config, workload, samples=_num_samples(config)),
    )

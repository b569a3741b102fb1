"""Layouts of a run on the GPUs of one host: the search of `flowtrain plan --only-run`."""

from __future__ import annotations

from dataclasses import replace

from flowtrain.config.checks import ConfigError
from flowtrain.config.layout import MODULES
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.config.schema import RunConfig
from flowtrain.plan.cached import words_of
from flowtrain.plan.cluster import Cluster
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.fixed import run_space, sharded
from flowtrain.plan.host.choice import Choice
from flowtrain.plan.inputs import run_work
from flowtrain.plan.pools import Measured, pools_of
from flowtrain.plan.profiles import measured_times
from flowtrain.plan.result import NoPlanError, OutOfRangeError, PlanReport
from flowtrain.plan.run_layout import RunLayout
from flowtrain.plan.runtime import ONE_HOST
from flowtrain.plan.search import search
from flowtrain.plan.work import Work
from flowtrain.workloads import Workload


def choose_on_gpus(
    config: RunConfig,
    model: ModelDescription,
    samples: Workload,
    cluster: Cluster,
    calibrated: Measured | None,
    *,
    cache_hits: float = 0.0,
) -> Choice:
    """The layout that `flowtrain plan --only-run` finds.

    Times that are not valid for the small rows of any plan are extrapolated.

    Args:
        config: The run.
        model: Its model.
        samples: Its samples, or some of them.
        cluster: GPUs of one type on one host, of which at most `train.global_batch` are used.
        calibrated: Times on them, in place of those of a data sheet; those of `flow.profile` take
            precedence.
        cache_hits: Expected share of the images whose features are in the cache of the run.

    Raises:
        ConfigError: No layout fits into memory, or the profile is one of another device or dtype.
        ProfileError: The profile cannot be read, or is one of another model.
    """
    (group,) = cluster.groups
    group = group.with_gpus(min(group.gpus, config.train.global_batch))
    host = Cluster(groups=(group,))
    work = run_work(config, samples, cache_hits=cache_hits)
    try:
        try:
            report, source = _searched(config, model, work, host, calibrated), ""
        except OutOfRangeError:
            report = _searched(config, model, work, host, calibrated, extrapolate=True)
            source = ", extrapolated to small rows"
    except NoPlanError as error:
        raise ConfigError(
            f"flow.layout=auto: {error}; flow.ranks, or flow.encoder_ranks and "
            "flow.backbone_ranks, try a layout all the same"
        ) from error
    if config.flow.profile is not None:
        source = f"{config.flow.profile.name}{source}"
    elif calibrated is not None:
        source = f"{calibrated.source}{source}"
    else:
        source = f"the data sheet of {group.gpu.name}{source}"
    layouts = [RunLayout.of_plan(plan).beside(config.parallel) for plan in report.plans]
    next_best = next(
        (
            (layout, plan.best_s)
            for layout, plan in zip(layouts, report.plans, strict=True)
            if layout != layouts[0]
        ),
        None,
    )
    return Choice(
        layout=layouts[0],
        step_s=report.best.best_s,
        where=f"{group.gpus} {group.gpu.name}",
        source=source + words_of(cache_hits),
        next_best=next_best,
    )


def _searched(
    config: RunConfig,
    model: ModelDescription,
    work: Work,
    cluster: Cluster,
    calibrated: Measured | None,
    *,
    extrapolate: bool = False,
) -> PlanReport:
    if config.flow.profile is not None:
        measured = measured_times(
            config.flow.profile,
            model.layers,
            cluster,
            compiled=config.model.compile,
            extrapolate=extrapolate,
        )
    else:
        measured = {} if calibrated is None else {cluster.groups[0].gpu.name: calibrated}
    space = replace(run_space(config.flow), runtime=ONE_HOST)
    if cluster.gpus > 1:  # One rank has nothing to share out.
        space = sharded(space, _given(config.parallel))
    if (again := config.parallel.backbone).recompute != "none" and again.recompute_layers is None:
        space = replace(space, recompute=(again.recompute,))
    if not work.share.has_inputs:
        # Without images, ranks with both modules are one chain of layers to the search.
        space = replace(space, modes=("prefix",))
    pools = pools_of(cluster, config.model.pass_dtype, measured, extrapolate=extrapolate)
    return search(model, work, pools, space=space, neighbours=False)


def _given(parallel: ParallelConfig) -> dict[str, ModuleParallel]:
    """The modules for which the run gives anything."""
    sections = {module: parallel.of(module) for module in MODULES}
    return {name: own for name, own in sections.items() if own != ModuleParallel()}

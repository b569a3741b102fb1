"""Answers a request for a plan: reads its inputs, searches, and answers what was asked beside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flowtrain.config.checks import require
from flowtrain.config.layout import MODULES
from flowtrain.config.load import load
from flowtrain.config.parallel import ModuleParallel
from flowtrain.config.schema import RunConfig
from flowtrain.config.tree import to_dict
from flowtrain.plan.cached import expected_hits
from flowtrain.plan.cluster import Cluster, parse_cluster
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.export import TARGETS
from flowtrain.plan.fixed import laid_out, narrowed, run_space, sharded
from flowtrain.plan.fixed_sizes import check_sizes
from flowtrain.plan.inputs import (
    chooses_tokens,
    gpu_budgets,
    has_file,
    planned_config,
    planned_samples,
    run_work,
    with_adapters,
)
from flowtrain.plan.plan_file import PlanFile, PlanInput, PlannedRun, digest, model_digest
from flowtrain.plan.planned_modules import planned_modules
from flowtrain.plan.pools import pools_of
from flowtrain.plan.profiles import measured_times
from flowtrain.plan.report.answer import Answer, Point, Question
from flowtrain.plan.result import NoPlanError, OutOfRangeError
from flowtrain.plan.search import search
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.infeasible import changes, needed
from flowtrain.plan.sensitivity import scaled_rankings
from flowtrain.plan.space import GpuPool, Rules, Space
from flowtrain.plan.work import Work
from flowtrain.workloads import PRESETS, Workload

_RANK = 16  # Of the adapters that are proposed.


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What `flowtrain plan` is asked.

    Attributes:
        words: A run.yaml, or none, and overrides.
        model: A Hugging Face folder, in place of that of the file.
        cluster: The cluster, as `parse_cluster` reads it.
        workload: A preset, or a file of lengths; None means the samples of the run.yaml.
        seed: Seed of a preset.
        profile: A file of `flowtrain profile` with measured times.
        fixed: Values that plans must have, as `narrowed` reads them.
        only_run: Whether to search only layouts that FlowTrain runs.
        checked: A run.yaml whose layout is priced beside the best.
        budgets: Other numbers of GPUs, as `gpu_budgets` reads them.
        sensitivity: Whether to rank the best plans under other figures than those assumed.
        lora: LoRA adapters beside those of the run, as `with_adapters` reads them.
        offload: Whether states are in host memory, as with `optim.offload`.
        export: Name of another program, to search only layouts that it runs; None for none.
        gpu_hour: Price of an hour of a GPU; None without one.
        cache_hits: Share of the images whose features are in a cache; None for that which is
            expected of `flow.cache` of the run.
    """

    words: Sequence[str]
    cluster: str
    workload: str | None
    model: Path | None = None
    seed: int = 0
    profile: Path | None = None
    fixed: Sequence[str] = ()
    only_run: bool = False
    checked: Path | None = None
    budgets: str | None = None
    sensitivity: bool = False
    lora: Sequence[str] = ()
    offload: bool = False
    export: str | None = None
    gpu_hour: float | None = None
    cache_hits: float | None = None


Describe = Callable[[RunConfig, Mapping[str, int]], ModelDescription]


@dataclass(frozen=True, slots=True)
class Samples:
    """How the samples of the data of a run are known.

    Attributes:
        sizes: Gives their sizes.
        digests: Gives what the sizes depend on, with values or digests.
    """

    sizes: Callable[[RunConfig], Workload]
    digests: Callable[[RunConfig], Mapping[str, str]]


def answer_request(
    request: Request, describe: Describe, samples: Samples
) -> tuple[Answer, PlanFile]:
    """Find the best plan, and what was asked beside it.

    Args:
        request: The request.
        describe: Describes the model of a run, with LoRA adapters of a rank in some parts.
        samples: The samples of a run, if there is no other workload.

    Returns:
        The answer, and the contents of its plan.json.

    Raises:
        NoPlanError: No plan fits.
        ValueError: An input cannot be used; the message names it.
        OSError: A file cannot be read.
    """
    config = with_adapters(planned_config(request.words, model=request.model), request.lora)
    if request.offload:
        config = replace(config, optim=replace(config.optim, offload=True))
    cluster = parse_cluster(request.cluster)
    _check_price(request.gpu_hour, cluster)
    target = None if request.export is None else TARGETS[request.export]
    if target is not None:
        require(
            not request.only_run,
            f"--only-run --export {target.name}: plans that FlowTrain runs, and plans that "
            f"{target.space.runtime.name} runs; leave one of them out",
        )
        config = target.planned_for(config)
    others = gpu_budgets(request.budgets, cluster) if request.budgets else []
    checked = None if request.checked is None else load(request.checked)
    digest_of_model = model_digest(config.model.folder)
    work = _work(config, request, samples)
    lora = config.lora.ranks
    adapters = " ".join(f"{part}={rank}" for part, rank in lora.items())
    require(
        not lora or request.profile is None,
        f"--profile {request.profile} with adapters of {adapters}: these are modelled by data "
        "sheets; leave --profile out",
    )
    require(
        checked is None or checked.lora.ranks == lora,
        f"--check {request.checked}: its adapters are not those of the plan ({adapters or 'none'});"
        " give both the same section lora",
    )
    require(
        checked is None or checked.flow.rank_layout is not None,
        f"--check {request.checked}: its flow.layout without numbers of ranks is no layout; give "
        "flow.ranks, or flow.encoder_ranks and flow.backbone_ranks, in that file",
    )
    model = describe(config, lora).with_inputs(work.share)
    encoders = [encoder.name for encoder in model.encoders]
    if request.only_run or request.checked is not None:
        option = "--only-run" if request.only_run else "--check"
        require(
            not model.untrained,
            f"{option}: model_type={model.untrained} has no family, so that FlowTrain runs no plan "
            f"of {model.name}; leave {option} out for a plan that is modelled alone, and fix sizes "
            f"with --fix, such as {encoders[0]}.dp=2",
        )
    space = run_space(config.flow) if request.only_run else Space()
    space = space if target is None else target.space_of(model)
    space = narrowed(space, request.fixed, encoders=encoders)
    measured = (
        {} if request.profile is None else measured_times(request.profile, model.layers, cluster)
    )
    pools = pools_of(cluster, config.model.pass_dtype, measured)
    check_sizes(space, model, pools, batch=work.batch)
    try:
        report = search(model, work, pools, space=space)
    except OutOfRangeError:
        raise
    except NoPlanError as error:
        if not request.only_run:
            raise
        adapted = _with_adapters(model, config, work, describe)
        if adapted is None:
            raise
        option = f"--lora backbone={_RANK}"
        context = Context(adapted, work, pools[0], space, Rules())
        ways = [f"{option} {needed(context)}"]
        ways += [f"{option} {change}" for change in changes(context)]
        raise NoPlanError(f"{error}; {'; '.join(ways)}") from error
    run = replace(PlannedRun.of(config), microbatch_tokens=report.best.microbatch_tokens)
    answer = Answer(
        question=Question(
            cluster=cluster,
            workload=work.workload.name,
            run=run,
            fixed=(*_limits(request), *request.fixed),
            lora=lora,
            bad_samples=work.workload.bad,
            gpu_hour=request.gpu_hour,
            steps=_steps(config, request, work.workload),
        ),
        report=report,
        checked=None if checked is None else _checked(model, work, pools, checked),
        scaled=scaled_rankings(model, work, pools, report.plans) if request.sensitivity else (),
        curve=tuple(
            _point(
                model,
                work,
                pools_of(other, config.model.pass_dtype, measured),
                space,
                gpus=other.gpus,
            )
            for other in others
        ),
    )
    return answer, PlanFile(
        model=report.model,
        model_digest=digest_of_model,
        cluster=str(cluster),
        nodes=answer.nodes,
        gpu_bytes={
            pool.gpu_type: pool.memory_bytes
            for pool in pools
            if any(module.gpu_type == pool.gpu_type for module in report.best.modules)
        },
        inputs=tuple(_inputs(request, work.workload)),
        samples=dict(samples.digests(config)) if _has_own_samples(request) else {},
        run=run,
        modules=planned_modules(report.best, model, work.trained),
        plan=report.best,
        untrained=model.untrained,
    )


def _limits(request: Request) -> Iterator[str]:
    """Which layouts are searched, in words."""
    if request.only_run:
        yield "what FlowTrain runs, on one node"
    if request.export is not None:
        yield f"what {TARGETS[request.export].space.runtime.name} runs"


def _check_price(gpu_hour: float | None, cluster: Cluster) -> None:
    """Require a price that holds for each GPU of the cluster.

    Raises:
        ConfigError: It is no price, or the cluster has GPUs of several types.
    """
    if gpu_hour is None:
        return
    require(
        0 < gpu_hour < math.inf,
        f"--gpu-hour {gpu_hour:g}: the price of an hour of a GPU must be above 0, and finite",
    )
    types = list(dict.fromkeys(group.gpu.name for group in cluster.groups))
    require(
        len(types) == 1,
        f"--gpu-hour {gpu_hour:g}: cluster '{cluster}' has GPUs of several types, which differ in "
        "price; leave it out, and multiply the GPU hours of each module by its own price",
    )


def _steps(config: RunConfig, request: Request, workload: Workload) -> int:
    """Steps of the run; 0 if it states none, or epochs of samples that are not known."""
    if not has_file(request.words):
        return 0
    train = config.train
    if train.steps or not _has_own_samples(request):
        return train.steps
    return math.ceil(train.epochs * len(workload) / train.global_batch)


def _has_own_samples(request: Request) -> bool:
    """Whether the samples are those of the data of the run."""
    return request.workload is None and has_file(request.words)


def _inputs(request: Request, workload: Workload) -> Iterator[PlanInput]:
    """What the plan is made from, apart from the model and the run."""
    file = None if request.workload is None else Path(request.workload)
    if file is not None and request.workload not in PRESETS:
        yield PlanInput.of_file("workload", file)
    else:
        yield PlanInput(what="workload", name=workload.name, digest=workload.digest)
    if (own := Path(request.cluster)).is_file():
        yield PlanInput.of_file("cluster", own)
    else:
        figures = digest(to_dict(parse_cluster(request.cluster)))
        yield PlanInput(what="cluster", name=request.cluster, digest=figures)
    if request.profile is not None:
        yield PlanInput.of_file("profile", request.profile)


def _with_adapters(
    model: ModelDescription, config: RunConfig, work: Work, describe: Describe
) -> ModelDescription | None:
    """The model with adapters in place of the weights of the backbone, if these train."""
    trains = "backbone" in config.trained_parts and "backbone" not in config.lora.ranks
    if not trains or model.width < _RANK:
        return None
    return describe(config, {**config.lora.ranks, "backbone": _RANK}).with_inputs(work.share)


def _work(config: RunConfig, request: Request, samples: Samples) -> Work:
    if _has_own_samples(request):
        workload = samples.sizes(config)
        expected = expected_hits(config, workload, samples=len(workload))
    else:
        workload = planned_samples(request.workload, config, seed=request.seed)
        expected = 0.0
    hits = request.cache_hits
    require(hits is None or 0 <= hits <= 1, f"--cache-hits {hits}: give a share from 0 to 1")
    require(
        not hits or "encoder" not in config.trained_parts,
        f"--cache-hits {hits}: the encoder trains, so that its features change in each step and "
        "are not stored; set flow.mode=frozen, or leave --cache-hits out",
    )
    return run_work(
        config,
        workload,
        chooses_tokens=chooses_tokens(request.words),
        cache_hits=expected if hits is None else hits,
    )


def _checked(
    model: ModelDescription, work: Work, pools: Sequence[GpuPool], config: RunConfig
) -> Point:
    """The layout of a run, with the microbatches of that run."""
    layout = config.flow.rank_layout
    assert layout is not None
    work = replace(work, microbatch_tokens=config.train.microbatch_tokens)
    parallel: dict[str, ModuleParallel] = {module: config.parallel_of(module) for module in MODULES}
    space = sharded(laid_out(run_space(config.flow), layout), parallel)
    return _point(model, work, pools, space, gpus=len(layout.labels))


def _point(
    model: ModelDescription, work: Work, pools: Sequence[GpuPool], space: Space, *, gpus: int
) -> Point:
    try:
        report = search(model, work, pools, space=space, neighbours=False)
    except NoPlanError as error:
        return Point(gpus=gpus, plan=None, reason=str(error))
    return Point(gpus=gpus, plan=report.best)

"""Builds a rank of its parts, as the configuration of the run sets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.config.tree import to_dict
from flowtrain.data.chat import end_ids
from flowtrain.schedule import Action, Role, roles_of, template_of
from flowtrain.train.assembly.features import feature_cache
from flowtrain.train.assembly.memory import device_memory_error
from flowtrain.train.assembly.planners import evaluation_planner, training_planner
from flowtrain.train.control.exchange import StepExchange
from flowtrain.train.control.targets import TargetCheck
from flowtrain.train.control.world import World
from flowtrain.train.input.prefetch import Prefetch
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.planning.planner import Planner
from flowtrain.train.ranks.answers import AnswerLimits
from flowtrain.train.ranks.backbone import BackbonePart
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.encoder import EncoderPart, pixel_requests
from flowtrain.train.ranks.evaluations import Evaluation
from flowtrain.train.ranks.late import late_ranks_error
from flowtrain.train.ranks.metrics import Metrics
from flowtrain.train.ranks.peak import job_peaks
from flowtrain.train.ranks.profiler import Profiler
from flowtrain.train.ranks.rank import Rank
from flowtrain.train.ranks.step import Delays
from flowtrain.train.ranks.trackers import open_trackers
from flowtrain.train.ranks.update import Update
from flowtrain.train.ranks.utilization import Utilization
from flowtrain.train.records.loopback import Loopback
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.optimizer import LearningRates
from flowtrain.train.state.trained import Trained


def build_rank(
    config: RunConfig,
    context: RankContext,
    modules: Mapping[str, ModuleState],
    checkpoints: Checkpoints,
    reads: Mapping[str, SampleReads],
    stream: SampleReads | None,
    *,
    first: int,
    cursor: int,
    resources: ExitStack,
) -> Rank:
    """The rank of this process, whose planners have started.

    Args:
        config: The run.
        context: Connections and services of the rank.
        modules: The modules that it holds.
        checkpoints: Saves them.
        reads: Reads of the samples of training and evaluations.
        stream: Reads of the stream, if the run has one.
        first: First step.
        cursor: Samples that the steps before have drawn.
        resources: Closes the logs.
    """
    [role] = [role for role in roles_of(config) if role.label == context.world.label]
    records, gradients = context.loopback(), context.loopback()
    encoder = backbone = metrics = planner = eval_planner = None
    if role.encoder:
        encoder = encoder_part(
            config,
            context,
            modules["encoder"],
            reads,
            records=records,
            gradients=gradients,
        )
    if role.backbone:
        backbone = BackbonePart(
            context,
            modules["backbone"],
            receiver=context.receiver("backbone", records),
            sender=context.sender("encoder", gradients),
            meets=role.meets == "always",
            answers=_answer_limits(config),
        )
        if context.world.reports:
            opened = _metrics(config, context, first=first, held_out=reads.get("eval"))
            metrics = resources.enter_context(closing(opened))
        if context.world.hosts_planner:
            planner = training_planner(config, context, reads, stream, first=first, cursor=cursor)
            planner.start()
            eval_planner = evaluation_planner(config, context, reads, first=first)
            if eval_planner is not None:
                eval_planner.start()
    return rank_of(
        config,
        context,
        role,
        checkpoints,
        encoder=encoder,
        backbone=backbone,
        metrics=metrics,
        planner=planner,
        eval_planner=eval_planner,
        evaluated=None if metrics is None else metrics.evaluation,
    )


def _metrics(
    config: RunConfig, context: RankContext, *, first: int, held_out: SampleReads | None
) -> Metrics:
    """The log of a run."""
    return Metrics(
        config.run,
        steps=config.train.steps,
        rates=LearningRates(
            config.optim,
            Trained(config.trained_parts, config.optim).groups(context.family),
            steps=config.schedule_steps,
        ),
        utilization=Utilization(
            context.layout,
            job_peaks(context.layout, context.world.device, context.dtype),
            context.family,
            trained=config.trained_parts,
            adapted=config.lora.ranks,
        ),
        trackers=open_trackers(config.track, config.run, first=first, settings=to_dict(config)),
        held_out=held_out,
    )


def encoder_part(
    config: RunConfig,
    context: RankContext,
    module: ModuleState,
    reads: Mapping[str, SampleReads],
    *,
    records: Loopback | None,
    gradients: Loopback | None,
) -> EncoderPart:
    """The encoder's part of a rank.

    Args:
        config: The run.
        context: Connections and services of the rank.
        module: The encoder.
        reads: Reads of the samples of training and evaluations.
        records: Takes the records that the rank sends to itself, if it holds the backbone too.
        gradients: Has the gradients of these.
    """
    cache = feature_cache(config, context, module)
    prefetch = {
        kind: Prefetch(
            of_kind,
            context.plans.peek,
            partial(pixel_requests, context.world.replica, cache=cache),
            context.activity.events,
        )
        for kind, of_kind in reads.items()
    }
    if "eval" in prefetch:
        prefetch["answer"] = prefetch["eval"]
    return EncoderPart(
        context,
        module,
        prefetch,
        sender=context.sender("backbone", records),
        # Nothing comes to encoder ranks that come and go, whose encoder does not train.
        receiver=None if context.board is not None else context.receiver("encoder", gradients),
        cache=cache,
    )


def _answer_limits(config: RunConfig) -> AnswerLimits | None:
    """When answers of evaluations end; None without any."""
    if not config.eval.answers:
        return None
    return AnswerLimits(max_tokens=config.eval.answer_tokens, end_ids=end_ids(config.model.folder))


def rank_of(
    config: RunConfig,
    context: RankContext,
    role: Role,
    checkpoints: Checkpoints,
    *,
    encoder: EncoderPart | None,
    backbone: BackbonePart | None,
    metrics: Metrics | None = None,
    planner: Planner | None = None,
    eval_planner: Planner | None = None,
    rate: Callable[[], float] | None = None,
    evaluated: Callable[[int, Evaluation | None], None] | None = None,
) -> Rank:
    """A rank of its parts; they, `rate` and `evaluated` are as for `Rank` and `Update`."""
    update = Update(
        context,
        _exchange(config, context),
        TargetCheck(config.train.steps),
        encoder=encoder,
        backbone=backbone,
        metrics=metrics,
        planner=planner,
        rate=rate,
    )
    return Rank(
        context,
        template_of(config),
        role,
        update,
        checkpoints,
        encoder=encoder,
        backbone=backbone,
        evaluated=evaluated,
        planner=planner,
        eval_planner=eval_planner,
        profiler=Profiler(config.track, config.run, role.label),
        delays=Delays(config.debug.delay_ms / 1e3, f"{config.train.seed}/{role.label}"),
        explained=partial(explained, config, context.world),
    )


def explained(
    config: RunConfig, world: World, action: Action, error: Exception
) -> Exception | None:
    """The error that says more than the one that an action of a run raised, or None."""
    if isinstance(error, torch.OutOfMemoryError):
        return device_memory_error(config, action, error)
    if not world.makes_groups:
        return None
    return late_ranks_error(action, error, timeout_s=config.flow.timeout_s)


def _exchange(config: RunConfig, context: RankContext) -> StepExchange:
    """The exchange at the end of each step of a run."""
    world = context.world.name
    return StepExchange(
        context.store,
        world=world,
        worlds=[
            world.name
            for world in context.layout.worlds
            if "backbone" in world.modules or config.flow.mode != "frozen"
        ],
        clip_norm=config.optim.clip_norm,
        nonfinite=config.train.nonfinite,
        # The encoder is late in `bounded`, and so may be its report.
        late=config.flow.mode == "bounded" and world == "backbone",
    )

"""A run with the layout of a plan."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from flowtrain.config.checks import ConfigError, require
from flowtrain.config.layout import RankLayout
from flowtrain.config.schema import RunConfig
from flowtrain.plan.plan_file import PlanFile, PlannedRun, model_digest, read_plan
from flowtrain.plan.result import Plan

# Where a run says what a plan assumes of it.
_RUN_FIELDS = {
    "trained_parts": "model.freeze (the parts that train)",
    "lora": "lora (rank of the adapters of each part)",
    "mode": "flow.mode",
    "dtype": "model.dtype",
    "optimizer": "optim.name",
    "master_weights": "optim.master_weights",
    "momentum": "optim.momentum (whether it is above 0)",
    "global_batch": "train.global_batch",
    "microbatch_tokens": "train.microbatch_tokens",
    "item_tokens": "flow.item_tokens",
}


def with_plan(config: RunConfig, path: Path) -> RunConfig:
    """The configuration of a run with the layout of a plan.

    Args:
        config: The run. It may give the same layout, or none.
        path: A `plan.json`.

    Raises:
        ConfigError: The file is unusable; the plan is for another model, run or number of ranks; or
            FlowTrain does not run its layout. The message names the field.
    """
    file = read_plan(path)
    _check_model(file, config, path)
    layout = rank_layout(file, source=str(path))
    _check_run(file.run, PlannedRun.of(config), path)
    given = config.flow.rank_layout
    if given is not None and given != layout:
        raise ConfigError(
            f"{path}: the plan is for {_ranks(layout)}, and the run for {_ranks(given)}; leave "
            "flow.layout and the numbers of ranks out, or plan for as many GPUs"
        )
    return replace(config, flow=config.flow.with_layout(layout, recompute=file.plan.recompute))


def rank_layout(file: PlanFile, *, source: str) -> RankLayout:
    """The layout of a plan, for the runtime.

    Raises:
        ConfigError: FlowTrain models the layout, but does not run it yet, or no family trains the
            model.
    """
    require(
        not file.untrained,
        f"{source}: model_type={file.untrained} has no family, so that no run can train with this "
        "plan; plan a model that has one, or write one, as docs/families.md shows",
    )
    unmet = list(file.plan.not_run)
    if file.nodes > 1:
        unmet.append(f"nodes={file.nodes} (a run has one host)")
    require(
        not unmet,
        f"{source}: {', '.join(unmet)}: modelled, and not run by FlowTrain yet; run "
        "`flowtrain plan` with --only-run for the best layout that it runs",
    )
    return layout_of(file.plan)


def layout_of(plan: Plan) -> RankLayout:
    """The ranks of a plan that FlowTrain runs, in which replicas share nothing."""
    if plan.mode == "disaggregated":
        return RankLayout.decoupled(
            plan.module("encoder").layout.dp, plan.module("backbone").layout.dp
        )
    return RankLayout.colocated_on(plan.gpus)


def _check_model(file: PlanFile, config: RunConfig, path: Path) -> None:
    require(
        model_digest(config.model.folder) == file.model_digest,
        f"{path}: the plan is for {file.model}, whose sizes differ from those of "
        f"{config.model.folder}; run `flowtrain plan` for this model",
    )


def _check_run(planned: PlannedRun, run: PlannedRun, path: Path) -> None:
    for field in fields(PlannedRun):
        was, now = getattr(planned, field.name), getattr(run, field.name)
        require(
            was == now,
            f"{path}: {_RUN_FIELDS[field.name]}: {_text(now)} in the run, and {_text(was)} in the "
            "plan; run `flowtrain plan` on this run",
        )


def _text(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    pairs = ("=".join(map(str, each)) if isinstance(each, tuple) else each for each in value)
    return ", ".join(pairs) or "none"


def _ranks(layout: RankLayout) -> str:
    if layout.colocated:
        return f"flow.ranks={layout.backbone_ranks}"
    return (
        f"flow.encoder_ranks={layout.encoder_ranks} and flow.backbone_ranks={layout.backbone_ranks}"
    )

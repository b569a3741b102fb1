"""A run with the layout of a plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path

from flowtrain.config.checks import require
from flowtrain.config.layout import RankLayout
from flowtrain.config.schema import RunConfig
from flowtrain.plan.plan_file import PlanFile, PlannedRun, model_digest, read_plan
from flowtrain.plan.run_layout import RunLayout

# Where a run says what a plan assumes of it.
_RUN_FIELDS = {
    "trained_parts": "model.freeze (the parts that train)",
    "lora": "lora (rank of the adapters of each part)",
    "mode": "flow.mode",
    "dtype": "model.dtype",
    "compute_dtype": "model.compute_dtype",
    "optimizer": "optim.name",
    "momentum": "optim.momentum (whether it is above 0)",
    "global_batch": "train.global_batch",
    "microbatch_tokens": "train.microbatch_tokens",
    "logit_bytes": "train.logit_bytes",
    "item_tokens": "flow.item_tokens",
}


def with_plan(
    config: RunConfig, path: Path, *, given: Collection[str] = (), hosts: bool = False
) -> RunConfig:
    """The configuration of a run with the layout of a plan.

    Args:
        config: The run. It may give the same layout, or none.
        path: A `plan.json`.
        given: Fields of the run that were given, as `load_given` names them; others have defaults.
            A value that is no default counts as given.
        hosts: Whether the run can have several hosts.

    Raises:
        ConfigError: The file is unusable; the plan is for another model, run or number of ranks, or
            for more than one host; or FlowTrain does not run its layout. The message names the
            field.
    """
    file = read_plan(path)
    require(
        hosts or file.nodes == 1,
        f"{path}: nodes={file.nodes}: the plan is for several hosts; start its run by `flowtrain "
        "host RUN.yaml --plan ... --listen ADDRESS:PORT`, as docs/hosts.md shows",
    )
    _check_model(file, config, path)
    layout = run_layout(file, source=str(path))
    _check_run(file.run, PlannedRun.of(config), path)
    _check_layout(layout, config, path, given)
    return layout.applied(config)


def run_layout(file: PlanFile, *, source: str) -> RunLayout:
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
    require(
        not file.plan.not_run,
        f"{source}: {', '.join(file.plan.not_run)}: modelled, and not run by FlowTrain yet; run "
        "`flowtrain plan` with --only-run for the best layout that it runs",
    )
    return RunLayout.of_plan(file.plan)


def _check_layout(layout: RunLayout, config: RunConfig, path: Path, given: Collection[str]) -> None:
    """Check that what the run gives of its layout is what the plan says."""
    ranks = config.flow.rank_layout
    require(
        ranks is None or ranks == layout.ranks,
        f"{path}: the plan is for {_ranks(layout.ranks)}, and the run for "
        f"{_ranks(ranks or layout.ranks)}; leave flow.layout and the numbers of ranks out, or plan "
        "for as many GPUs",
    )
    own = RunLayout(
        ranks=layout.ranks,
        parallel=config.parallel,
        recompute=config.flow.recompute,
        chunk_slots=config.flow.chunk_slots,
        offload=config.optim.offload,
    ).fields
    defaults = RunLayout(ranks=layout.ranks).fields
    for name, planned in layout.fields.items():
        require(
            own[name] == planned or (own[name] == defaults[name] and name not in given),
            f"{path}: {name}: {_text(own[name])} in the run, and {_text(planned)} in the plan; "
            "leave it out of the run, or train without --plan",
        )


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
        return "null" if value is None else str(value)
    pairs = ("=".join(map(str, each)) if isinstance(each, tuple) else each for each in value)
    return ", ".join(pairs) or "none"


def _ranks(layout: RankLayout) -> str:
    if layout.colocated:
        return f"flow.ranks={layout.backbone_ranks}"
    return (
        f"flow.encoder_ranks={layout.encoder_ranks} and flow.backbone_ranks={layout.backbone_ranks}"
    )

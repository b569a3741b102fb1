"""Plans for tests, with numbers that a reader can check by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flowtrain.plan.cluster import parse_cluster
from flowtrain.plan.plan_file import PlanFile, PlanInput, PlannedRun
from flowtrain.plan.report.answer import Question
from flowtrain.plan.result import (
    Assumption,
    Layout,
    Mode,
    ModulePlan,
    Plan,
    PlanReport,
    RankBytes,
    Seconds,
    StageLayout,
)

GIB = float(1 << 30)


def module_plan(name: str, layout: Layout, **more: Any) -> ModulePlan:
    seconds = Seconds(forward=0.03, backward=0.06, tp=0.01 if layout.tp > 1 else 0.0)
    given: dict[str, Any] = {
        "module": name,
        "gpu_type": "H100",
        "layout": layout,
        "microbatch": seconds,
        "stage_s": (seconds.total,) * layout.pp,
        "fill_s": seconds.total * layout.pp,
        "once": Seconds(),
        "reduce_s": 0.02,
        "optimizer_s": 0.01,
        "memory": (RankBytes(weights=16 * GIB, gradients=8 * GIB, activations=30 * GIB),)
        * layout.pp,
        "memory_bytes": int(76 * GIB),
    }
    return ModulePlan(**{**given, **more})


def plan(mode: Mode, *modules: ModulePlan, **more: Any) -> Plan:
    given: dict[str, Any] = {
        "mode": mode,
        "modules": modules,
        "microbatches": 8,
        "microbatch_tokens": 16384,
        "mean_tokens": 15000.0,
        "step_s": 1.0,
        "simulated_s": None,
        "bottleneck": modules[-1].module,
        "model_flops": 1.266e16,
        "mfu": 0.4,
        "tokens": 1e6,
        "allocated": 0,
        "not_run": (),
    }
    found = Plan(**{**given, **more})
    return found if found.allocated else replace(found, allocated=found.gpus)


_ONE = (StageLayout(first=0, end=4, recompute="none"),)


def colocated(ranks: int, **layout: Any) -> Plan:
    both = Layout(dp=ranks, stages=_ONE)
    return plan(
        "colocated", module_plan("encoder", both), module_plan("backbone", replace(both, **layout))
    )


def decoupled(encoder: int, backbone: int) -> Plan:
    return plan(
        "disaggregated",
        module_plan("encoder", Layout(dp=encoder, stages=_ONE)),
        module_plan("backbone", Layout(dp=backbone, stages=_ONE)),
    )


def plan_file(of: Plan, digest: str, run: PlannedRun, **more: Any) -> PlanFile:
    given: dict[str, Any] = {
        "model": "tiny",
        "model_digest": digest,
        "cluster": "1x4xH100",
        "nodes": 1,
        "gpu_bytes": {"H100": int(80 * GIB)},
        "inputs": (
            PlanInput(what="workload", name="native", digest="0"),
            PlanInput(what="cluster", name="local", digest="0"),
        ),
        "samples": {},
        "run": run,
        "modules": (),
        "plan": of,
    }
    return PlanFile(**{**given, **more})


def report(best: Plan, *others: Plan, **more: Any) -> PlanReport:
    given: dict[str, Any] = {
        "model": "Qwen3-VL-8B",
        "gpus": {"H100": best.gpus},
        "samples": 512,
        "best": best,
        "uniform": None,
        "plans": (best, *others),
        "simulated": 1 + len(others),
        "cheapest": best,
        "smaller": None,
        "larger": None,
        "counts": {"priced": 40, "memory": 7},
        "assumptions": (
            Assumption(name="linear", value="0.7 of the peak", source="assumption"),
            Assumption(name="overlap", value="gradients behind the last pass", source="a paper"),
        ),
    }
    # A uniform plan is the cheapest one, unless it is said otherwise.
    given["cheapest_uniform"] = more.get("uniform")
    return PlanReport(**{**given, **more})


RUN = PlannedRun(
    trained_parts=("encoder", "projector", "backbone"),
    lora=(),
    mode="strict",
    dtype="float32",
    compute_dtype="bfloat16",
    optimizer="adamw",
    momentum=False,
    global_batch=512,
    microbatch_tokens=16384,
    logit_bytes=1 << 28,
    item_tokens=8192,
)


def question(cluster: str, **more: Any) -> Question:
    given: dict[str, Any] = {"workload": "native", "run": RUN}
    return Question(**{"cluster": parse_cluster(cluster), **given, **more})

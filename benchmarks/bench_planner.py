"""Which layouts are best, and how long does it take to find them?

Models of five sizes, and one with two encoders, on 16 to 128 GPUs of the data sheet's H100, and up
to 256 for the time; no device is used. The price of the best plan for mean samples stands beside
the best uniform plan (one layout for the whole model) and beside the simulation of both on
scheduled batches. `rises` counts budgets with a longer step than a smaller one, `over_memory` plans
with a rank above its limit. Times are processor seconds of one search, simulation included. The
last line is JSON. The exit status is 1 if a bar is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from planner.loads import load_of
from planner.models import MODELS, described

from flowtrain.bench.conditions import conditions
from flowtrain.plan.cluster import parse_cluster
from flowtrain.plan.pools import pools_of
from flowtrain.plan.result import NoPlanError, Plan, PlanReport
from flowtrain.plan.search import search
from flowtrain.plan.space import GpuPool
from flowtrain.plan.work import Work

BUDGETS = (16, 32, 64, 128)
BARS = {"rises": 0, "over_memory": 0}
SAMPLES = 512  # Of a step.
LOADS = ("native", "tiles", "video")
# Of models that need other ones.
OTHER_LOADS = {"Omni 7B": ("native and speech", "video and speech")}


def h100(gpus: int) -> GpuPool:
    """GPUs in nodes of 8, with the links of a DGX H100."""
    (pool,) = pools_of(parse_cluster(f"{gpus // 8}x8xH100"), "bfloat16", extrapolate=True)
    return pool


def shown(plan: Plan) -> str:
    layouts = "; ".join(
        f"{module.module} {module.layout} {module.layout.sharding}" for module in plan.modules
    )
    order = "" if plan.chunk_slots is None else f", {plan.chunk_slots} at a time"
    return f"{plan.mode}, {layouts}, {plan.microbatches} microbatches{order}"


def above(plan: Plan | None, best_s: float, *, simulated: bool) -> float | None:
    """Share by which a plan is above the best one."""
    if plan is None:
        return None
    return ((plan.simulated_s or 0.0) if simulated else plan.step_s) / best_s - 1


def row(name: str, load: str, gpus: int, found: PlanReport, seconds: float) -> dict[str, object]:
    cheapest, best = found.cheapest, found.best
    uniform = above(found.cheapest_uniform, cheapest.step_s, simulated=False)
    simulated = above(found.uniform, best.best_s, simulated=True)
    return {
        "model": name,
        "load": load,
        "gpus": gpus,
        "step_s": round(cheapest.step_s, 3),
        "uniform_above": None if uniform is None else round(uniform, 4),
        "mfu": round(cheapest.mfu, 3),
        "plan": shown(cheapest),
        "simulated_s": round(best.best_s, 3),
        "uniform_above_simulated": None if simulated is None else round(simulated, 4),
        "simulated_plan": shown(best),
        "seconds": round(seconds, 2),
    }


def over_memory(found: PlanReport) -> int:
    """Plans of which a rank needs more than its limit."""
    return sum(
        any(rank.total > module.memory_bytes + 1 for rank in module.memory)
        for plan in found.plans
        for module in plan.modules
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    parser.add_argument("--quick", action="store_true", help="one model and load")
    arguments = parser.parse_args()
    figures: dict[str, float] = {"rises": 0, "over_memory": 0}
    cells = [(name, load) for name in MODELS for load in OTHER_LOADS.get(name, LOADS)]
    if arguments.quick:
        cells = cells[:1]
    for name, load in cells:
        model = described(name)
        work = Work(workload=load_of(load), batch=SAMPLES)
        previous = float("inf")
        for gpus in BUDGETS:
            start = time.process_time()
            try:
                found = search(model, work, [h100(gpus)], neighbours=False)
            except NoPlanError as error:
                print(json.dumps({"model": name, "load": load, "gpus": gpus, "none": str(error)}))
                continue
            took = row(name, load, gpus, found, time.process_time() - start)
            print(json.dumps(took) if arguments.json else _line(took), flush=True)
            figures["rises"] += found.cheapest.step_s > previous
            figures["over_memory"] += over_memory(found)
            previous = found.cheapest.step_s
    model = described("7B, native ViT")
    work = Work(workload=load_of("native"), batch=2048)
    start = time.process_time()
    search(model, work, [h100(256)])
    figures["seconds_256"] = round(time.process_time() - start, 2)
    print(json.dumps({**figures, "bars": BARS, "conditions": conditions()}))
    return int(any(figures[name] > limit for name, limit in BARS.items()))


def _line(took: dict[str, object]) -> str:
    return "  ".join(f"{key}={value}" for key, value in took.items())


if __name__ == "__main__":
    sys.exit(main())

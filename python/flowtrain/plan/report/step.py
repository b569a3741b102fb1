"""Lines of the report on the time of a step: its parts, and the proof."""

from __future__ import annotations

from flowtrain.plan.report.words import milliseconds, percent, seconds
from flowtrain.plan.result import MOST_SIMULATED, Plan, PlanReport

ROUNDING = 1e-9
"""Share below which steps are the same."""

MODEL_ERROR = 0.02
"""Differences of steps below this share are not told apart. It is the mean error of a step that is
estimated from times that were just measured; from data sheets it is larger."""


def proof(report: PlanReport) -> str:
    """The distance of the shown plan from the proven minimum."""
    least = f"{seconds(report.cheapest.step_s)} for mean samples"
    if report.gap <= ROUNDING:
        text = f"no plan of the search takes less than this one's {least}"
    else:
        more = percent(report.gap)
        text = f"no plan of the search takes less than {least}, and this one {more} more"
    if report.best.simulated_s is not None:
        text += f"; {_simulated(report)}; this one is the shortest"
    return text


def _simulated(report: PlanReport) -> str:
    """Which plans were simulated: each layout with a number of microbatches counts once."""
    below = f"below {seconds(report.best.best_s)} for mean samples"
    plans = "1 plan was" if report.simulated == 1 else f"{report.simulated} plans were"
    if report.all_simulated:
        return f"{plans} simulated, including every plan {below}"
    return f"{plans} simulated, but not every plan {below} (limit: {MOST_SIMULATED})"


def step_parts(plan: Plan) -> dict[str, float]:
    """Seconds of a step of mean samples, by what they are spent on; they add up to the step."""
    *encoders, backbone = plan.modules
    updates = [module.update_s for module in plan.modules]
    apart = plan.mode == "disaggregated"
    longest_s = max(max(module.stage_s) for module in plan.modules)
    parts = {
        "encoders": sum(encoder.once.total for encoder in encoders),
        "first microbatch": backbone.fill_s,
        f"{plan.microbatches - 1} x {milliseconds(longest_s)} ms": (plan.microbatches - 1)
        * longest_s,
        "heaviest sample": backbone.heaviest_s,
        "update": max(updates) if apart else sum(updates),
    }
    if apart:
        # The first rows and the last gradients of encoders, which may be of different ones.
        parts["encoders before and behind it"] = plan.step_s - sum(parts.values())
    return {name: time_s for name, time_s in parts.items() if time_s > 0}


def step_text(plan: Plan) -> str:
    """The parts in words."""
    shown = [f"{name} {milliseconds(time_s)}" for name, time_s in step_parts(plan).items()]
    return f"{milliseconds(plan.step_s)} ms: {', '.join(shown)}"

"""Why a plan is the best: what its step is made of, and what other plans would give."""

from __future__ import annotations

from dataclasses import fields

from flowtrain.plan.report.answer import Answer
from flowtrain.plan.report.step import MODEL_ERROR, ROUNDING, step_text
from flowtrain.plan.report.words import milliseconds, num_gpus, percent, plan_line, seconds
from flowtrain.plan.result import MOST_SIMULATED, ModulePlan, Plan, SampleTest, Seconds

_GIB = 1 << 30


def why_rows(answer: Answer) -> list[tuple[str, str]]:
    """Names and sentences: what a step of the best plan is made of, and what others give."""
    report = answer.report
    best = report.best
    slowest = best.module(best.bottleneck)
    rows = [("mean step", step_text(best))]
    rows.append(("bottleneck", f"{slowest.module}: {_spent(slowest)}"))
    for module in best.modules:
        if module is not slowest:
            rows.append((module.module, _beside_slowest(module, slowest)))
    for other in (report.smaller, report.larger):
        if other is not None:
            gpus, plan = other
            # Both are the least for mean samples: what is shown need not be.
            rows.append((num_gpus(gpus), f"{compared(plan, report.cheapest)}: {plan_line(plan)}"))
    fullest = min(best.modules, key=_free)
    memory = fullest.memory[fullest.fullest]
    others = "modules" if len(best.modules) > 2 else "module"
    beside = f" beside the other {others}" if best.mode == "colocated" else ""
    rows.append(
        (
            "memory",
            f"{fullest.module}, stage {fullest.fullest}, has {_free(fullest) / _GIB:.1f} of "
            f"{fullest.memory_bytes / _GIB:.1f} GiB left{beside}; {memory.largest} take the most, "
            f"{getattr(memory, memory.largest) / _GIB:.1f} GiB",
        )
    )
    if best.pool_bytes:
        size = f"{best.pool_bytes / _GIB:.1f} GiB"
        rows.append(("pool", f"{size}: rows between the modules, and their gradients, of all GPUs"))
    rows.append(("uniform", _uniform(answer)))
    if (test := report.sample_test) is not None:
        rows.append(("samples", _samples(test)))
    return rows


def compared(plan: Plan, best: Plan) -> str:
    """Time of a plan, and how much longer it is than another; simulated if both are."""
    both = plan.simulated_s is not None and best.simulated_s is not None
    time, other = (plan.best_s, best.best_s) if both else (plan.step_s, best.step_s)
    means = " for mean samples" if not both and best.simulated_s is not None else ""
    change = time / other - 1
    if abs(change) < MODEL_ERROR:
        return f"{seconds(time)}{means}, equal"
    how = "longer" if change > 0 else "shorter"
    return f"{seconds(time)}{means}, {percent(abs(change))} {how}"


def _uniform(answer: Answer) -> str:
    report = answer.report
    if report.uniform is None or report.cheapest_uniform is None:
        found = "was searched" if answer.question.fixed else "fits"
        return f"no plan with one layout for the whole model {found}"
    if report.uniform == report.best:
        text = "this plan has one layout for the whole model"
    else:
        text = f"{plan_line(report.uniform)}: {compared(report.uniform, report.best)}"
    if not report.all_uniform_simulated:
        text += f", but others may be shorter (limit: {MOST_SIMULATED})"
    gap = report.uniform_gap or 0.0
    if gap <= ROUNDING:
        return f"{text}; for mean samples, the shortest plan has one layout"
    least = seconds(report.cheapest_uniform.step_s)
    return f"{text}; for mean samples, none takes less than {least}, {percent(gap)} above the least"


def _samples(test: SampleTest) -> str:
    if test.enough is None:
        found = f"{test.samples:,} are too few: others may give another mode or other GPUs"
    else:
        found = (
            f"{test.enough:,} of {test.samples:,} are enough: all {test.draws} draws of so many "
            "give the same mode and GPUs"
        )
    above = f"at most {percent(test.regret)} above the best" if test.regret >= 5e-4 else "the best"
    return f"{found}; in {test.draws} draws of {test.samples:,}, this plan is {above}"


def _spent(module: ModulePlan) -> str:
    """Time of a microbatch, or of what runs once a step, and its shares, the largest first."""
    once = module.once.total > 0
    time = module.once if once else module.microbatch
    parts = sorted(
        ((getattr(time, field.name), field.name) for field in fields(Seconds)), reverse=True
    )
    shares = [f"{name} {percent(value / time.total)}" for value, name in parts if value > 0]
    what = "once a step" if once else "a microbatch"
    return f"{milliseconds(time.total)} ms {what}: {', '.join(shares)}"


def _beside_slowest(module: ModulePlan, slowest: ModulePlan) -> str:
    text = _spent(module)
    if module.once.total or slowest.once.total:
        return text
    idle = 1 - module.microbatch.total / slowest.microbatch.total
    return f"{text}; it waits {percent(idle)} of the time"


def _free(module: ModulePlan) -> float:
    return module.memory_bytes - module.memory[module.fullest].total

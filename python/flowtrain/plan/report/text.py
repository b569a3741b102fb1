"""The answer of the planner as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import groupby

from flowtrain.plan.report.answer import Answer, Question
from flowtrain.plan.report.table import table
from flowtrain.plan.result import ModulePlan, Plan, PlanReport, RankBytes, Seconds

_GIB = 1 << 30


def answer_text(answer: Answer) -> str:
    """The whole report, as `flowtrain plan` prints it."""
    report = answer.report
    parts = [
        _asked(answer.question, report),
        _best(report),
        _layout(report.best),
        _why(report),
        _memory(report.best),
        _ranking(report),
        _checked(answer),
        _scaled(answer),
        _curve(answer),
    ]
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def _asked(question: Question, report: PlanReport) -> Iterator[str]:
    run = question.run
    yield (
        f"{report.model} on {question.cluster}, {question.cluster.gpus} GPUs; "
        f"{report.samples} samples a step from {question.workload}"
    )
    masters = (
        " and float32 master weights" if run.master_weights and run.dtype == "bfloat16" else ""
    )
    yield (
        f"trains {', '.join(run.trained_parts)} in {run.dtype} with {run.optimizer}{masters}; "
        f"microbatches of up to {run.microbatch_tokens} tokens"
    )
    if question.fixed:
        yield f"fixed: {', '.join(question.fixed)}"


def _best(report: PlanReport) -> list[str]:
    best = report.best
    step = f"{seconds(best.step_s)} for mean samples"
    if best.simulated_s is not None:
        step = f"{seconds(best.simulated_s)}, simulated on scheduled batches; {step}"
    rows = [
        ("step", step),
        ("speed", f"{best.tokens_per_s:,.0f} tokens/s, MFU {percent(best.mfu)}"),
        ("cost", f"{best.gpu_hours_per_billion_tokens:.4g} GPU hours per 1e9 tokens"),
        ("proof", _proof(report)),
        ("FlowTrain", "runs it" if not best.not_run else f"does not run {', '.join(best.not_run)}"),
    ]
    return [f"best plan: {best.mode} on {best.gpus} GPUs", *table(rows, left=2, indent="  ")]


def _proof(report: PlanReport) -> str:
    optimum = f"{seconds(report.cheapest.step_s)} for mean samples"
    if report.gap <= 1e-9:
        text = f"{optimum} is the optimum of the search"
    else:
        text = f"{optimum} is at most {percent(report.gap)} above the optimum of the search"
    if report.cheapest != report.best:
        text += "; this plan is faster in the simulation"
    return text


def _layout(plan: Plan) -> list[str]:
    head = ("module", "GPUs", "tp", "cp", "pp", "ep", "dp", "sharding", "recompute")
    rows: list[tuple[str, ...]] = [(*head, "microbatch ms", "update ms")]
    for module in plan.modules:
        layout = module.layout
        rows.append(
            (
                module.module,
                f"{layout.gpus} {module.gpu_type}",
                *(str(size) for size in (layout.tp, layout.cp, layout.pp, layout.ep, layout.dp)),
                layout.sharding,
                recomputed(module),
                f"{1e3 * module.microbatch.total:.1f}",
                f"{1e3 * module.update_s:.1f}",
            )
        )
    return [
        *table(rows, left=2),
        f"{plan.microbatches} microbatches a replica, of {plan.mean_tokens:.0f} tokens in the mean "
        f"and {plan.microbatch_tokens} at most",
    ]


def _why(report: PlanReport) -> list[str]:
    best = report.best
    slowest = best.module(best.bottleneck)
    rows = [("bottleneck", f"{slowest.module}: {_spent(slowest.microbatch)}")]
    for module in best.modules:
        if module is not slowest:
            idle = 1 - module.microbatch.total / slowest.microbatch.total
            rows.append(("", f"{module.module} waits {percent(idle)} of a microbatch"))
    for other in (report.smaller, report.larger):
        if other is not None:
            gpus, plan = other
            rows.append((f"{gpus} GPUs", f"{_beside(plan, best)}: {plan_line(plan)}"))
    fullest = min(best.modules, key=_free)
    memory = fullest.memory[fullest.fullest]
    rows.append(
        (
            "memory",
            f"{fullest.module}, stage {fullest.fullest}, has {_free(fullest) / _GIB:.1f} of "
            f"{fullest.memory_bytes / _GIB:.1f} GiB left; {memory.largest} take the most, "
            f"{getattr(memory, memory.largest) / _GIB:.1f} GiB",
        )
    )
    rows.append(("uniform", _uniform(report)))
    return ["why", *table(rows, left=2, indent="  ")]


def _uniform(report: PlanReport) -> str:
    if report.uniform is None:
        return "no plan with one layout for the whole model fits"
    if report.uniform_is_optimal:
        same = report.uniform.modules == report.best.modules
        return "one layout for the whole model is optimal here" + (
            "" if same else f": {plan_line(report.uniform)}"
        )
    return f"{plan_line(report.uniform)}: {_beside(report.uniform, report.best)}"


def _memory(plan: Plan) -> list[str]:
    kinds = [field.name for field in fields(RankBytes)]
    rows = [("GiB of a rank", *kinds, "all", "of")]
    for module in plan.modules:
        for number, stage in enumerate(module.memory):
            name = module.module if len(module.memory) == 1 else f"{module.module} stage {number}"
            sizes = [getattr(stage, kind) for kind in kinds]
            rows.append((name, *map(gib, (*sizes, stage.total, module.memory_bytes))))
    return table(rows)


def _ranking(report: PlanReport) -> list[str]:
    if len(report.plans) < 2:
        return []
    rows = [
        (seconds(plan.best_s), f"+{percent(plan.best_s / report.best.best_s - 1)}", plan_line(plan))
        for plan in report.plans[1:]
    ]
    return ["next best", *(f"  {line}" for line in _left_last(rows))]


def _checked(answer: Answer) -> list[str]:
    if answer.checked is None:
        return []
    plan = answer.checked
    return ["your layout", f"  {plan_line(plan)}: {_beside(plan, answer.report.best)}"]


def _scaled(answer: Answer) -> list[str]:
    if not answer.scaled:
        return []
    best = answer.report.best
    rows = [("efficiency", "10 % lower", "10 % higher")]
    for scaled in answer.scaled:
        lower, higher = (
            "same plan" if plan.modules == best.modules else f"{plan_line(plan)} ({percent(loss)})"
            for plan, loss in (
                (scaled.lower, scaled.lower_loss),
                (scaled.higher, scaled.higher_loss),
            )
        )
        rows.append((scaled.name, lower, higher))
    return [
        "does the plan stay the best? in brackets: what keeping it would cost",
        *table(rows, left=3, indent="  "),
    ]


def _curve(answer: Answer) -> list[str]:
    if not answer.curve:
        return []
    rows = [("GPUs", "step", "tokens/s", "MFU", "GPU h/1e9", "plan")]
    for point in answer.curve:
        plan = point.plan
        if plan is None:
            rows.append((str(point.gpus), "-", "-", "-", "-", point.reason))
            continue
        rows.append(
            (
                str(point.gpus),
                seconds(plan.best_s),
                f"{plan.tokens_per_s:,.0f}",
                percent(plan.mfu),
                f"{plan.gpu_hours_per_billion_tokens:.4g}",
                plan_line(plan),
            )
        )
    return ["curve", *(f"  {line}" for line in _left_last(rows))]


def plan_line(plan: Plan) -> str:
    """A plan on one line."""
    modules = [f"{module.module} {_short(module)}" for module in plan.modules]
    return f"{plan.mode}: {'; '.join(modules)}; {plan.microbatches} x {plan.microbatch_tokens}"


def recomputed(module: ModulePlan) -> str:
    """What a module computes again before it runs backward, by stage if stages differ."""
    if module.layout.rerun:
        return "items"
    runs = [(level, len(list(group))) for level, group in groupby(_levels(module))]
    if len(runs) < 2:
        return runs[0][0] if runs else "none"
    return "+".join(f"{count} {level}" for level, count in runs)


def _levels(module: ModulePlan) -> list[str]:
    return [stage.recompute for stage in module.layout.stages]


def seconds(value: float) -> str:
    """Seconds with four digits."""
    return f"{value:.4g} s"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / _GIB:.2f}" if size else "-"


def _short(module: ModulePlan) -> str:
    layout = module.layout
    words = [str(layout)]
    if layout.sharding != "replicated":
        words.append(f"shard {layout.sharding}")
    if (again := recomputed(module)) != "none":
        words.append(f"recompute {again}")
    return ", ".join(words)


def _spent(time: Seconds) -> str:
    """Shares of a time, the largest first."""
    parts = sorted(
        ((getattr(time, field.name), field.name) for field in fields(Seconds)), reverse=True
    )
    shares = [f"{name} {percent(value / time.total)}" for value, name in parts if value > 0]
    return f"{1e3 * time.total:.1f} ms a microbatch: {', '.join(shares)}"


def _beside(plan: Plan, best: Plan) -> str:
    change = plan.best_s / best.best_s - 1
    if abs(change) < 5e-5:
        return f"{seconds(plan.best_s)}, the same"
    return f"{seconds(plan.best_s)}, {percent(abs(change))} {'longer' if change > 0 else 'shorter'}"


def _free(module: ModulePlan) -> float:
    return module.memory_bytes - module.memory[module.fullest].total


def _left_last(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a table whose last column begins at the left edge."""
    rows = list(rows)
    heads = table([row[:-1] for row in rows], left=0)
    return [f"{head}  {row[-1]}" for head, row in zip(heads, rows, strict=True)]

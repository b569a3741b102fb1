"""The answer of the planner as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from textwrap import wrap

from flowtrain.plan.report.answer import Answer, Question, Scaled
from flowtrain.plan.report.money import money_of, money_text
from flowtrain.plan.report.step import ROUNDING, proof, step_parts
from flowtrain.plan.report.table import table
from flowtrain.plan.report.words import (
    MFU_CONVENTION,
    gib,
    left_last,
    mfu,
    milliseconds,
    num_gpus,
    percent,
    plan_line,
    recomputed,
    seconds,
)
from flowtrain.plan.result import (
    MOST_SIMULATED,
    ModulePlan,
    Plan,
    PlanReport,
    RankBytes,
    SampleTest,
    Seconds,
)

_GIB = 1 << 30
# Plans that are printed; JSON has all.
_NEXT_BEST = 5

MODEL_ERROR = 0.02
"""Differences of steps below this share are not told apart. It is the mean error of a step that is
estimated from times that were just measured; from data sheets it is larger."""


def answer_text(answer: Answer) -> str:
    """The whole report, as `flowtrain plan` prints it."""
    report = answer.report
    parts = [
        _asked(answer.question, report),
        _best(answer),
        _layout(report.best),
        _why(answer),
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
        f"{report.model} on {question.cluster}, {num_gpus(question.cluster.gpus)}; "
        f"{report.samples} samples a step from {question.workload}"
    )
    if question.bad_samples:
        yield f"left out: {question.bad_samples} bad samples, which `flowtrain data check` lists"
    masters = f" and {run.dtype} master weights" if run.dtype != run.compute_dtype else ""
    offloaded = ", states in host memory" if report.best.offload else ""
    trained = [
        f"{part} (LoRA of rank {question.lora[part]})" if part in question.lora else part
        for part in run.trained_parts
    ]
    yield (
        f"trains {', '.join(trained)} in {run.compute_dtype} with {run.optimizer}{masters}"
        f"{offloaded}; microbatches of up to {run.microbatch_tokens} tokens, encoder items of up "
        f"to {run.item_tokens}"
    )
    if question.fixed:
        yield f"fixed: {', '.join(question.fixed)}"


def _best(answer: Answer) -> list[str]:
    report = answer.report
    best = report.best
    not_run = [*best.not_run, *(["several hosts"] if answer.nodes > 1 else [])]
    step = f"{seconds(best.step_s)} for mean samples"
    if best.simulated_s is not None:
        step = f"{seconds(best.simulated_s)}, simulated on scheduled batches; {step}"
    rows = [
        ("step", step),
        (
            "speed",
            f"{best.tokens_per_s:,.0f} tokens/s; {best.model_flops / 1e15:.4g} PFLOP a step, "
            f"MFU {mfu(best)} ({MFU_CONVENTION})",
        ),
        ("cost", f"{best.gpu_hours_per_billion_tokens:.4g} GPU hours per 1e9 tokens"),
        *(("money", text) for text in _money(answer)),
        ("proof", proof(report)),
        ("FlowTrain", f"does not run {', '.join(not_run)}" if not_run else "runs it"),
        *(("warning", text) for text in report.warnings),
    ]
    idle = best.allocated - best.gpus
    of = f"{best.gpus} of {best.allocated} GPUs" if idle else num_gpus(best.gpus)
    return [f"best plan: {best.mode} on {of}", *table(rows, left=2, indent="  ")]


def _money(answer: Answer) -> list[str]:
    money = money_of(answer.report.best, answer.question)
    return [] if money is None else [money_text(money, steps=answer.question.steps)]


def _layout(plan: Plan) -> list[str]:
    head = ("module", "GPUs", "tp", "cp", "pp", "ep", "dp", "sharding", "recompute")
    rows: list[tuple[str, ...]] = [(*head, "microbatch ms", "once ms", "update ms")]
    for module in plan.modules:
        layout = module.layout
        rows.append(
            (
                module.module,
                f"{layout.gpus} {module.gpu_type}",
                *(str(size) for size in (layout.tp, layout.cp, layout.pp, layout.ep, layout.dp)),
                layout.sharding,
                recomputed(module),
                milliseconds(module.microbatch.total),
                milliseconds(module.once.total),
                milliseconds(module.update_s),
            )
        )
    many = "microbatch" if plan.microbatches == 1 else "microbatches"
    return [
        *table(rows, left=2),
        f"{plan.microbatches} {many} a replica, of {plan.mean_tokens:.0f} tokens in the mean "
        f"and {plan.microbatch_tokens} at most; update: gradients and optimizer",
        *_order(plan),
    ]


def _order(plan: Plan) -> Iterator[str]:
    if plan.chunk_slots is not None:
        yield (
            f"{plan.chunk_slots} of these at a time, with both passes of the encoder for what they "
            "read (flow.chunk_slots)"
        )


def _why(answer: Answer) -> list[str]:
    report = answer.report
    best = report.best
    slowest = best.module(best.bottleneck)
    rows = [("mean step", step_parts(best))]
    rows.append(("bottleneck", f"{slowest.module}: {_spent(slowest)}"))
    for module in best.modules:
        if module is not slowest:
            rows.append((module.module, _beside_slowest(module, slowest)))
    for other in (report.smaller, report.larger):
        if other is not None:
            gpus, plan = other
            # Both are the least for mean samples: what is shown need not be.
            rows.append((num_gpus(gpus), f"{_beside(plan, report.cheapest)}: {plan_line(plan)}"))
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
    return ["why", *table(rows, left=2, indent="  ")]


def _uniform(answer: Answer) -> str:
    report = answer.report
    if report.uniform is None or report.cheapest_uniform is None:
        found = "was searched" if answer.question.fixed else "fits"
        return f"no plan with one layout for the whole model {found}"
    if report.uniform == report.best:
        text = "this plan has one layout for the whole model"
    else:
        text = f"{plan_line(report.uniform)}: {_beside(report.uniform, report.best)}"
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


def _memory(plan: Plan) -> list[str]:
    kinds = RankBytes.of_device()
    rows = [("GiB of a rank", *kinds, "all", "of")]
    for module in plan.modules:
        for number, stage in enumerate(module.memory):
            name = module.module if len(module.memory) == 1 else f"{module.module} stage {number}"
            sizes = [getattr(stage, kind) for kind in kinds]
            rows.append((name, *map(gib, (*sizes, stage.total, module.memory_bytes))))
    lines = table(rows)
    if plan.host_bytes:
        of_rank = ", ".join(
            f"{module.module} {module.memory[module.fullest].host / _GIB:.2f}"
            for module in plan.modules
        )
        lines.append(
            f"host memory: {plan.host_bytes / _GIB:.1f} GiB for all GPUs, as optim.offload keeps "
            f"states there (a rank: {of_rank})"
        )
    return lines


def _ranking(report: PlanReport) -> list[str]:
    others = _other_layouts(report.plans)[:_NEXT_BEST]
    if not others:
        return []
    rows = [
        (seconds(plan.best_s), _longer(plan.best_s / report.best.best_s - 1), plan_line(plan))
        for plan in others
    ]
    return ["next best", *(f"  {line}" for line in left_last(rows))]


def _longer(share: float) -> str:
    return "equal" if abs(share) < MODEL_ERROR else f"+{percent(share)}"


def _other_layouts(plans: Sequence[Plan]) -> list[Plan]:
    """The plans behind the first one whose layout is not that of one before them.

    With other microbatches, or with fewer GPUs of which others stay idle, it is the same layout.
    """
    found: list[Plan] = []
    for plan in plans:
        if not any(_same_layout(plan, before) for before in found):
            found.append(plan)
    return found[1:]


def _same_layout(plan: Plan, before: Plan) -> bool:
    if (plan.mode, len(plan.modules)) != (before.mode, len(before.modules)):
        return False
    pairs = list(zip(plan.modules, before.modules, strict=True))
    gpus = plan.gpus < before.gpus or all(a.layout.gpus == b.layout.gpus for a, b in pairs)
    return gpus and all(
        (a.gpu_type, replace(a.layout, dp=1, stages=(), recompute=False))
        == (b.gpu_type, replace(b.layout, dp=1, stages=(), recompute=False))
        for a, b in pairs
    )


def _checked(answer: Answer) -> list[str]:
    if answer.checked is None:
        return []
    plan = answer.checked.plan
    if plan is None:
        return ["your layout", f"  {answer.checked.reason}"]
    line = f"  {plan_line(plan)}: {_beside(plan, answer.report.best)}"
    if plan.not_run:
        line += f"; FlowTrain does not run {', '.join(plan.not_run)}"
    return ["your layout", line]


def _scaled(answer: Answer) -> list[str]:
    if not answer.scaled:
        return []
    kept = sum(scaled.stays for scaled in answer.scaled)
    lines = wrap(
        f"if one figure is another multiple of what is assumed ({_multiples(answer.scaled)}): of "
        f"the {len(answer.report.plans)} best plans, this one is the best for mean samples in "
        f"{kept} of {len(answer.scaled)} cases",
        100,
    )
    rows = [
        (
            scaled.name,
            f"x {scaled.factor:g}",
            f"{percent(scaled.loss)} shorter",
            plan_line(scaled.winner),
        )
        for scaled in answer.scaled
        if not scaled.stays
    ]
    return [*lines, *(f"  {line}" for line in left_last(rows, left=1))]


def _multiples(cases: Sequence[Scaled]) -> str:
    """Names of the figures that were changed, and the factors of each."""
    factors: dict[str, list[str]] = {}
    for scaled in cases:
        factors.setdefault(scaled.name, []).append(f"{scaled.factor:g}")
    names: dict[str, list[str]] = {}
    for name, found in factors.items():
        names.setdefault(" or ".join(found), []).append(name)
    return "; ".join(f"x {found}: {', '.join(own)}" for found, own in names.items())


def _curve(answer: Answer) -> list[str]:
    if not answer.curve:
        return []
    price = answer.question.gpu_hour
    costs = ("GPU h/1e9", *([] if price is None else ["money/1e6"]))
    rows = [("GPUs", "step", "tokens/s", "MFU", *costs, "plan")]
    for point in answer.curve:
        plan = point.plan
        if plan is None:
            rows.append((str(point.gpus), "-", "-", "-", *("-" for _ in costs), point.reason))
            continue
        money = money_of(plan, answer.question)
        rows.append(
            (
                str(point.gpus),
                seconds(plan.best_s),
                f"{plan.tokens_per_s:,.0f}",
                mfu(plan),
                f"{plan.gpu_hours_per_billion_tokens:.4g}",
                *([] if money is None else [f"{money.million_tokens:.4g}"]),
                plan_line(plan),
            )
        )
    return ["curve", *(f"  {line}" for line in left_last(rows))]


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


def _beside(plan: Plan, best: Plan) -> str:
    """Time of a plan, and how much longer it is than another; simulated if both are."""
    both = plan.simulated_s is not None and best.simulated_s is not None
    time, other = (plan.best_s, best.best_s) if both else (plan.step_s, best.step_s)
    means = " for mean samples" if not both and best.simulated_s is not None else ""
    change = time / other - 1
    if abs(change) < MODEL_ERROR:
        return f"{seconds(time)}{means}, equal"
    how = "longer" if change > 0 else "shorter"
    return f"{seconds(time)}{means}, {percent(abs(change))} {how}"


def _free(module: ModulePlan) -> float:
    return module.memory_bytes - module.memory[module.fullest].total

"""The answer of the planner as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from flowtrain.plan.report.answer import Answer, Question, Scaled
from flowtrain.plan.report.layouts import layout_rows, microbatch_lines, other_layouts
from flowtrain.plan.report.money import money_of, money_text
from flowtrain.plan.report.step import MODEL_ERROR, proof
from flowtrain.plan.report.table import table
from flowtrain.plan.report.why import compared, why_rows
from flowtrain.plan.report.words import (
    MFU_CONVENTION,
    gib,
    left_last,
    mfu,
    num_gpus,
    percent,
    plan_line,
    seconds,
)
from flowtrain.plan.result import (
    Plan,
    PlanReport,
    RankBytes,
)

_GIB = 1 << 30
# Plans that are printed; JSON has all.
_NEXT_BEST = 5


def answer_text(answer: Answer) -> str:
    """The whole report, as `flowtrain plan` prints it."""
    report = answer.report
    parts = [
        asked_lines(answer.question, report),
        _best(answer),
        [*table(layout_rows(report.best), left=2), *microbatch_lines(report.best)],
        ["why", *table(why_rows(answer), left=2, indent="  ")],
        _memory(report.best),
        _ranking(report),
        _checked(answer),
        _scaled(answer),
        _curve(answer),
    ]
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def asked_lines(question: Question, report: PlanReport) -> Iterator[str]:
    """What the plan is for."""
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


def runs_line(answer: Answer) -> str:
    """Whether FlowTrain runs the plan."""
    if not_run := answer.report.best.not_run:
        return f"does not run {', '.join(not_run)}"
    return "runs it" if answer.nodes == 1 else f"runs it, on {answer.nodes} hosts"


def launch_line(answer: Answer) -> str:
    """The command that runs the plan, once it is written; empty if FlowTrain does not run it."""
    best = answer.report.best
    if best.not_run:
        return ""
    if answer.nodes == 1:
        return "flowtrain train RUN.yaml --plan PLAN.json"
    worlds = ["colocated"] if best.mode == "colocated" else [m.module for m in best.modules]
    return (
        "flowtrain host RUN.yaml --plan PLAN.json --listen ADDRESS:PORT --token FILE, and on each "
        f"host a torchrun for {' and '.join(worlds)}, as docs/hosts.md shows"
    )


def _best(answer: Answer) -> list[str]:
    report = answer.report
    best = report.best
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
        ("FlowTrain", runs_line(answer)),
        *(("launch", text) for text in [launch_line(answer)] if text),
        *(("warning", text) for text in report.warnings),
    ]
    idle = best.allocated - best.gpus
    of = f"{best.gpus} of {best.allocated} GPUs" if idle else num_gpus(best.gpus)
    return [f"best plan: {best.mode} on {of}", *table(rows, left=2, indent="  ")]


def _money(answer: Answer) -> list[str]:
    money = money_of(answer.report.best, answer.question)
    return [] if money is None else [money_text(money, steps=answer.question.steps)]


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
    others = other_layouts(report.plans)[:_NEXT_BEST]
    if not others:
        return []
    rows = [
        (seconds(plan.best_s), _longer(plan.best_s / report.best.best_s - 1), plan_line(plan))
        for plan in others
    ]
    return ["next best", *(f"  {line}" for line in left_last(rows))]


def _longer(share: float) -> str:
    return "equal" if abs(share) < MODEL_ERROR else f"+{percent(share)}"


def _checked(answer: Answer) -> list[str]:
    if answer.checked is None:
        return []
    plan = answer.checked.plan
    if plan is None:
        return ["your layout", f"  {answer.checked.reason}"]
    line = f"  {plan_line(plan)}: {compared(plan, answer.report.best)}"
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

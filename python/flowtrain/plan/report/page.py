"""The answer of the planner as a page with charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from flowtrain.pages import Figure, Page, Section, Table
from flowtrain.pages.charts.bars import divided
from flowtrain.plan.report.answer import Answer
from flowtrain.plan.report.charts import speeds
from flowtrain.plan.report.layouts import layout_rows, microbatch_lines, other_layouts
from flowtrain.plan.report.money import money_of
from flowtrain.plan.report.step import proof, step_parts
from flowtrain.plan.report.text import asked_lines, runs_line
from flowtrain.plan.report.why import why_rows
from flowtrain.plan.report.words import mfu, num_gpus, percent, plan_line, seconds
from flowtrain.plan.result import ModulePlan, Plan, RankBytes, Seconds

_DOC = "docs/plan.md"
_GIB = 1 << 30
_KINDS = {"masters": "master weights", "rows": "rows in the pool"}
_MOST_PLANS = 10


def answer_page(answer: Answer) -> Page:
    """The page of an answer."""
    report = answer.report
    best = report.best
    asked, *more = asked_lines(answer.question, report)
    return Page(
        title=f"Plan of {report.model}",
        subjects=[("asked", asked), *(("", line) for line in more)],
        key={
            "Best plan": f"{best.mode}, {num_gpus(best.gpus)}",
            "Step": seconds(best.best_s),
            "Tokens/s": f"{best.tokens_per_s:,.0f}",
            "MFU": mfu(best),
            "GPU hours per 1e9 tokens": f"{best.gpu_hours_per_billion_tokens:.4g}",
            **_money(answer),
            "FlowTrain": runs_line(answer),
        },
        sections=[_candidates(answer), _step(best), _memory(best), _basis(answer)],
        command="flowtrain plan",
        doc=_DOC,
    )


def _money(answer: Answer) -> dict[str, str]:
    money = money_of(answer.report.best, answer.question)
    return {} if money is None else {"Money per 1e6 tokens": f"{money.million_tokens:.4g}"}


def _candidates(answer: Answer) -> Section:
    report = answer.report
    best = report.best
    findings = [f"{plan_line(best)}: {seconds(best.best_s)} a step. {_sentence(proof(report))}"]
    layouts = [best, *other_layouts(report.plans)][:_MOST_PLANS]
    names = {f"{number}. {plan.mode}": plan for number, plan in enumerate(layouts, 1)}
    said = {
        name: seconds(plan.best_s)
        + (f", +{percent(plan.best_s / best.best_s - 1)}" if plan is not best else "")
        for name, plan in names.items()
    }
    figures = [
        Figure(
            "GPUs and speed",
            "A point for each plan that was kept, by the GPUs it uses; the dashed line is the "
            "speed per GPU of the best. Estimates: nothing was run. Other numbers of GPUs are for "
            "mean samples, and so are a little fast, unless --gpus asked for them.",
            speeds(_by_kind(answer), best=best),
        ),
        Figure(
            "Layouts",
            "Time of a step of the best plan of each layout. Differences below 2 % are within the "
            "error of the model.",
            divided(
                {name: {"step": plan.best_s} for name, plan in names.items()},
                "seconds of a step",
                said=said,
            ),
        ),
        Figure(
            "What they are",
            "tp, cp, pp, ep, dp: sizes of tensor, context, pipeline, expert and data parallelism; "
            "at the end, microbatches of a replica x their maximum tokens.",
            Table(
                ("", "plan", "step", "for mean samples", "MFU", "FlowTrain"),
                [
                    (
                        name,
                        plan_line(plan),
                        seconds(plan.best_s),
                        seconds(plan.step_s),
                        mfu(plan),
                        f"does not run {', '.join(plan.not_run)}" if plan.not_run else "runs it",
                    )
                    for name, plan in names.items()
                ],
            ),
        ),
    ]
    return Section("Candidates", _DOC, [*findings, *report.warnings], figures)


def _by_kind(answer: Answer) -> dict[str, Sequence[Plan]]:
    report = answer.report
    budgets = [plan for _, plan in filter(None, (report.smaller, report.larger))]
    budgets += [point.plan for point in answer.curve if point.plan is not None]
    checked = None if answer.checked is None else answer.checked.plan
    kinds = {
        "best": [report.best],
        "next best": report.plans[1:],
        "one layout for all": [] if report.uniform in (None, report.best) else [report.uniform],
        "other numbers of GPUs": budgets,
        "your layout": [] if checked is None else [checked],
    }
    return {kind: [p for p in found if p is not None] for kind, found in kinds.items() if found}


def _step(best: Plan) -> Section:
    busy = {
        module.module: {
            **{
                each.name: getattr(module.microbatch, each.name) * best.microbatches
                + getattr(module.once, each.name)
                for each in fields(Seconds)
            },
            "update": module.update_s,
        }
        for module in best.modules
    }
    shared = (
        "Modules on the same GPUs follow one another, so that their bars add up."
        if best.mode != "disaggregated"
        else "Each module has GPUs of its own: what its bar lacks to the line is waiting."
    )
    head, *rows = layout_rows(best)
    figures = [
        Figure(
            "Parts of a step",
            "What the step of mean samples is made of, along its longest chain.",
            divided({"step": step_parts(best)}, "seconds"),
        ),
        Figure(
            "Share of each module",
            "Seconds of that step for which the GPUs of a module are busy, and with what; the line "
            f"is the step. {shared} tp, cp, ep, pp and shards is communication that computation "
            "does not hide.",
            divided(busy, "seconds", limits=dict.fromkeys(busy, best.step_s)),
        ),
        Figure(
            "Layout of each module",
            _sentence("; ".join(microbatch_lines(best))),
            Table(head, rows),
        ),
    ]
    return Section("A step of the best plan", "docs/planner.md#modes", (), figures)


def _memory(best: Plan) -> Section:
    ranks = {
        name: (module, stage)
        for module in best.modules
        for number, stage in enumerate(module.memory)
        for name in [_stage(module, number)]
    }
    bars = {
        name: {
            _KINDS.get(kind, kind): getattr(stage, kind) / _GIB for kind in RankBytes.of_device()
        }
        for name, (_, stage) in ranks.items()
    }
    limits = {name: module.memory_bytes / _GIB for name, (module, _) in ranks.items()}
    about = (
        "Memory of a rank while the module runs, by what it is for; the line is its limit, without "
        "what other modules hold on the same rank. Working: what exists while one layer runs."
    )
    figures = [Figure("Memory of a rank", about, divided(bars, "GiB", limits=limits))]
    findings = []
    if best.pool_bytes:
        findings.append(
            f"The pool has {best.pool_bytes / _GIB:.1f} GiB on all GPUs: rows between the modules, "
            "and their gradients."
        )
    if best.host_bytes:
        findings.append(
            f"Host memory has {best.host_bytes / _GIB:.1f} GiB of states, of all ranks."
        )
    return Section("Memory", "docs/cost.md#memory", findings, figures)


def _stage(module: ModulePlan, number: int) -> str:
    return module.module if len(module.memory) == 1 else f"{module.module} stage {number}"


def _basis(answer: Answer) -> Section:
    report = answer.report
    figures = [
        Figure(
            "Why",
            "What decides, and what other plans would give.",
            Table(("", "the planner says"), why_rows(answer)),
        )
    ]
    if answer.scaled:
        table = Table(
            ("figure", "times", "the plan", "the best then"),
            [
                (
                    each.name,
                    f"{each.factor:g}",
                    "stays the best" if each.stays else f"is {percent(each.loss)} longer",
                    plan_line(each.winner),
                )
                for each in answer.scaled
            ],
        )
        about = "Whether the plan stays the best if an assumed figure is another one."
        figures.append(Figure("Sensitivity", about, table))
    rows = [(each.name, each.value, each.source) for each in report.assumptions]
    about = "What all figures rest on; `--explain` has what they mean, in words."
    figures.append(Figure("Assumptions", about, Table(("", "value", "source"), rows)))
    return Section("Why, and what it rests on", "docs/planner.md", (), figures)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."

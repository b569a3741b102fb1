"""The answer of the planner as JSON."""

from __future__ import annotations

from typing import Any

from flowtrain.config.tree import to_dict
from flowtrain.plan.report.answer import Answer, Point
from flowtrain.plan.report.money import money_of
from flowtrain.plan.result import Plan


def answer_tree(answer: Answer) -> dict[str, Any]:
    """The answer in plain types; each plan has its rates beside its fields."""
    report = answer.report
    money = money_of(report.best, answer.question)
    return {
        "model": report.model,
        "question": {**to_dict(answer.question), "cluster": _cluster(answer)},
        "best": _plan(report.best),
        "money": None if money is None else to_dict(money),
        "uniform": _plan(report.uniform),
        "plans": [_plan(plan) for plan in report.plans],
        "cheapest": _plan(report.cheapest),
        "cheapest_uniform": _plan(report.cheapest_uniform),
        "gap": report.gap,
        "uniform_gap": report.uniform_gap,
        "simulated": report.simulated,
        "all_simulated": report.all_simulated,
        "all_uniform_simulated": report.all_uniform_simulated,
        "smaller": _budget(report.smaller),
        "larger": _budget(report.larger),
        "checked": None if answer.checked is None else _point(answer.checked),
        "scaled": [{**to_dict(scaled), "winner": _plan(scaled.winner)} for scaled in answer.scaled],
        "curve": [_point(point) for point in answer.curve],
        "sample_test": None if report.sample_test is None else to_dict(report.sample_test),
        "counts": dict(report.counts),
        "warnings": list(report.warnings),
        "assumptions": [to_dict(assumption) for assumption in report.assumptions],
    }


def _cluster(answer: Answer) -> dict[str, Any]:
    cluster = answer.question.cluster
    return {"text": str(cluster), "gpus": cluster.gpus, **to_dict(cluster)}


def _budget(budget: tuple[int, Plan] | None) -> dict[str, Any] | None:
    return None if budget is None else {"gpus": budget[0], "plan": _plan(budget[1])}


def _point(point: Point) -> dict[str, Any]:
    return {"gpus": point.gpus, "plan": _plan(point.plan), "reason": point.reason}


def _plan(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        **to_dict(plan),
        "gpus": plan.gpus,
        "pool_bytes": plan.pool_bytes,
        "best_s": plan.best_s,
        "best_mfu": plan.best_mfu,
        "tokens_per_s": plan.tokens_per_s,
        "gpu_hours_per_billion_tokens": plan.gpu_hours_per_billion_tokens,
    }

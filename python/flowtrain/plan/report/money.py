"""What a plan costs, by the price of a GPU hour."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.plan.report.answer import Question
from flowtrain.plan.result import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Money:
    """Costs of a plan, those of idle GPUs included, in the currency of the price.

    Attributes:
        gpu_hour: The price of a GPU hour.
        step: Cost of a step.
        million_tokens: Cost of 1e6 tokens, those of encoders included, without padding.
        run: Cost of all steps of the run; None if it states none.
    """

    gpu_hour: float
    step: float
    million_tokens: float
    run: float | None


def money_of(plan: Plan, question: Question) -> Money | None:
    """What a plan costs; None without a price."""
    if question.gpu_hour is None:
        return None
    step = plan.best_s / 3600 * plan.allocated * question.gpu_hour
    return Money(
        gpu_hour=question.gpu_hour,
        step=step,
        million_tokens=1e6 / plan.tokens * step,
        run=question.steps * step if question.steps else None,
    )


def money_text(money: Money, *, steps: int) -> str:
    """The costs in words.

    Args:
        money: The costs.
        steps: Steps of the run, if it states them.
    """
    text = f"{money.million_tokens:.4g} per 1e6 tokens, {money.step:.4g} a step"
    if money.run is not None:
        text += f", {money.run:,.2f} for the {steps:,} steps of the run"
    return f"{text}, at {money.gpu_hour:g} a GPU hour"

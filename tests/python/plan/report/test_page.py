from __future__ import annotations

from typing import Any

import pytest
from plans import GIB, module_plan, plan, question, report
from report_pages import Page

from flowtrain.pages.page import html_of
from flowtrain.plan.report import Answer, answer_page
from flowtrain.plan.result import Layout, Plan, RankBytes

MEMORY = tuple(RankBytes(weights=4 * GIB, activations=number * GIB) for number in (60, 40))
BEST = plan(
    "disaggregated",
    module_plan("encoder", Layout(dp=8)),
    module_plan("backbone", Layout(pp=2, dp=12), fill_s=0.2, memory=MEMORY),
    step_s=1.02,
    simulated_s=1.1,
)
SMALLER = plan("prefix", module_plan("model", Layout(dp=16)), step_s=1.9)


def rows(page: Page, title: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in page.figures[title]]


def page_of(best: Plan, *others: Plan, **more: Any) -> Page:
    answer = Answer(question=question("4x8xH100"), report=report(best, *others, **more))
    return Page(html_of(answer_page(answer)))


def test_a_page_has_the_figures_of_the_plan() -> None:
    slower = plan("prefix", module_plan("model", Layout(tp=4, dp=8)), simulated_s=1.21)
    page = page_of(BEST, slower, smaller=(16, SMALLER))
    parts = dict(rows(page, "Parts of a step", "part", "length"))
    assert sum(parts.values()) == pytest.approx(1.02)
    # 8 microbatches of 30 + 60 ms, and 30 ms of update.
    busy = rows(page, "Share of each module", "bar", "part", "length")
    assert sum(length for bar, _, length in busy if bar == "encoder") == pytest.approx(0.75)
    assert ("backbone", "update", pytest.approx(0.03)) in busy
    memory = rows(page, "Memory of a rank", "bar", "part", "length")
    assert ("backbone stage 1", "activations", 40.0) in memory
    assert rows(page, "GPUs and speed", "kind", "gpus", "speed") == [
        ("best", 32, round(1e6 / 1.1)),
        ("next best", 32, round(1e6 / 1.21)),
        ("other numbers of GPUs", 16, round(1e6 / 1.9)),
    ]
    assert rows(page, "Layouts", "bar", "length") == [
        ("1. disaggregated", 1.1),
        ("2. prefix", 1.21),
    ]
    assert "linear" in page.text

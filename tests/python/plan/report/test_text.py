from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from plans import GIB, module_plan, plan, question, report

from flowtrain.cost import ACCELERATORS
from flowtrain.plan.report.answer import Answer, Point, Scaled
from flowtrain.plan.report.explain import explain_text
from flowtrain.plan.report.text import answer_text, plan_line
from flowtrain.plan.report.tree import answer_tree
from flowtrain.plan.result import Layout, RankBytes, SampleTest, StageLayout

GOLDEN = Path(__file__).with_name("answer.txt")

STAGES = tuple(
    StageLayout(first=first, end=first + 9, recompute="full" if first < 18 else "none")
    for first in (0, 9, 18, 27)
)
BEST = plan(
    "disaggregated",
    module_plan(
        "encoder",
        Layout(dp=8),
        memory=(RankBytes(weights=16 * GIB, activations=30 * GIB, rows=0.25 * GIB),),
    ),
    module_plan(
        "backbone",
        Layout(tp=2, pp=4, dp=3, sharding="optimizer", stages=STAGES),
        memory=(RankBytes(weights=4 * GIB, moments=9.5 * GIB, activations=60 * GIB),) * 4,
    ),
    step_s=1.02,
    simulated_s=1.1,
    not_run=("backbone.tp=2", "backbone.pp=4"),
)
UNIFORM = plan("prefix", module_plan("model", Layout(tp=4, dp=8)), simulated_s=1.21)
ANSWER = Answer(
    question=question("4x8xH100", fixed=("backbone.tp=2",)),
    report=report(
        BEST,
        UNIFORM,
        uniform=UNIFORM,
        cheapest=UNIFORM,
        larger=(40, replace(BEST, step_s=0.918, simulated_s=None)),
        gap=0.013,
        sample_test=SampleTest(samples=4096, enough=512, draws=59, regret=0.003),
    ),
    checked=Point(gpus=32, plan=replace(UNIFORM, simulated_s=1.32)),
    scaled=(
        Scaled(name="attention", factor=0.9, winner=BEST, stays=True, loss=0.0),
        Scaled(name="attention", factor=1.1, winner=UNIFORM, stays=False, loss=0.004),
    ),
    curve=(
        Point(gpus=8, plan=None, reason="too little memory: 16 GPUs fit"),
        Point(gpus=32, plan=BEST),
    ),
)


def test_the_printed_answer_is_the_golden_one() -> None:
    """To renew: `python tests/python/plan/report/test_text.py`."""
    assert answer_text(ANSWER) == GOLDEN.read_text()


def test_the_text_says_plainly_that_one_layout_is_optimal() -> None:
    found = report(UNIFORM, uniform=UNIFORM)
    text = answer_text(Answer(question=question("4x8xH100"), report=found))
    assert "one layout for the whole model is optimal here\n" in text
    # As good as a plan with other layouts: it is named.
    equal = report(replace(BEST, simulated_s=1.21), uniform=UNIFORM)
    text = answer_text(Answer(question=question("4x8xH100"), report=equal))
    assert f"one layout for the whole model is optimal here: {plan_line(UNIFORM)}\n" in text


def test_the_text_says_plainly_that_samples_are_too_few() -> None:
    few = SampleTest(samples=20, enough=None, draws=59, regret=0.12)
    text = answer_text(Answer(question=question("4x8xH100"), report=report(BEST, sample_test=few)))
    said = "20 are too few: others may give another mode or other GPUs; in 59 draws of 20, this"
    assert f"{said} plan is at most 12.0 % above the best\n" in text


def test_the_json_has_the_rates_of_each_plan() -> None:
    tree = json.loads(json.dumps(answer_tree(ANSWER)))
    cluster = tree["question"]["cluster"]
    assert cluster["text"] == "4x8xH100"
    assert cluster["groups"][0]["gpu"]["source"] == ACCELERATORS["H100"].source
    assert len(tree["plans"]) == 2
    for found in (tree["best"], *tree["plans"], tree["curve"][1]["plan"], tree["larger"]["plan"]):
        assert found["gpus"] == 32
        assert found["tokens_per_s"] == 1e6 / found["best_s"]
    assert tree["curve"][0]["reason"] == "too little memory: 16 GPUs fit"
    assert tree["uniform_is_optimal"] is False


def test_the_explanation_names_what_every_figure_rests_on() -> None:
    text = " ".join(explain_text(ANSWER).split())
    (group,) = ANSWER.question.cluster.groups
    assert "79.6 GiB, 989 TFLOP/s in dense bfloat16, 3350 GB/s of memory" in text
    assert f"({group.gpu.source})" in text
    assert "370.8 GB/s and 3.4 us inside a node, 47 GB/s and 14 us between nodes" in text
    assert f"({group.source})" in text
    for assumption in ANSWER.report.assumptions:
        assert f"{assumption.name}: {assumption.value}. {assumption.source}" in text
    assert "candidates: 40 priced exactly, 7 that do not fit into memory" in text


if __name__ == "__main__":
    GOLDEN.write_text(answer_text(ANSWER))

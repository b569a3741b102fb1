from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plans import GIB, module_plan, plan, question, report

from flowtrain.cost import ACCELERATORS
from flowtrain.plan.report.answer import Answer, Point, Scaled
from flowtrain.plan.report.explain import explain_text
from flowtrain.plan.report.text import answer_text
from flowtrain.plan.report.tree import answer_tree
from flowtrain.plan.report.words import plan_line
from flowtrain.plan.result import Layout, Plan, RankBytes, SampleTest, StageLayout

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
        fill_s=0.09,
        memory=(RankBytes(weights=16 * GIB, activations=30 * GIB, rows=0.25 * GIB),),
    ),
    module_plan(
        "backbone",
        Layout(tp=2, pp=4, dp=3, sharding="optimizer", stages=STAGES),
        fill_s=0.2,
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
        sample_test=SampleTest(samples=4096, enough=512, draws=59, regret=0.003),
    ),
    checked=Point(gpus=32, plan=replace(UNIFORM, simulated_s=1.32)),
    scaled=(
        Scaled(name="attention", factor=0.9, winner=BEST, stays=True, loss=0.0),
        Scaled(name="attention", factor=1.1, winner=UNIFORM, stays=False, loss=0.004),
        Scaled(name="exposed share of collectives", factor=2, winner=BEST, stays=True, loss=0.0),
    ),
    curve=(
        Point(gpus=8, plan=None, reason="too little memory: 16 GPUs fit"),
        Point(gpus=32, plan=BEST),
    ),
)


def test_the_printed_answer_is_the_golden_one() -> None:
    """To renew: `python tests/python/plan/report/test_text.py`."""
    assert answer_text(ANSWER) == GOLDEN.read_text()


def text_of(best: Plan, *others: Plan, **more: Any) -> str:
    return answer_text(Answer(question=question("4x8xH100"), report=report(best, *others, **more)))


def test_what_is_proven_is_said_of_the_plan_that_is_shown() -> None:
    # Found by a search on 256 GPUs: the plan that is the best in the simulation is no optimum.
    shown = replace(BEST, step_s=3.6, simulated_s=3.648)
    uniform = replace(UNIFORM, step_s=3.436, simulated_s=3.834)
    text = text_of(shown, uniform, uniform=uniform, cheapest=uniform)
    assert "no plan of the search takes less than 3.436 s for mean samples, and this one" in text
    assert (
        "and this one 4.8 % more; 2 plans were simulated, including every plan below 3.648 s for "
        "mean samples; this one is the shortest\n" in text
    )
    assert (
        f"uniform     {plan_line(uniform)}: 3.834 s, 5.1 % longer; for mean samples, the shortest"
        in text
    )
    # A limit ended the simulation, so that nothing is said of all plans.
    capped = {"all_simulated": False, "all_uniform_simulated": False, "simulated": 113}
    text = text_of(shown, uniform, uniform=uniform, cheapest=uniform, **capped)
    assert (
        "; 113 plans were simulated, but not every plan below 3.648 s for mean samples (limit: 100)"
        in text
    )
    assert "3.834 s, 5.1 % longer, but others may be shorter (limit: 100); for mean" in text
    # It is the optimum itself, and was not simulated.
    text = text_of(replace(BEST, step_s=3.0, simulated_s=None), uniform=None)
    assert (
        "  proof      no plan of the search takes less than this one's 3 s for mean samples\n"
        in text
    )


def test_the_text_says_plainly_that_one_layout_is_enough() -> None:
    text = text_of(UNIFORM, uniform=UNIFORM)
    assert (
        "this plan has one layout for the whole model; for mean samples, the shortest plan" in text
    )
    # The uniform plan that was simulated is not the one that is the best for mean samples.
    text = text_of(
        BEST, uniform=UNIFORM, cheapest=replace(BEST, step_s=0.9), cheapest_uniform=UNIFORM
    )
    assert "10.0 % longer; for mean samples, none takes less than 1 s, 11.1 % above the le" in text


def test_differences_within_the_error_of_the_model_are_equal() -> None:
    text = text_of(BEST, replace(UNIFORM, simulated_s=1.111), uniform=UNIFORM)
    assert "next best\n  1.111 s  equal  prefix: model tp=4 dp=8" in text
    text = text_of(BEST, uniform=replace(UNIFORM, simulated_s=1.111))
    assert "1.111 s, equal; " in text


def test_the_next_best_are_other_layouts() -> None:
    def on(dp: int, microbatches: int, simulated_s: float, **layout: Any) -> Plan:
        modules = [module_plan("model", Layout(tp=4, dp=dp, **layout))]
        return plan(
            "prefix",
            *modules,
            microbatches=microbatches,
            simulated_s=simulated_s,
            allocated=32,
        )

    apart = [
        plan(
            "disaggregated",
            module_plan("encoder", Layout(dp=encoder)),
            module_plan("backbone", Layout(dp=backbone)),
            simulated_s=1.5,
        )
        for encoder, backbone in ((8, 24), (16, 16), (8, 16))
    ]
    text = text_of(on(8, 4, 1.0), on(7, 4, 1.1), on(8, 6, 1.2), on(4, 6, 1.4, cp=2), *apart)
    shown = text.split("next best\n")[1].splitlines()
    # Fewer GPUs and other microbatches are no other layouts; GPUs divided in another way are.
    assert [line.split(": ", 1)[1].split(";")[0] for line in shown] == [
        "model tp=4 cp=2 dp=4",
        "encoder dp=8",
        "encoder dp=16",
    ]


def test_idle_gpus_count_for_cost_and_mfu_and_are_shown() -> None:
    text = text_of(replace(UNIFORM, allocated=40))
    assert "best plan: prefix on 32 of 40 GPUs\n" in text
    hours = 1e9 / (1e6 / 1.21) * 40 / 3600
    assert f"  cost       {hours:.4g} GPU hours per 1e9 tokens\n" in text


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
    assert (tree["gap"], tree["uniform_gap"]) == (pytest.approx(0.02), 0)


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

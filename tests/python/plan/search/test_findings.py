"""What was found about layouts elsewhere holds for the prices of the data sheet."""

from __future__ import annotations

from bench_planner import h100
from planner.models import described

from flowtrain.plan.result import PlanReport
from flowtrain.plan.search import search
from flowtrain.plan.work import Work
from flowtrain.workloads import preset


def found(load: str) -> PlanReport:
    work = Work(workload=preset(load, 4096, seed=0), batch=512)
    return search(
        described("7B, native ViT"), work, [h100(16)], keep=1, neighbours=False, batches=0
    )


def test_one_layout_for_the_whole_model_is_nearly_optimal_for_single_images() -> None:
    report = found("native")
    assert report.uniform is not None
    assert report.best.step_s <= report.uniform.step_s <= 1.1 * report.best.step_s
    # Published MFU is between 0.3 and 0.55.
    assert 0.3 < report.best.mfu < 0.55


def test_an_encoder_with_a_layout_of_its_own_pays_where_context_parallelism_does() -> None:
    report = found("video")
    assert report.uniform is not None
    assert report.best.mode == "colocated" and report.best.modules[1].layout.cp > 1
    assert report.uniform.step_s > 1.04 * report.best.step_s

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import TCPStore

from flowtrain.steps import FIRST_EVALUATION, StepPlan
from flowtrain.train.control.store import JobStore
from flowtrain.train.planning.plans import PlanError, PublishedPlans, plan_key


def test_a_plan_that_was_made_here_is_that_of_the_other_ranks() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [JobStore(f"127.0.0.1:{server.port}", "test", timeout_s=10) for _ in range(2)]
    maker, other = (PublishedPlans(store, processes=2) for store in stores)
    plan = StepPlan(step=0, kind="train", samples=(3, 1))
    stores[0].put_text("plan/0", plan.to_json())
    maker.made(plan, plan.to_json())
    assert maker.peek(0) is plan
    assert other.get(0) == plan
    assert maker.checksum(0) == other.checksum(0)


def test_the_error_of_a_planner_outlives_the_plans_that_are_read_after_it() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = JobStore(f"127.0.0.1:{server.port}", "test", timeout_s=10)
    plans = PublishedPlans(store, processes=1)
    # The encoder reads step 1 ahead; then the batches of an evaluation, whose planner ends well.
    for plan in (
        StepPlan(step=1, kind="end", error="line 7: no image"),
        StepPlan(step=FIRST_EVALUATION, kind="eval"),
        StepPlan(step=FIRST_EVALUATION + 1, kind="end"),
        StepPlan(step=FIRST_EVALUATION + 2, kind="end", error="line 9: no answer"),
    ):
        store.put_text(plan_key(plan.step), plan.to_json())
        assert plans.get(plan.step) == plan
    with pytest.raises(PlanError, match="line 7: no image"):
        plans.check()


def test_a_rank_that_fails_waits_for_the_steps_before() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def connect() -> JobStore:
        return JobStore(f"127.0.0.1:{server.port}", "test", timeout_s=10)

    connect().put_text("plan/0", StepPlan(step=0, kind="train").to_json())
    fast, slow = (PublishedPlans(connect(), processes=2) for _ in range(2))
    fast.wait_for_others()  # It has executed no step yet.
    assert fast.get(0) == slow.get(0)
    fast.forget(0)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(fast.wait_for_others)
        time.sleep(0.3)
        assert not waits.done()
        slow.forget(0)
        waits.result()

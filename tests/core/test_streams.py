"""Streams of two processes hand over slabs: content, kills, and faults that must be seen.

The driver is the fake one, whose streams run on threads with random delays.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from core.fake_driver import environment, needs_fake_driver
from core.processes import Spawn
from core.stream_flow import RAW_WAIT, Flow

pytestmark = needs_fake_driver

REPORT_EVERY = 50


def hand_over(flow: Flow, items: int) -> None:
    """Hands over items, or as many as it takes until a bad one is seen."""
    while flow.items < items and not flow.bad:
        if not flow.lease():
            flow.report_poisoned()
            time.sleep(0.0002)  # The host waits only here: the streams run behind it.
        flow.answers()
        flow.take()
        flow.answers()
        if len(flow.unreported) >= REPORT_EVERY:
            flow.report()


@pytest.mark.parametrize(
    ("seed", "items"), [(1, 1000), pytest.param(2, 20000, marks=pytest.mark.deep)]
)
def test_a_gather_sees_what_was_published(
    seed: int, items: int, spawn: Spawn, driver: Path, tmp_path: Path
) -> None:
    flow = Flow(spawn, driver, tmp_path, seed=seed, delay_us=400)
    hand_over(flow, items)
    flow.drain()
    assert not flow.bad and not flow.lost
    assert flow.gathered == set(range(1, items + 1))


@pytest.mark.parametrize("fault", ["no wait", "stale generation", "release before the gather"])
def test_a_fault_is_seen(fault: str, spawn: Spawn, driver: Path, tmp_path: Path) -> None:
    flow = Flow(spawn, driver, tmp_path, fault=fault, seed=3, delay_us=400)
    hand_over(flow, 5000)
    assert flow.bad


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(4, 6), pytest.param(5, 100, marks=[pytest.mark.deep, pytest.mark.limit(600)])],
)
def test_a_killed_process_leaves_nothing_waiting_lost_or_leaked(
    seed: int, kills: int, spawn: Spawn, driver: Path, tmp_path: Path
) -> None:
    flow = Flow(spawn, driver, tmp_path, seed=seed, delay_us=4000)
    choose = random.Random(seed)
    published: set[int] = set()
    for kill in range(kills):
        for _ in range(choose.randrange(2, 12)):
            choose.choice((flow.lease, flow.take))()
            if choose.random() < 0.7:
                flow.answers()
            published |= {cell.item for cell in flow.cells if cell.state == "published"}
        if len(flow.unreported) > REPORT_EVERY - 12:
            flow.report()
        time.sleep(choose.random() * 0.003)
        flow.kill(choose.choice((flow.producer, flow.consumer)))
        if kill % 4 == 3:
            flow.drain()
    hand_over(flow, flow.items + 20)
    flow.drain()
    assert not flow.bad
    assert published <= flow.gathered | flow.lost | flow.died
    assert not flow.gathered & flow.lost
    if kills >= 100:
        assert len(flow.lost) > 5 and len(flow.gathered) > 20


def run(driver: Path, code: str, **fake: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RAW_WAIT + code],
        env=environment(driver, **fake),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ONE_PROCESS = """
import os, sys, time
from flowtrain_core import StaleAddress, cuda
page = cuda.StreamPage(1, device=0)
A, B = 16, 17
def written_within(seconds):
    end = time.monotonic() + seconds
    while page.written(0, 0) == "pending" and time.monotonic() < end: time.sleep(0.001)
    print(page.written(0, 0), flush=True)
    os._exit(0)
"""


def test_a_wait_before_its_write_blocks_streams_that_share_a_queue(driver: Path) -> None:
    ahead = "raw_wait(B, page.address, 0); page.publish_on(A, 0, 0, lane=1)\n"
    behind = "page.publish_on(A, 0, 0, lane=1); page.wait_written(B, 0, 0)\n"
    assert run(driver, ONE_PROCESS + ahead + "written_within(30)", queues=2) == "reached"
    assert run(driver, ONE_PROCESS + ahead + "written_within(0.3)", queues=1) == "pending"
    assert run(driver, ONE_PROCESS + behind + "written_within(30)", queues=1) == "reached"


def test_a_step_out_of_order_is_refused_before_it_is_enqueued(driver: Path) -> None:
    code = """
def refuse(call, *args, **lane):
    try:
        call(A, *args, **lane)
        print("done")
    except (StaleAddress, ValueError) as error:
        print(error)
refuse(page.wait_written, 0, 0)
refuse(page.publish_on, 0, 1, lane=1)
refuse(page.publish_on, 1, 0, lane=1)
page.publish_on(A, 0, 0, lane=1)
refuse(page.wait_written, 0, 2**32 - 1)
page.release_on(A, 0, 0, lane=2)
refuse(page.release_on, 0, 0, lane=2)
cuda.synchronize(device=0, stream=A)
refuse(page.publish_on, 0, 1, lane=1)
"""
    lines = run(driver, ONE_PROCESS + code).splitlines()
    assert lines[0] == (
        "slab 0, generation 0: no write of this generation was submitted, so that a stream would "
        "wait for ever, or for other data; wait only for items that a consumer got; the slab is "
        "written to generation 4294967295 and read to 4294967295"
    )
    assert "lease a slab only once its generation before was read" in lines[1]
    assert lines[2] == "slab 1: the page has 1; count from 0"
    assert lines[3].startswith("slab 0, generation 4294967295: no write of this generation")
    assert "release each item once" in lines[4]
    assert lines[5:] == ["done"]

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
from core.stream_flow import PEER, WORDS, Flow

pytestmark = needs_fake_driver


@pytest.mark.parametrize(
    ("seed", "items"), [(1, 500), pytest.param(2, 20000, marks=pytest.mark.deep)]
)
def test_a_gather_sees_what_was_published(
    seed: int, items: int, spawn: Spawn, driver: Path, name: str
) -> None:
    flow = Flow(spawn, driver, name, seed=seed, delay_us=400)
    flow.hand_over(items)
    flow.drain()
    seen = flow.seen
    assert not seen.bad and not seen.lost
    assert seen.gathered == seen.published


@pytest.mark.parametrize("fault", ["no wait", "stale generation", "release before the gather"])
def test_a_fault_is_seen(fault: str, spawn: Spawn, driver: Path, name: str) -> None:
    flow = Flow(spawn, driver, name, fault=fault, seed=3, delay_us=400)
    flow.hand_over(5000)
    assert flow.seen.bad


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(4, 6), pytest.param(5, 100, marks=[pytest.mark.deep, pytest.mark.limit(600)])],
)
def test_a_killed_process_leaves_nothing_waiting_lost_or_leaked(
    seed: int, kills: int, spawn: Spawn, driver: Path, name: str
) -> None:
    flow = Flow(spawn, driver, name, seed=seed, delay_us=4000)
    choose, seen = random.Random(seed), flow.seen
    for kill in range(kills):
        for _ in range(choose.randrange(1, 4)):
            flow.publish(choose.randrange(1, 8))
            flow.take(choose.randrange(1, 8))
        time.sleep(choose.random() * 0.01)
        flow.kill(choose.choice((flow.producer, flow.consumer)))
        if choose.random() < 0.5:
            time.sleep(choose.random() * 0.003)
            flow.kill(flow.third)
        flow.report()
        if kill % 4 == 3:
            flow.drain()
    flow.hand_over(len(seen.gathered) + 20)
    flow.drain()
    assert not seen.bad
    assert seen.published <= seen.gathered | seen.lost | seen.died
    assert not seen.gathered & seen.lost
    if kills >= 100:
        assert len(seen.lost) > 5 and len(seen.gathered) > 20


def test_a_consumer_that_dies_before_it_confirms_leaves_its_slabs_free(
    spawn: Spawn, driver: Path, name: str
) -> None:
    flow = Flow(spawn, driver, name, seed=7, delay_us=30_000)
    flow.publish(3)
    flow.answer(flow.producer)
    flow.kill(flow.producer)  # Before its stream has written.
    taken = 0
    while taken < 3:  # The consumer may still map the memory.
        flow.take(3 - taken)
        taken += flow.answer(flow.consumer)
    time.sleep(0.5)  # The consumer's stream has passed by poison.
    flow.kill(flow.consumer)
    flow.drain()


def run(driver: Path, name: str, code: str, **fake: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", ONE_PROCESS + PEER + WORDS + code, name],
        env=environment(driver, **fake),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


ONE_PROCESS = """
import sys, time
from flowtrain_core import *
pool = Pool.create(sys.argv[1], max_cells=64)
device = pool.add_segment(classes=[(4096, 1)], tier="vmm")
producer, consumer = Producer(pool, segment=device), Consumer(pool)

def lease(timeout_s=30):
    return producer.lease((4096,), "uint8", timeout_s=timeout_s)

def refuse(call, *args, **named):
    try:
        print(call(*args, **named))
    except (PoolTimeout, StaleAddress, ValueError) as error:
        print(str(error).replace(sys.argv[1], "p"))
"""


def test_a_wait_before_its_write_blocks_streams_that_share_a_queue(driver: Path, name: str) -> None:
    code = """
words = Words(pool.name)
def written_within(seconds, item):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            print(item.confirm())
            break
        except ValueError:
            time.sleep(0.001)
    else:
        print("pending")
    sys.stdout.flush()
    os._exit(0)
"""
    ahead = "slab = lease(); words.wait(OTHER, words.slab_of(slab), 0); slab.publish(1, STREAM)\n"
    behind = "lease().publish(1, STREAM)\n"
    got = "item = consumer.get(timeout_s=30)\n"
    wait = "item.wait(OTHER)\n"

    def end(*steps: str, seconds: float, queues: int) -> str:
        ended = f"written_within({seconds}, item)"
        return run(driver, name, code + "".join(steps) + ended, queues=queues)[-1]

    assert end(ahead, got, seconds=30, queues=2) == "None"
    assert end(ahead, got, seconds=0.3, queues=1) == "pending"
    assert end(behind, got, wait, seconds=30, queues=1) == "None"


def test_a_slab_is_leased_again_only_after_its_streams(driver: Path, name: str) -> None:
    code = """
GATE = 64  # Bytes after the words of the only slab: those of a cell that is not used.
words = Words(pool.name)
raw_wait(STREAM, words.registration.device_address + GATE, 1 << 32)
slab = lease()
slab.abort(STREAM)
refuse(lease, timeout_s=0.2)
words.words[GATE // 8] = 1 << 32
slab = lease()
slab.publish(1, STREAM)
item = consumer.get(timeout_s=30)
raw_wait(STREAM, words.registration.device_address + GATE, 2 << 32)
item.release(STREAM)
refuse(lease, timeout_s=0.2)
words.words[GATE // 8] = 2 << 32
slab = lease()
slab.publish(2)
item = consumer.get(timeout_s=30)
item.release()
lease().abort()
pool.close()
print("closed")
"""
    first, second, *rest = run(driver, name, code)
    assert "there was no slab" in first and "there was no slab" in second
    assert rest == ["closed"]


def test_a_lease_that_outlives_its_pool_waits_for_its_stream(driver: Path, name: str) -> None:
    code = """
words = Words(pool.name)
slab = lease()
address_of(slab, STREAM)
raw_wait(STREAM, words.registration.device_address + 64, 1 << 32)
pool.close()
if os.fork() == 0:
    time.sleep(0.3)
    words.words[8] = 1 << 32
    os._exit(0)
del slab
print(int(words.words[8]) == 1 << 32)
"""
    assert run(driver, name, code) == ["True"]


def test_a_lease_aborted_in_a_forked_child_stays_its_parents(driver: Path, name: str) -> None:
    code = """
slab = lease()
if os.fork() == 0:
    slab.abort(STREAM)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
slab.publish(1, STREAM)
item = consumer.get(timeout_s=30)
item.release(STREAM)
lease().abort()
pool.close()
print('closed')
"""
    assert run(driver, name, code) == ["0", "closed"]


@pytest.mark.deep  # The wait of close is ten seconds.
def test_a_pool_whose_streams_do_not_end_is_closed_and_keeps_their_memory(
    driver: Path, name: str
) -> None:
    code = """
words = Words(pool.name)
raw_wait(STREAM, words.registration.device_address + 64, 1 << 32)
lease().publish(1, STREAM)
refuse(pool.close)
del producer, consumer, pool
import gc; gc.collect()
words.words[8] = 1 << 32
cuda.synchronize(device=0, stream=STREAM)
print(int(words.words[0]) >> 32)
"""
    said, written = run(driver, name, code)
    assert "this handle is closed now, but streams of this process had not written or read" in said
    assert written == "1"


def test_a_step_out_of_order_is_refused(driver: Path, name: str) -> None:
    code = """
host = Producer(pool, segment=pool.add_segment(classes=[(4096, 1)]))
slab = host.lease((4096,), "uint8", timeout_s=5)
refuse(slab.publish, 1, STREAM)
slab.publish(1)
item = consumer.get(timeout_s=30)
refuse(item.release, STREAM)
refuse(item.wait, STREAM)
item.release()
words = Words(pool.name)
raw_wait(STREAM, words.registration.device_address + 64, 1 << 32)
slab = lease()
refuse(slab.publish, 2, -2)
slab.publish(2, STREAM)
item = consumer.get(timeout_s=30)
refuse(item.wait, -1)
refuse(item.confirm)
refuse(item.release)
words.words[8] = 1 << 32
item.wait(OTHER)
item.release()
refuse(lambda: cuda.synchronize(device=0, stream=OTHER))
refuse(item.confirm)
"""
    lines = run(driver, name, code)
    print("\n".join(lines))
    host = "the slab is in memory of the host, which no stream orders; "
    assert lines[0].startswith(f"publish: stream=16: {host}")
    assert lines[1].startswith(f"release: stream=16: {host}")
    assert lines[2] == "None"
    assert lines[3].startswith("stream: -2") or "stream" in lines[3]
    assert "stream" in lines[4]
    item = "item: pool 'p', cell 0, key 2 of "
    assert lines[5].startswith(item) and "not written yet; call confirm once" in lines[5]
    assert lines[6].startswith(item) and "give release the stream that reads it" in lines[6]
    assert lines[7:] == ["None", "None"]

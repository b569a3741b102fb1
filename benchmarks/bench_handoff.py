"""How long does a filled embedding take from one Python process to another?

One way: from just before `publish` in the producer to a NumPy view in the consumer, on the clock
that both share. Three cases: the consumer waits and spins, as in a flow that keeps up; it waits
and sleeps; and the plain alternative, the same bytes through `multiprocessing.Pipe`. The last
line is JSON; `same_physical_pages` says whether both sides map the same memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy

import flowtrain_core
from flowtrain_core import Consumer, Pool, Producer

WARM_UP = 50


def mapped_memory(name: str) -> list[list[str]]:
    """Device and inode of the segments of a pool that this process maps."""
    maps = Path("/proc/self/maps").read_text()
    return sorted(map(list, set(re.findall(rf"(\w+:\w+) (\d+) +/memfd:{re.escape(name)}", maps))))


def consume(name: str, rounds: int, answers: Connection) -> None:
    """Takes every item, notes its age, and answers through a second ring."""
    pool = Pool.open(name, timeout_s=10)
    consumer, producer = Consumer(pool, "there"), Producer(pool, "back")
    ages = []
    for _ in range(rounds):
        with consumer.get(timeout_s=60) as item:
            view = numpy.asarray(item)
            now = time.perf_counter_ns()
            ages.append((now - int(view[:8].view(numpy.int64)[0])) / 1000)
            del view
        producer.lease((1,), "uint8").publish(0)
    answers.send((ages, mapped_memory(name)))


def hand_over(item_bytes: int, rounds: int, pause_s: float) -> tuple[list[float], bool]:
    """Ages in microseconds of the items, one at a time, `pause_s` after the last answer."""
    name = f"bench-handoff-{os.getpid()}"
    here, there = multiprocessing.Pipe()
    with Pool.create(name, classes=[(4096, 4), (item_bytes, 2)], rings=("there", "back")) as pool:
        reader = multiprocessing.get_context("spawn").Process(
            target=consume, args=(name, rounds, there)
        )
        reader.start()
        producer, consumer = Producer(pool, "there"), Consumer(pool, "back")
        for number in range(rounds):
            lease = producer.lease((item_bytes,), "uint8")
            view = numpy.asarray(lease)
            if number > 0:
                consumer.get(timeout_s=60).release()
            if pause_s:
                time.sleep(pause_s)
            view[:8].view(numpy.int64)[0] = time.perf_counter_ns()
            lease.publish(number)
        ages, theirs = here.recv()
        same = theirs == mapped_memory(name) != []
        reader.join(60)
    return ages[WARM_UP:], same


def echo(pipe: Connection, rounds: int) -> None:
    """The plain alternative's consumer."""
    ages = []
    for _ in range(rounds):
        data = pipe.recv_bytes()
        view = numpy.frombuffer(data, dtype=numpy.uint8)
        ages.append((time.perf_counter_ns() - int(view[:8].view(numpy.int64)[0])) / 1000)
        pipe.send(None)
    pipe.send(ages)


def through_a_pipe(item_bytes: int, rounds: int) -> list[float]:
    """Ages in microseconds of the same items through a pipe."""
    here, there = multiprocessing.Pipe()
    reader = multiprocessing.get_context("spawn").Process(target=echo, args=(there, rounds))
    reader.start()
    data = numpy.zeros(item_bytes, dtype=numpy.uint8)
    for _ in range(rounds):
        data[:8].view(numpy.int64)[0] = time.perf_counter_ns()
        here.send_bytes(data)
        here.recv()
    ages: list[float] = here.recv()
    reader.join(60)
    return ages[WARM_UP:]


def measure(item_bytes: int, rounds: int) -> dict[str, Any]:
    """All three cases, with the conditions that they were measured under."""
    spinning, same = hand_over(item_bytes, rounds, 0.0)
    sleeping, _ = hand_over(item_bytes, min(rounds, 500), 0.002)
    plain = through_a_pipe(item_bytes, min(rounds, 500))
    return {
        "item_bytes": item_bytes,
        "p50_us": round(float(numpy.percentile(spinning, 50)), 2),
        "p99_us": round(float(numpy.percentile(spinning, 99)), 2),
        "same_physical_pages": same,
        "asleep_p50_us": round(float(numpy.percentile(sleeping, 50)), 2),
        "asleep_p99_us": round(float(numpy.percentile(sleeping, 99)), 2),
        "pipe_p50_us": round(float(numpy.percentile(plain, 50)), 2),
        "pipe_p99_us": round(float(numpy.percentile(plain, 99)), 2),
        "rounds": rounds,
        "cpus": sorted(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "flowtrain_core": flowtrain_core.__version__,
    }


def main() -> None:
    """Command line: see --help."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=4 << 20, help="bytes of an item")
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    given = parser.parse_args()
    result = measure(given.bytes, given.rounds + WARM_UP)
    if not given.json:
        print(
            f"{given.bytes} bytes, one way: p50 {result['p50_us']} us, p99 {result['p99_us']} us; "
            f"to a sleeper {result['asleep_p50_us']} us; by a pipe {result['pipe_p50_us']} us"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()

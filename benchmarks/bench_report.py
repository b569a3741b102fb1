"""How long does `flowtrain report` take on a long run, and how large is its page?

Writes the folder of a run that never was, and is called `synthetic`: lines of every step in each
log, and the events of the last steps of its ranks. Then it runs the command, once. The last line is
JSON; the exit status is 1 if the page takes over 20 s or 10 MB.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flowtrain.bench.conditions import conditions
from flowtrain.config import dump, from_dict
from flowtrain.config.layout import RankLayout
from flowtrain.events import (
    KINDS,
    MEMORY,
    MODULES,
    TRACKS,
    WAITS,
    Attempt,
    EventFile,
    path_of,
)
from flowtrain.steps import Balance, Document, Packing, StepPlan
from flowtrain.train.state.ending import recorded_end
from flowtrain.train.state.files import LOCK
from flowtrain.train.state.logs import EVALUATIONS, METRICS, PLANS, TIMING
from flowtrain.train.state.run_folder import CONFIG, HEADER

LIMIT_S, LIMIT_MB = 20.0, 10.0
LAYOUT = RankLayout.decoupled(2, 6)
BATCH = 32
KEPT_STEPS = 1000
ITEMS = 6
STEP_NS = 500_000_000
PLANS_IN_TURN = 64


def write_run(run: Path, steps: int) -> None:
    """Write the folder of a run of so many steps."""
    draw = random.Random(0)
    tree = {
        "run": str(run),
        "model": {"config": "model"},
        "data": {"path": "train.jsonl"},
        "train": {"steps": steps, "global_batch": BATCH, "microbatch_tokens": 2048},
        "flow": {
            "encoder_ranks": LAYOUT.encoder_ranks,
            "backbone_ranks": LAYOUT.backbone_ranks,
        },
    }
    run.joinpath(CONFIG).write_text(HEADER + dump(from_dict(tree)))
    run.joinpath(LOCK).touch()
    plans = [plan.to_json().partition(",") for plan in plans_in_turn(draw)]
    with recorded_end(run), ExitStack() as stack:
        metrics, timing, evaluations, log = (
            stack.enter_context(run.joinpath(name).open("w"))
            for name in (METRICS, TIMING, EVALUATIONS, PLANS)
        )
        for step in range(steps):
            loss = 2.0 + 2.0 * math.exp(-step / (0.2 * steps)) + 0.1 * draw.random()
            metrics.write(json.dumps(metrics_of(step, loss, draw)) + "\n")
            timing.write(json.dumps(timing_of(step, draw)) + "\n")
            _, comma, others = plans[step % PLANS_IN_TURN]
            log.write(f'{{"step":{step}{comma}{others}\n')
            if step % 500 == 499:
                evaluations.write(json.dumps({"step": step, "loss": loss + 0.1}) + "\n")
    for label in LAYOUT.labels:
        write_events(run, label, range(steps - min(steps, KEPT_STEPS), steps), draw)


def plans_in_turn(draw: random.Random) -> Iterator[StepPlan]:
    """Plans with lengths of their own, which steps have in turn."""
    for _ in range(PLANS_IN_TURN):
        documents = [
            Document(
                sample=sample,
                num_tokens=min(2048, 40 + round(draw.expovariate(1 / 200))),
                num_targets=20,
                image_tokens=32,
                grids=((1, 16, 8),),
            )
            for sample in range(BATCH)
        ]
        ranks = tuple((tuple(documents[r :: LAYOUT.backbone_ranks]),) for r in range(6))
        yield StepPlan(step=0, kind="train", slots=1, documents=ranks)


def metrics_of(step: int, loss: float, draw: random.Random) -> dict[str, Any]:
    """A line of `metrics.jsonl`."""
    balances = {
        when: {"dist_ratio": draw.random() / 10, "encoder_dist_ratio": 0.05, "pad_ratio": ratio}
        for when, ratio in (("packed", 0.02), ("arrival", 0.4 + draw.random() / 10))
    }
    assert Packing.__slots__ == ("bound", "gap", *balances)
    assert all(list(balance) == list(Balance.__slots__) for balance in balances.values())
    return {
        "step": step,
        "loss": loss,
        "target_tokens": 640,
        "samples": [draw.randrange(10**6) for _ in range(BATCH)],
        "grad_norm": 1.0 + draw.random(),
        "lr": 1e-3,
        "weight_ages": [0] * BATCH,
        **dict.fromkeys(("skipped_samples", "dropped_samples", "truncated_samples"), 0),
        "action": "apply",
        "packing": {"bound": 1e12, "gap": 0.01, **balances},
    }


def timing_of(step: int, draw: random.Random) -> dict[str, Any]:
    """A line of `timing.jsonl`."""
    seconds = 0.5 + 0.1 * draw.random()
    activity = {
        world.name: {
            "encode" if world.name == "encoder" else "backbone": 0.6 * seconds,
            **dict.fromkeys(("optimizer", "send", "receive", "plan", "other"), 0.02 * seconds),
            "wait_receive": 0.2 * seconds,
            "wait_exchange": 0.1 * seconds,
        }
        for world in LAYOUT.worlds
    }
    modules = {
        module: {"flops": flops, "peak_flops": peak, "mfu": flops / peak / seconds, "pass_mfu": 0.5}
        for module, flops, peak in (("encoder", 2e13, 2e14), ("backbone", 1e14, 6e14))
    }
    return {
        "step": step,
        "seconds": seconds,
        "tokens": 7000,
        "tokens_per_s": 7000 / seconds,
        "mfu": 1.2e14 / 8e14 / seconds,
        "modules": modules,
        "activity_s": activity,
        "pool_in_use_bytes": draw.randrange(1 << 26),
        "pool_bytes": 1 << 26,
        "bytes_through_pool": 1 << 24,
        "peak_flops": 8e14,
        "memory_bytes": {f"{world.name}.0": (1 << 30) + step for world in LAYOUT.worlds},
    }


def write_events(run: Path, label: str, steps: range, draw: random.Random) -> None:
    """Write the events of a rank: passes of items, each with a wait, and the ends of steps."""
    attempt = Attempt(number=0, pid=1, clock_offset_ns=time.time_ns())
    file = EventFile(path_of(run, label), label, attempt, keep_steps=len(steps))
    module, _, number = label.partition(".")
    passes = ("encode",) if module == "encoder" else ("forward", "backward")
    peers = LAYOUT.backbone_ranks if module == "encoder" else LAYOUT.encoder_ranks
    code = MODULES.index(module)

    def append(kind: str, start: int, end: int, step: int, **more: Any) -> None:
        wait = WAITS.index(more.get("wait", ""))
        track = TRACKS.index(more.get("track", "waits" if wait else "actions"))
        index, peer, size = (more.get(k, d) for k, d in (("item", -1), ("peer", -1), ("size", 0)))
        codes = (track, KINDS.index(kind), code, wait, 0)
        file.append(start, end, end - start, 0, size, step, index, peer, 0, *codes)

    for step in steps:
        at = step * STEP_NS
        append("load", at, at + 1000, step)
        each = (STEP_NS - 100_000_000) // ITEMS
        for item in range(ITEMS):
            start, peer = at + 1000 + item * each, (item + int(number)) % peers
            waited = start + draw.randrange(each // 3)
            append("get", start, waited, step, item=item, peer=peer, wait="record")
            length = (start + each - waited) // len(passes)
            for n, kind in enumerate(passes):
                append(kind, waited + n * length, waited + (n + 1) * length, step, item=item)
            put = {"item": 10 * int(number) + item, "peer": peer, "size": 1 << 20}
            append("put", start + each - 500, start + each, step, **put)
        end = at + STEP_NS
        append("exchange", end - 90_000_000, end - 50_000, step, wait="store")
        append("apply", end - 50_000, end - 1000, step)
        append("forget", end - 1000, end, step)
        for kind in MEMORY[:2]:
            append(kind, end, end, step, track="memory", size=1 << 30)
    file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="steps of the run")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    if given.steps < 1:
        parser.error(f"--steps {given.steps}: must be at least 1")
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "synthetic"
        run.mkdir()
        write_run(run, given.steps)
        logs = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        started = time.perf_counter()
        command = [sys.executable, "-m", "flowtrain", "report", str(run)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds = time.perf_counter() - started
        page_mb = run.joinpath("report.html").stat().st_size / 1e6
    if not given.json:
        print(told, end="")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {
        "bench": "report",
        "run": "synthetic",
        "steps": given.steps,
        "ranks": len(LAYOUT.labels),
        "folder_mb": round(logs / 1e6, 1),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_mb": used.ru_maxrss // 1000,
        "page_mb": round(page_mb, 2),
        "is_within": seconds <= LIMIT_S and page_mb <= LIMIT_MB,
    }
    print(json.dumps(result | conditions()))
    sys.exit(not result["is_within"])


if __name__ == "__main__":
    main()

"""How far from a proven bound are schedules of a step, and how long do they take?

Every policy and every peer that is installed, on all presets and five scales: samples / ranks /
microbatches of a rank. The cap is 1.25 times the mean microbatch's tokens, or the longest sample.
Gaps are medians over the seeds, in percent over the bound; `over` counts microbatches beyond the
cap, and `slots` those in use, so that what broke the rules can be told from what kept to them.
Times are CPU milliseconds of one thread, NumPy arrays in, arrays out; of CP-SAT, the clock's.
Schedules of FlowTrain's that fail their bars are listed at the end; the last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy
from peers.schedulers import PEERS, load_peers

from flowtrain.workloads import PRESETS, Workload, preset
from flowtrain_core.packing import POLICIES, Assignment, Packer, schedule

SCALES = {
    "256/8/4": (256, 8, 4),
    "1024/16/8": (1024, 16, 8),
    "4096/64/8": (4096, 64, 8),
    "16384/512/4": (16384, 512, 4),
    "16384/64/64": (16384, 64, 64),
}
LOCKSTEP_BARS = dict(zip(SCALES, (0.75, 0.6, 0.5, 0.5, 0.5), strict=True))
FREE_BARS = dict(zip(SCALES, (0.005, 0.005, 0.005, 0.06, 0.06), strict=True))
# Policies that look at every bin for every sample are for hundreds of bins, not thousands.
MOST_SAMPLES = {"dflop": 4096, "flowtrain-rigid": 4096, "equal-count-differencing": 16384}
STREAM_BARS = {"tiles": 0.998, "video": 0.994, "longtail": 0.985}


def cap_of(work: Workload, bins: int) -> int:
    return max(int(work.tokens.max()), int(1.25 * work.tokens.sum() / bins))


def timed(run: Callable[[], Any], *, wall: bool = False) -> tuple[Any, float]:
    """What it returns, and the median of its milliseconds over up to five runs."""
    clock = time.perf_counter if wall else time.thread_time
    taken: list[float] = []
    spent = time.perf_counter()
    while not taken or (len(taken) < 5 and time.perf_counter() - spent < 0.5 and not wall):
        start = clock()
        out = run()
        taken.append((clock() - start) * 1e3)
    return out, statistics.median(taken)


class Rows:
    """Gap and time of each name, per preset and scale, one value a seed."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, str], list[dict[str, float]]] = {}

    def add(self, name: str, load: str, scale: str, plan: Assignment, ms: float) -> None:
        self.values.setdefault((scale, load, name), []).append(
            {
                "gap": 100 * plan.gap,
                "ms": ms,
                "over": int((plan.bin_tokens > plan.token_cap).sum()),
                "slots": plan.microbatches,
            }
        )

    def print(self) -> None:
        for (scale, load, name), seeds in self.values.items():
            gaps, times = [s["gap"] for s in seeds], [s["ms"] for s in seeds]
            over, slots = max(s["over"] for s in seeds), max(s["slots"] for s in seeds)
            print(
                f"{scale:12} {load:12} {name:26} gap {statistics.median(gaps):9.4f} %"
                f" worst {max(gaps):9.4f} %  {statistics.median(times):10.3f} ms"
                f"  over {over:4}  slots {slots:3}"
            )


def laid_out(bins: numpy.ndarray, work: Workload, ranks: int, like: Assignment) -> Assignment:
    """A peer's bins, judged by the same bound."""
    used = int(bins.max(initial=0)) + 1
    return Assignment(
        slot=(bins // ranks).astype(numpy.int32),
        rank=(bins % ranks).astype(numpy.int32),
        left_out=numpy.zeros(0, numpy.int32),
        ranks=ranks,
        microbatches=max(like.microbatches, -(-used // ranks)),
        token_cap=like.token_cap,
        objective=like.objective,
        bound=like.bound,
        tokens=work.tokens,
        cost=work.cost,
    )


def lockstep(given: argparse.Namespace, failed: list[str]) -> Rows:
    """All policies and peers on the lock-step objective."""
    rows = Rows()
    peers, missing = load_peers()
    for name, reason in missing.items():
        print(f"{name}: null ({reason})")
    for scale in given.scales:
        count, ranks, slots = SCALES[scale]
        for load in given.loads:
            for seed in given.seeds:
                work = preset(load, count, seed=seed)
                cap = cap_of(work, ranks * slots)
                shape: dict[str, Any] = {"ranks": ranks, "microbatches": slots, "token_cap": cap}
                best, ours = numpy.inf, None
                for policy in POLICIES:
                    if count > MOST_SAMPLES.get(policy, count):
                        continue
                    if given.ours and policy != "flowtrain-best":
                        continue
                    takes = policy in ("omnibal", "dflop", "entrain", "flowtrain-rigid")
                    encoder = work.encoder_cost if takes else None
                    plan, ms = timed(
                        lambda p=policy, e=encoder, w=work, s=shape: schedule(
                            w.tokens, w.cost, e, policy=p, coupling="rigid", **s
                        )
                    )
                    rows.add(policy, load, scale, plan, ms)
                    if policy == "flowtrain-best":
                        ours = plan
                assert ours is not None
                for name, run in {} if given.ours else peers.items():
                    _, most, wall = PEERS[name]
                    if count > most:
                        continue
                    bins, ms = timed(
                        lambda r=run, w=work, s=shape: r(w.tokens, w.cost, *s.values()), wall=wall
                    )
                    plan = laid_out(bins, work, ranks, ours)
                    rows.add(name, load, scale, plan, ms)
                    if plan.bin_tokens.max() <= cap and plan.microbatches == slots:
                        best = min(best, 100 * plan.gap)
                if 100 * ours.gap > best + 0.1:
                    failed.append(
                        f"{scale} {load} seed {seed}: {100 * ours.gap:.4f} %, a peer {best:.4f} %"
                    )
            seeds = rows.values[scale, load, "flowtrain-best"]
            gap = statistics.median(s["gap"] for s in seeds)
            if gap > LOCKSTEP_BARS[scale] or max(s["over"] for s in seeds):
                failed.append(f"{scale} {load}: median gap {gap:.4f} %")
    return rows


def other_objectives(given: argparse.Namespace, failed: list[str]) -> Rows:
    """Ranks that meet once a step, and the heaviest microbatch; and the encoder's pre-pass."""
    rows = Rows()
    for scale in given.scales:
        count, ranks, slots = SCALES[scale]
        for load in given.loads:
            losses = []
            for seed in given.seeds:
                work = preset(load, count, seed=seed)
                cap = cap_of(work, ranks * slots)
                shape: dict[str, Any] = {"ranks": ranks, "microbatches": slots, "token_cap": cap}
                for objective in ("free", "makespan"):
                    plan, ms = timed(
                        lambda w=work, s=shape, o=objective: schedule(
                            w.tokens, w.cost, objective=o, **s
                        )
                    )
                    rows.add(f"flowtrain-best {objective}", load, scale, plan, ms)
                plan = schedule(work.tokens, work.cost, work.encoder_cost, **shape)
                first = plan.encoder_loads[0]
                # A rank cannot do less than the largest sample, whatever the others do.
                least = max(first.mean(), work.encoder_cost.max(), 1.0)
                losses.append(100 * float(first.max() / least - 1))
            gap = statistics.median(
                s["gap"] for s in rows.values[scale, load, "flowtrain-best free"]
            )
            if gap > FREE_BARS[scale]:
                failed.append(f"{scale} {load}: free-running gap {gap:.4f} %")
            gap = statistics.median(
                s["gap"] for s in rows.values[scale, load, "flowtrain-best makespan"]
            )
            if count <= 4096 and gap > (2.0 if load == "coarse" else 0.1):
                failed.append(f"{scale} {load}: makespan gap {gap:.4f} %")
            loss = statistics.median(losses)
            print(f"{scale:12} {load:12} encoder pre-pass: {loss:.4f} % over its bound")
            if loss > 1:
                failed.append(f"{scale} {load}: encoder pre-pass loses {loss:.4f} %")
    return rows


def two_modules(given: argparse.Namespace, failed: list[str]) -> None:
    """Rigid coupling at 256/8/4: the largest load of either module, both with the same mean."""
    count, ranks, slots = SCALES["256/8/4"]
    for load in given.loads:
        for seed in given.seeds:
            work = preset(load, count, seed=seed)
            # An allocator would have given each module what it needs.
            encoder = work.encoder_cost * (work.cost.sum() / max(1.0, work.encoder_cost.sum()))
            cap = cap_of(work, ranks * slots)
            shape: dict[str, Any] = {"ranks": ranks, "microbatches": slots, "token_cap": cap}
            worst = {}
            for name, policy, options in (
                ("longest first", "dflop", {}),
                ("CP-SAT", "dflop", {"exact": True}),
                ("ours", "flowtrain-rigid", {}),
            ):
                try:
                    plan, ms = timed(
                        lambda p=policy, o=options, w=work, e=encoder, s=shape: schedule(
                            w.tokens, w.cost, e, policy=p, **s, **o
                        ),
                        wall=bool(options),
                    )
                except ModuleNotFoundError as error:
                    print(f"{load:12} seed {seed} {name}: null ({error})")
                    continue
                mean = plan.loads.sum() / (ranks * slots)
                worst[name] = 100 * (max(plan.loads.max(), plan.encoder_loads.max()) / mean - 1)
                print(f"{load:12} seed {seed} {name:14} {worst[name]:9.4f} %  {ms:10.3f} ms")
            if worst["ours"] > worst.get("CP-SAT", numpy.inf) + 1e-3:
                failed.append(
                    f"two modules, {load} seed {seed}: {worst['ours']:.4f} %, "
                    f"CP-SAT {worst['CP-SAT']:.4f} %"
                )


def stream(given: argparse.Namespace, failed: list[str]) -> None:
    """200 steps of a stream whose samples may wait for one step."""
    ranks, slots = 16, 8
    for load, bar in STREAM_BARS.items():
        work = preset(load, 700_000, seed=given.seeds[0])
        cap = max(int(work.tokens.max()), int(1.25 * work.tokens.mean() * 8))
        packer = Packer(ranks=ranks, microbatches=slots, token_cap=cap, max_age=1)
        first, oldest = 0, 0
        efficiency, fill, gaps, times = [], [], [], []
        for _ in range(200):
            while packer.waiting_tokens < 1.05 * ranks * slots * cap:
                packer.add(first, int(work.tokens[first]), float(work.cost[first]))
                first += 1
            start = time.thread_time()
            _, plan = packer.step()
            times.append((time.thread_time() - start) * 1e3)
            efficiency.append(plan.efficiency)
            fill.append(plan.fill)
            gaps.append(100 * plan.gap)
            oldest = max(oldest, *(row[4] for row in packer.state_dict()["waiting"]))
        mean = statistics.mean(efficiency)
        print(
            f"stream {load:10} lock-step efficiency {mean:.4f}, fill {statistics.mean(fill):.4f}, "
            f"gap {statistics.mean(gaps):.4f} %, largest age {oldest}, "
            f"{statistics.median(times):.3f} ms a step"
        )
        if mean < bar or statistics.mean(fill) < 0.98 or oldest > 1:
            failed.append(f"stream {load}: efficiency {mean:.4f}, age {oldest}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("lockstep", "others", "two-modules", "stream")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--scales", nargs="+", choices=SCALES, default=list(SCALES))
    parser.add_argument("--loads", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1001, 1002, 1003, 1004, 1005])
    parser.add_argument("--ours", action="store_true", help="flowtrain-best alone, no peers")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if given.json:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        failed, results = measure(given)
    conditions = {
        "seeds": given.seeds,
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "cpus": sorted(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
    }
    print(json.dumps({"conditions": conditions, "below_bar": failed, "results": results}))
    return 0


def measure(given: argparse.Namespace) -> tuple[list[str], list[dict[str, Any]]]:
    """What was asked for: bars that were missed, and all results."""
    failed: list[str] = []
    results: list[dict[str, Any]] = []
    if "lockstep" in given.parts:
        rows = lockstep(given, failed)
        rows.print()
        results += summary(rows)
    if "others" in given.parts:
        rows = other_objectives(given, failed)
        rows.print()
        results += summary(rows)
    if "two-modules" in given.parts:
        two_modules(given, failed)
    if "stream" in given.parts:
        stream(given, failed)
    for line in failed:
        print(f"below its bar: {line}")
    return failed, results


def summary(rows: Rows) -> list[dict[str, Any]]:
    return [
        {
            "scale": scale,
            "load": load,
            "name": name,
            "gap_percent": round(statistics.median(s["gap"] for s in seeds), 4),
            "ms": round(statistics.median(s["ms"] for s in seeds), 3),
            "over_cap": max(s["over"] for s in seeds),
            "slots": max(s["slots"] for s in seeds),
        }
        for (scale, load, name), seeds in rows.values.items()
    ]


if __name__ == "__main__":
    sys.exit(main())

"""How far from a proven bound are schedules of a step, and how long do they take?

Every policy and every peer that is installed, on all presets and five scales: samples / ranks /
microbatches of a rank. The cap is 1.25 times the mean microbatch's tokens, or the longest sample.
Gaps are medians over the seeds, in percent over the bound; `over` counts microbatches beyond the
cap, and `slots` those in use, so that what broke the rules can be told from what kept to them.
Times are processor milliseconds of one thread, NumPy arrays in, arrays out; of CP-SAT, the clock's.
What takes longer than --limit is null, there and on larger steps. Progress goes to stderr; the last
line is JSON with one entry for each bar and what was below it.
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
from packing_rows import Rows, best_peer, least_speedup
from peers.limited import limited, timed
from peers.schedulers import PEERS, load_peers

from flowtrain.workloads import PRESETS, Workload, preset
from flowtrain_core._C import packing as kernels
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
STREAM_BARS = {"tiles": 0.998, "video": 0.994, "longtail": 0.985}
# Milliseconds of placement, and with refinement; from Python 0.2 more.
TIME_BARS = {"1024/16/8": (0.05, 0.5), "4096/64/8": (0.3, 2.0), "16384/512/4": (1.5, 5.0)}
OURS = "flowtrain-best"
STAGES = 4


def cap_of(work: Workload, bins: int) -> int:
    return max(int(work.tokens.max()), int(1.25 * work.tokens.sum() / bins))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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


def runners(given: argparse.Namespace) -> dict[str, tuple[Callable[..., Any], bool]]:
    """All that is compared with ours: what to call with a workload and a shape, and its clock."""
    found: dict[str, tuple[Callable[..., Any], bool]] = {}
    for policy in [] if given.ours else [name for name in POLICIES if name != OURS]:
        takes = policy in ("omnibal", "dflop", "entrain", "flowtrain-rigid")

        def run(work: Workload, shape: dict[str, Any], p: str = policy, e: bool = takes) -> Any:
            encoder = work.encoder_cost if e else None
            return schedule(work.tokens, work.cost, encoder, policy=p, coupling="rigid", **shape)

        found[policy] = (run, False)
    peers, missing = ({}, {}) if given.ours else load_peers()
    for name, reason in missing.items():
        print(f"{name}: null ({reason})")
    for name, peer in peers.items():

        def bins(work: Workload, shape: dict[str, Any], peer: Any = peer) -> Any:
            return peer(work.tokens, work.cost, *shape.values())

        found[name] = (bins, PEERS[name][1])
    return found


def lockstep(given: argparse.Namespace, failed: list[str]) -> tuple[Rows, dict[str, Any]]:
    """All policies and peers on the lock-step objective."""
    rows, bars = Rows(), {}
    others = runners(given)
    too_large: dict[str, tuple[int, str]] = {}
    for scale in given.scales:
        count, ranks, slots = SCALES[scale]
        for load in given.loads:
            for seed in given.seeds:
                work = preset(load, count, seed=seed)
                cap = cap_of(work, ranks * slots)
                shape: dict[str, Any] = {"ranks": ranks, "microbatches": slots, "token_cap": cap}
                ours, ms = timed(lambda w=work, s=shape: schedule(w.tokens, w.cost, **s))
                rows.add(OURS, load, scale, ours, ms, **native_times(work, shape))
                for name, (run, wall) in others.items():
                    if name in too_large and count >= too_large[name][0]:
                        rows.miss(name, load, scale, too_large[name][1])
                        continue
                    out, taken, reason = limited(run, (work, shape), seconds=given.limit, wall=wall)
                    progress(f"{scale} {load} seed {seed} {name}: {taken or reason}")
                    if taken is None:
                        too_large[name] = (count, f"{reason}, on {load} of {scale}")
                        rows.miss(name, load, scale, too_large[name][1])
                        continue
                    plan = out if isinstance(out, Assignment) else laid_out(out, work, ranks, ours)
                    rows.add(name, load, scale, plan, taken)
        bars[scale] = lockstep_bars(rows, scale, given, failed)
    return rows, bars


def native_times(work: Workload, shape: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of the kernel alone: placement, and with refinement."""
    cost, _ = kernels.integer_costs(work.cost, "cost")
    args = (work.tokens, cost, *shape.values(), "lockstep")
    _, placed = timed(lambda: kernels.schedule(*args, refined=False))
    _, refined = timed(lambda: kernels.schedule(*args))
    return {"placement_ms": placed, "native_ms": refined}


def lockstep_bars(
    rows: Rows, scale: str, given: argparse.Namespace, failed: list[str]
) -> dict[str, Any]:
    """What the bars ask of one scale, over all loads."""
    ours = {load: rows.of(scale, load, OURS) for load in given.loads}
    gaps = {load: statistics.median(s["gap"] for s in seeds) for load, seeds in ours.items()}
    worst = max(gaps, key=lambda load: gaps[load])
    times = {
        key: max(statistics.median(s[key] for s in seeds) for seeds in ours.values())
        for key in ("placement_ms", "native_ms", "ms")
    }
    over = max(s["over"] for seeds in ours.values() for s in seeds)
    if gaps[worst] > LOCKSTEP_BARS[scale] or over:
        failed.append(f"{scale} {worst}: median gap {gaps[worst]:.4f} %, {over} over the cap")
    behind = {}
    for load in given.loads:
        for seed, (mine, name, best) in enumerate(best_peer(rows, scale, load, OURS)):
            behind[f"{load} {name}"] = max(behind.get(f"{load} {name}", -numpy.inf), mine - best)
            if mine > best + 0.1:
                failed.append(
                    f"{scale} {load} seed {given.seeds[seed]}: {mine:.4f} %, {name} {best:.4f} %"
                )
    most = max(behind, key=lambda key: behind[key], default=None)
    placement, refined = TIME_BARS.get(scale, (numpy.inf, numpy.inf))
    if times["placement_ms"] > placement or times["native_ms"] > refined:
        failed.append(
            f"{scale}: placement {times['placement_ms']:.3f} ms, {times['native_ms']:.3f} ms in all"
        )
    if times["ms"] > times["native_ms"] + 0.2:
        failed.append(f"{scale}: from Python {times['ms']:.3f} ms, native {times['native_ms']:.3f}")
    speedup = least_speedup(rows, scale, given.loads, OURS, tuple(PEERS))
    if speedup and speedup["times"] < 10:
        failed.append(f"{scale}: {speedup['name']} takes {speedup['times']:.1f} times as long only")
    return {
        "worst_gap_percent": round(gaps[worst], 4),
        "load": worst,
        "bar_percent": LOCKSTEP_BARS[scale],
        "most_behind_a_feasible_peer": most and {"peer": most, "points": round(behind[most], 4)},
        "slowest_load_ms": {key: round(value, 3) for key, value in times.items()},
        "least_speedup": speedup,
    }


def other_objectives(given: argparse.Namespace, failed: list[str]) -> tuple[Rows, dict[str, Any]]:
    """Ranks that meet once a step, pipelines, the heaviest microbatch; the encoder's pre-pass."""
    rows, bars = Rows(), {}
    for scale in given.scales:
        count, ranks, slots = SCALES[scale]
        worst: dict[str, tuple[float, str]] = {}
        for load in given.loads:
            progress(f"{scale} {load} other objectives")
            losses, even = [], True
            for seed in given.seeds:
                work = preset(load, count, seed=seed)
                cap = cap_of(work, ranks * slots)
                shape: dict[str, Any] = {"ranks": ranks, "microbatches": slots, "token_cap": cap}
                for objective in ("free", "makespan", "pipeline"):
                    more = {"stages": STAGES} if objective == "pipeline" else {}
                    plan, ms = timed(
                        lambda w=work, s=shape | more, o=objective: schedule(
                            w.tokens, w.cost, objective=o, **s
                        )
                    )
                    rows.add(objective, load, scale, plan, ms)
                    if objective == "makespan":
                        even &= plan.bound <= work.cost.sum() / (ranks * slots) * (1 + 1e-6)
                plan = schedule(work.tokens, work.cost, work.encoder_cost, **shape)
                first = plan.encoder_loads[0]
                # A rank cannot do less than the largest sample, whatever the others do.
                least = max(first.mean(), work.encoder_cost.max(), 1.0)
                losses.append(100 * float(first.max() / least - 1))
            found = {"prepass": statistics.median(losses)}
            for objective in ("free", "makespan", "pipeline"):
                seeds = rows.of(scale, load, objective)
                found[objective] = statistics.median(s["gap"] for s in seeds)
            # Only where the mean is the bound is the heaviest microbatch held to a bar.
            limits = {"prepass": 1.0, "free": FREE_BARS[scale]}
            if even and count <= 4096:
                limits["makespan"] = 2.0 if load == "coarse" else 0.1
            for name, value in found.items():
                worst[name] = max(worst.get(name, (-1.0, "")), (value, load))
                if value > limits.get(name, numpy.inf):
                    failed.append(f"{scale} {load}: {name} {value:.4f} % over its bound")
        bars[scale] = {
            name: {"worst_gap_percent": round(value, 4), "load": load}
            for name, (value, load) in worst.items()
        }
    return rows, bars


def two_modules(given: argparse.Namespace, failed: list[str]) -> dict[str, Any]:
    """Rigid coupling at 256/8/4: the largest load of either module, both with the same mean."""
    count, ranks, slots = SCALES["256/8/4"]
    worst_behind, slowest = -numpy.inf, 0.0
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
                progress(f"{load} seed {seed} {name}: {worst[name]:.4f} %, {ms:.3f} ms")
                slowest = max(slowest, ms) if name == "ours" else slowest
            if "CP-SAT" in worst:
                worst_behind = max(worst_behind, worst["ours"] - worst["CP-SAT"])
            if worst["ours"] > worst.get("CP-SAT", numpy.inf) + 1e-3:
                failed.append(
                    f"two modules, {load} seed {seed}: {worst['ours']:.4f} %, "
                    f"CP-SAT {worst['CP-SAT']:.4f} %"
                )
    if slowest > 1.0:
        failed.append(f"two modules: {slowest:.3f} ms")
    known = numpy.isfinite(worst_behind)
    return {
        "most_behind_cp_sat_points": round(float(worst_behind), 4) if known else None,
        "slowest_ms": round(slowest, 3),
    }


def stream(given: argparse.Namespace, failed: list[str]) -> dict[str, Any]:
    """200 steps of a stream whose samples may wait for one step."""
    ranks, slots = 16, 8
    bars = {}
    for load, bar in STREAM_BARS.items():
        progress(f"stream {load}")
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
        bars[load] = {
            "efficiency": round(mean, 4),
            "bar": bar,
            "fill": round(statistics.mean(fill), 4),
            "largest_age": oldest,
            "ms": round(statistics.median(times), 3),
        }
        if mean < bar or statistics.mean(fill) < 0.98 or oldest > 1:
            failed.append(f"stream {load}: efficiency {mean:.4f}, age {oldest}")
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("lockstep", "others", "two-modules", "stream")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--scales", nargs="+", choices=SCALES, default=list(SCALES))
    parser.add_argument("--loads", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1001, 1002, 1003, 1004, 1005])
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of a peer on one step")
    parser.add_argument("--ours", action="store_true", help="flowtrain-best alone, no peers")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    given = parser.parse_args()
    failed: list[str] = []
    results: list[dict[str, Any]] = []
    bars: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        if given.json:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        for part, measure in (("lockstep", lockstep), ("others", other_objectives)):
            if part in given.parts:
                rows, bars[part] = measure(given, failed)
                rows.print()
                results += rows.summary()
        if "two-modules" in given.parts:
            bars["two_modules"] = two_modules(given, failed)
        if "stream" in given.parts:
            bars["stream"] = stream(given, failed)
        for line in failed:
            print(f"below its bar: {line}")
    conditions = {
        "seeds": given.seeds,
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "cpus": sorted(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
    }
    print(
        json.dumps(
            {"conditions": conditions, "bars": bars, "below_bar": failed, "results": results}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

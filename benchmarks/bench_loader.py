"""What does one changed line win a training loop, and what does it cost?

`PackedLoader` beside the `DataLoader` with a `DistributedSampler` that it takes the place of: the
same samples in each step, 8 to a microbatch in the mean. `efficiency` is the share of the ranks'
lock-step time that is spent computing, from the samples' FLOPs; `wait` what is lost, 1 less that.
`us_per_batch` is what each loader takes of the loop's process for a batch of samples that take
nothing to load, planning included. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable

import numpy
from torch.utils.data import DataLoader, DistributedSampler

from flowtrain.bench.conditions import conditions
from flowtrain.data import PackedLoader
from flowtrain.workloads import Workload, preset

BATCH = 8
LOADS = ("tiles", "native", "video", "interleaved", "longtail", "coarse", "documents")


def sampler(work: Workload, ranks: int, rank: int) -> DistributedSampler[int]:
    return DistributedSampler(
        range(len(work.tokens)), num_replicas=ranks, rank=rank, shuffle=True, drop_last=True
    )


def plain_efficiency(work: Workload, ranks: int, cost: numpy.ndarray) -> float:
    """Lock-step efficiency of a DataLoader's batches; every microbatch waits for its slowest."""
    drawn = numpy.array([list(sampler(work, ranks, rank)) for rank in range(ranks)])
    full = drawn.shape[1] // BATCH * BATCH
    loads = cost[drawn[:, :full]].reshape(ranks, -1, BATCH).sum(axis=2)
    return float(loads.sum() / (loads.max(axis=0).sum() * ranks))


def us_per_batch(batches: Iterable[object]) -> float:
    """Median over epochs."""
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        count = sum(1 for _ in batches)
        taken.append(1e6 * (time.perf_counter() - start) / count)
    return statistics.median(taken)


def measure(name: str, *, steps: int, ranks: int, microbatches: int, seed: int) -> dict[str, float]:
    size = ranks * microbatches * BATCH
    work = preset(name, steps * size, seed=seed)
    cost = work.cost + work.encoder_cost
    packed = PackedLoader(
        range(len(cost)),
        BATCH,
        shuffle=True,
        token_cap=max(int(work.tokens.max()), int(1.25 * work.tokens.mean() * BATCH)),
        microbatches=microbatches,
        length=work.tokens,
        cost=cost,
        collate_fn=len,
        rank=0,
        ranks=ranks,
    )
    plans = [packed.microbatch.plan for _ in packed if packed.microbatch.ends_step]
    plain = DataLoader(
        range(len(cost)), BATCH, sampler=sampler(work, ranks, 0), collate_fn=len, drop_last=True
    )
    return {
        "efficiency_plain": plain_efficiency(work, ranks, cost),
        "efficiency_packed": statistics.fmean(plan.efficiency for plan in plans),
        "us_per_batch_plain": us_per_batch(plain),
        "us_per_batch_packed": us_per_batch(packed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--seed", type=int, default=6101)
    parser.add_argument("--json", action="store_true", help="the last line alone")
    given = parser.parse_args()
    shape = {name: getattr(given, name) for name in ("steps", "ranks", "microbatches", "seed")}
    found = {name: measure(name, **shape) for name in LOADS}
    if not given.json:
        print(f"{'load':<14}{'wait, DataLoader':>18}{'packed':>9}{'us a batch':>12}{'packed':>9}")
        for name, row in found.items():
            wait = [1 - row[f"efficiency_{kind}"] for kind in ("plain", "packed")]
            print(
                f"{name:<14}{wait[0]:>18.1%}{wait[1]:>9.2%}"
                f"{row['us_per_batch_plain']:>12.0f}{row['us_per_batch_packed']:>9.0f}"
            )
    print(json.dumps({**shape, "batch": BATCH, "loads": found, "conditions": conditions()}))


if __name__ == "__main__":
    main()

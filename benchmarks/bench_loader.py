"""Measure how much a training loop gains from `PackedLoader`, and the time that the loader takes.

Compares `PackedLoader` with the `DataLoader` that it replaces: with a `DistributedSampler`, and
with the `BatchRebalanceSampler` of the Hugging Face Trainer, which gets each sample's tokens and
has no cap. All steps have the same number of samples, 8 per microbatch on average. `efficiency` is
the share of the ranks' lock-step time spent computing, by the samples' FLOPs, so padding costs
nothing; `wait` is 1 - `efficiency`. `us_per_batch` is the time each loader takes in the loop's
process for a batch of samples that take no time to load, planning included. A sampler that is not
installed is null. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import numpy
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler

from flowtrain.bench.conditions import conditions
from flowtrain.data import PackedLoader
from flowtrain.workloads import Workload, preset

BATCH = 8
KINDS = ("plain", "rebalanced", "packed")
LOADS = ("tiles", "native", "video", "interleaved", "longtail", "coarse", "documents")


def sampler(work: Workload, ranks: int, rank: int) -> DistributedSampler[int]:
    return DistributedSampler(
        range(len(work.tokens)), num_replicas=ranks, rank=rank, shuffle=True, drop_last=True
    )


def rebalancing(work: Workload, ranks: int, microbatches: int, rank: int) -> Sampler[list[int]]:
    """Raises ImportError if transformers is missing, or too old to have the sampler."""
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    size = ranks * microbatches * BATCH
    return BatchRebalanceSampler(work.tokens.tolist(), size, ranks, microbatches, rank=rank)


def efficiency(cost: numpy.ndarray, batches: Sequence[Iterable[Sequence[int]]]) -> float:
    """Lock-step efficiency of the ranks' batches: each microbatch waits for its slowest rank."""
    loads = numpy.array([[cost[batch].sum() for batch in of_rank] for of_rank in batches])
    return float(loads.sum() / (loads.max(axis=0).sum() * len(loads)))


def us_per_batch(batches: Iterable[object]) -> float:
    """Median time per batch over epochs, in microseconds."""
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        count = sum(1 for _ in batches)
        taken.append(1e6 * (time.perf_counter() - start) / count)
    return statistics.median(taken)


def measure(
    name: str, *, steps: int, ranks: int, microbatches: int, seed: int
) -> dict[str, float | None]:
    size = ranks * microbatches * BATCH
    work = preset(name, steps * size, seed=seed)
    cost = work.cost + work.encoder_cost
    packed = PackedLoader(
        range(len(cost)),
        BATCH,
        shuffle=True,
        max_tokens=max(int(work.tokens.max()), int(1.25 * work.tokens.mean() * BATCH)),
        microbatches=microbatches,
        length=work.tokens,
        cost=cost,
        collate_fn=len,
        rank=0,
        ranks=ranks,
    )
    plans = [microbatch.plan for _, microbatch in packed if microbatch.ends_step]
    found: dict[str, float | None] = {
        "efficiency_packed": statistics.fmean(plan.efficiency for plan in plans),
        "us_per_batch_packed": us_per_batch(packed),
    }
    samplers: dict[str, Callable[[int], Sampler[list[int]]]] = {
        "plain": lambda rank: BatchSampler(sampler(work, ranks, rank), BATCH, drop_last=True),
        "rebalanced": lambda rank: rebalancing(work, ranks, microbatches, rank),
    }
    for kind, of_rank in samplers.items():
        try:
            batches = [of_rank(rank) for rank in range(ranks)]
        except ImportError:
            found |= {f"efficiency_{kind}": None, f"us_per_batch_{kind}": None}
            continue
        loader = DataLoader(range(len(cost)), batch_sampler=batches[0], collate_fn=len)
        found[f"efficiency_{kind}"] = efficiency(cost, batches)
        found[f"us_per_batch_{kind}"] = us_per_batch(loader)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--seed", type=int, default=6101)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    shape = {name: getattr(given, name) for name in ("steps", "ranks", "microbatches", "seed")}
    found = {name: measure(name, **shape) for name in LOADS}
    if not given.json:
        print(f"{'':<14}{'wait':<36}{'us a batch':<36}")
        print(f"{'load':<14}" + 2 * "".join(f"{kind:<12}" for kind in KINDS))
        for name, row in found.items():
            share, us = (
                [row[f"{of}_{kind}"] for kind in KINDS] for of in ("efficiency", "us_per_batch")
            )
            cells = ["-" if x is None else f"{1 - x:.2%}" for x in share]
            cells += ["-" if x is None else f"{x:.0f}" for x in us]
            print(f"{name:<14}" + "".join(f"{cell:<12}" for cell in cells))
    print(json.dumps({**shape, "batch": BATCH, "loads": found, "conditions": conditions()}))


if __name__ == "__main__":
    main()

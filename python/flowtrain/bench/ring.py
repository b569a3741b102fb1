"""How many descriptors a second go through the ring, one by one and in runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, Protocol, cast

from flowtrain.bench.conditions import conditions
from flowtrain_core import _C

PAIRS = (1, 2, 4)
BATCHES = (1, 16)


class _RingRate(Protocol):
    def __call__(
        self, *, producers: int, consumers: int, batch: int, runs: bool, seconds: float
    ) -> float: ...


def run(seconds: float = 0.2, slices: int = 5) -> Iterator[dict[str, Any]]:
    """Measure one, two and four producers with as many consumers, alone and in batches.

    Args:
        seconds: Time of one slice.
        slices: Slices of each way, in turn, since the cores of a virtual machine come and go.

    Yields:
        Per case the medians in millions of descriptors of 64 bytes a second: `single` has one
        compare-and-swap for each descriptor of a batch, `runs` one for all of them. Threads of
        one process, whose traffic between cores is that of processes.
    """
    ring_rate = cast(_RingRate, vars(_C)["_ring_rate"])
    for pairs in PAIRS:
        for batch in BATCHES:
            rates: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(slices):
                for runs, found in rates.items():
                    rate = ring_rate(
                        producers=pairs, consumers=pairs, batch=batch, runs=runs, seconds=seconds
                    )
                    found.append(rate / 1e6)
            single, together = (statistics.median(rates[runs]) for runs in (False, True))
            yield {
                "bench": "ring",
                "producers": pairs,
                "consumers": pairs,
                "batch": batch,
                "single": round(single, 2),
                "runs": round(together, 2),
                "gain": round(together / single, 2) if single else None,
                **conditions(),
            }

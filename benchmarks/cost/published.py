"""Bus bandwidth that was published, and what the cost model of collectives gives.

Bus bandwidth is that of nccl-tests (doc/PERFORMANCE.md): bytes over seconds, times (n - 1) / n for
all-gather and all-to-all of n ranks, and 2 (n - 1) / n for all-reduce. `REPORTS` are figures from
threads, some of which say no size: for these 1 GiB is taken. `sweep` is a table of one cluster.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from flowtrain.cost.communication import all_gather_s, all_reduce_s, all_to_all_s
from flowtrain.cost.topology import Group, Link, Topology
from flowtrain.plan.cluster.known import REACHED_SHARE, node_of

Collective = Callable[[float, Group, Topology], float]

_MIB = 1 << 20
_GIB = 1 << 30
_ANY = _GIB

_COLLECTIVES: dict[str, tuple[Collective, int]] = {
    "all_gather": (all_gather_s, 1),
    "all_reduce": (all_reduce_s, 2),
    "all_to_all": (all_to_all_s, 1),
}
"""Each with how often its bytes pass."""


@dataclass(frozen=True, slots=True)
class Published:
    """A measurement.

    Attributes:
        source: Where it was published.
        gpu: Type of the GPUs, whose preset has the link inside a node and the latencies.
        nodes: Nodes.
        ranks: Ranks in each of them.
        adapter_gbit_per_s: Rate of the adapters of a node for each of its ranks.
        collective: `all_gather`, `all_reduce` or `all_to_all`.
        num_bytes: Size, as nccl-tests prints it.
        bus_gb_per_s: Bus bandwidth.
    """

    source: str
    gpu: str
    nodes: int
    ranks: int
    adapter_gbit_per_s: float
    collective: str
    num_bytes: int
    bus_gb_per_s: float

    def predicted(self) -> float:
        """Bus bandwidth in the cost model, GB/s."""
        preset = node_of(self.gpu).topology
        rate = REACHED_SHARE * self.adapter_gbit_per_s * 1e9 / 8
        topology = replace(
            preset,
            devices_per_node=self.ranks,
            between=Link(latency_s=preset.between.latency_s, bytes_per_s=rate),
        )
        seconds_of, passes = _COLLECTIVES[self.collective]
        n = self.nodes * self.ranks
        seconds = seconds_of(self.num_bytes, Group(size=n), topology)
        return passes * self.num_bytes * (n - 1) / n / seconds / 1e9


_PAIR = "nccl-tests issue 232"
REPORTS = (
    Published("NCCL issue 1218", "H100", 32, 8, 400, "all_gather", 2 * _GIB, 200),
    Published("NCCL issue 1368", "H100", 5, 8, 200, "all_reduce", _GIB, 190),
    Published("NCCL issue 812", "A100", 2, 8, 200, "all_reduce", _ANY, 192),
    Published("NCCL issue 495", "A100", 2, 8, 100, "all_reduce", _ANY, 75),
    Published("NCCL issue 412, adapter", "A100", 2, 8, 25, "all_gather", _ANY, 24),
    Published("NCCL issue 1048, 1 adapter", "A100", 2, 8, 25, "all_reduce", 4 * _GIB, 24),
    Published("NCCL issue 1048, 4 adapters", "A100", 2, 8, 100, "all_reduce", 4 * _GIB, 86),
    Published("nccl-tests issue 290, adapter", "H100", 2, 1, 400, "all_gather", _ANY, 47),
    Published("nccl-tests issue 212, ring", "H100", 1, 8, 400, "all_reduce", _ANY, 370),
    Published("NCCL issue 1281", "H100", 1, 8, 400, "all_gather", _ANY, 350),
    Published(_PAIR, "H100", 2, 1, 400, "all_reduce", 2 * _MIB, 18.53),
    Published(_PAIR, "H100", 2, 1, 400, "all_reduce", 8 * _MIB, 36.24),
    Published(_PAIR, "H100", 2, 1, 400, "all_reduce", 32 * _MIB, 41.31),
    Published(_PAIR, "H100", 2, 1, 400, "all_reduce", 16 * _GIB, 50),
)
"""Figures of threads, each of another cluster. What runs on two nodes there is a ring."""

# Of 32 MiB, 64 MiB, and so on, by the number of nodes.
_ALL_GATHER = {
    2: (131, 200, 235, 216, 276, 322, 329),
    4: (83.56, 139, 212, 253, 221, 289, 331),
    8: (46.29, 86.8, 144, 215, 261, 224, 294),
    16: (24.9, 46.99, 87.68, 144, 220, 262, 265),
    32: (12.38, 24.96, 45.65, 86.3, 146, 222, 263),
}
_ALL_REDUCE = {
    2: (147, 207, 305, 364, 396, 435, 445, 466, 478),
    4: (95.38, 152, 229, 273, 278, 280, 348, 354, 357),
    8: (86.74, 104, 156, 232, 273, 274, 278, 351, 355),
    16: (74.85, 92.39, 129, 148, 224, 269, 271, 306, 356),
    32: (66.34, 83.6, 116, 138, 157, 220, 269, 303, 321),
}
_ALL_TO_ALL = {
    2: (44.79, 62.16, 68.79, 74.26, 75.82, 77.73, 79.25),
    4: (34.45, 43.13, 52.56, 54.28, 53.84, 53.75, 54.07),
    8: (28.67, 34.69, 36.2, 44.4, 46.57, 48.31, 49.63),
    16: (24.63, 26.08, 31.45, 34.77, 40.07, 42.36, 44.23),
    32: (19.72, 22.92, 27.02, 30.21, 33.06, 38.68, 40.78),
}


def sweep() -> Iterator[Published]:
    """8 H100 and 32 adapters of 100 Gb/s in each node, by the number of nodes and size.

    Source: github.com/crazyguitar/aws-gpu-communication-benchmark at fd167f9, folder data, column
    "out busbw" (CC BY 4.0).
    """
    for collective, table in (
        ("all_gather", _ALL_GATHER),
        ("all_reduce", _ALL_REDUCE),
        ("all_to_all", _ALL_TO_ALL),
    ):
        for nodes, measured in table.items():
            for power, bus_gb_per_s in enumerate(measured):
                yield Published(
                    "p5.48xlarge",
                    "H100",
                    nodes,
                    8,
                    400,
                    collective,
                    32 * _MIB << power,
                    bus_gb_per_s,
                )


def collective_rows() -> Iterator[dict[str, Any]]:
    """One row for each measurement."""
    for kind, all_of in (("report", REPORTS), ("sweep", tuple(sweep()))):
        for each in all_of:
            predicted = each.predicted()
            yield {
                **asdict(each),
                "kind": kind,
                "predicted_gb_per_s": predicted,
                "error": predicted / each.bus_gb_per_s - 1,
            }


def collective_line(row: dict[str, Any]) -> str:
    return (
        f"{row['source']:29} {row['nodes']:3} x {row['ranks']} {row['gpu']:4} "
        f"{row['collective']:10} {row['num_bytes'] / _MIB:7.0f} MiB  "
        f"published {row['bus_gb_per_s']:6.1f} GB/s  predicted {row['predicted_gb_per_s']:6.1f}  "
        f"error {row['error']:+6.1%}"
    )


def collective_summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Worst error of the reports; mean and worst error of the sweep by collective."""
    found = {"collective_error": max(abs(r["error"]) for r in rows if r["kind"] == "report")}
    swept = [row for row in rows if row["kind"] == "sweep"]
    found["collective_sweep_error"] = statistics.mean(abs(row["error"]) for row in swept)
    for name in _COLLECTIVES:
        errors = [abs(row["error"]) for row in swept if row["collective"] == name]
        found[f"{name}_sweep_error"] = statistics.mean(errors)
        found[f"{name}_sweep_worst"] = max(errors)
    return found

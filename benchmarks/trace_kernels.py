"""Where the time of a GPU goes: the kernels of a trace of torch's profiler.

    python benchmarks/trace_kernels.py RUN/profile/colocated.0.json

Prints JSON lines: the time from the first kernel to the end of the last, and the share of it in
which at least one ran; then, by name, the time of the actions of the schedule on the host and on
the device, of the host's calls of CUDA, and of kernels and copies, those with most time first.
`track.profile_start` writes such a trace for each rank.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
GROUPS = {
    "action": ("user_annotation",),
    "action_on_device": ("gpu_user_annotation",),
    "call": ("cuda_runtime", "cuda_driver"),
    "kernel": WORK,
}
"""Categories of events by the key of their lines."""
NAME_CHARACTERS = 110


def busy_us(events: Iterable[dict[str, Any]]) -> float:
    """Time in which at least one of the events ran."""
    total, end = 0.0, float("-inf")
    for begun, ended in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        total += max(0.0, ended - max(begun, end))
        end = max(end, ended)
    return total


def figures(trace: dict[str, Any], top: int) -> list[dict[str, Any]]:
    """The lines that are printed."""
    events = [event for event in trace["traceEvents"] if "dur" in event]
    work = [event for event in events if event.get("cat") in WORK]
    if not work:
        return [{"kernels": 0}]
    begun = min(event["ts"] for event in work)
    span = max(event["ts"] + event["dur"] for event in work) - begun
    lines: list[dict[str, Any]] = [
        {
            "kernels": len(work),
            "span_ms": round(span / 1e3, 3),
            "busy_share": round(busy_us(work) / span, 4),
        }
    ]
    for key, categories in GROUPS.items():
        by_name: dict[str, list[float]] = defaultdict(list)
        for event in events:
            if event.get("cat") in categories:
                by_name[event["name"][:NAME_CHARACTERS]].append(event["dur"])
        most = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:top]
        lines += [
            {key: name, "ms": round(sum(times) / 1e3, 3), "calls": len(times)}
            for name, times in most
        ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--top", type=int, default=30, help="names to print")
    given = parser.parse_args()
    for line in figures(json.loads(given.trace.read_text()), given.top):
        print(json.dumps(line))


if __name__ == "__main__":
    main()

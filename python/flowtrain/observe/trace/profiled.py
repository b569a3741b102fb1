"""Events of torch's profiler for a rank, on the clock of the rank's events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowtrain.train.state.logs import PROFILE


def profiled(run: Path, label: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Events of threads and devices in a profile, in Chrome's trace format.

    Args:
        run: Folder of the run.
        label: Name of the rank.

    Yields:
        Start, as unix time in ns; name of the track; and the event. Nothing if there is no profile.

    Raises:
        ValueError: The profile cannot be read.
    """
    path = run / PROFILE / f"{label}.json"
    if not path.exists():
        return
    try:
        trace = json.loads(path.read_bytes())
        # Kineto writes unix time in us, from a start that keeps its digits within a float's.
        base_ns = trace["baseTimeNanoseconds"]
        # Marks of Kineto itself have a word in place of a process.
        events = [each for each in trace["traceEvents"] if isinstance(each.get("pid"), int)]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{path}: not a whole profile of torch ({error!r}); remove it to write the trace "
            "without it"
        ) from error
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    for event in events:
        if event["ph"] == "M":
            continue
        place = event["pid"], event["tid"]
        track = names.get(place, f"thread {event['tid']}")
        yield base_ns + round(event["ts"] * 1000), track, event

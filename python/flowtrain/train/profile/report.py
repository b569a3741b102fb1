"""What `flowtrain profile` prints."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowtrain.cost.profiled import Profile
from flowtrain.cost.tables import Tables
from flowtrain.train.profile.session import SETTLED, Outcome

_SHOWN = 3


def as_json(out: Path, profile: Profile, tables: Tables, outcome: Outcome) -> dict[str, Any]:
    """The result of a session, for one line of JSON."""
    return {
        "file": str(out),
        **asdict(profile.key),
        "shapes": outcome.shapes,
        "missing": outcome.missing,
        "interpolation_error_median": _median(outcome.errors),
        "interpolation_error_worst": max(outcome.errors, default=None),
        "not_settled": outcome.unsettled,
        "update_s": {part: update.seconds for part, update in profile.updates.items()},
        "tables": tables.summary(),
    }


def as_text(out: Path, profile: Profile, tables: Tables, outcome: Outcome) -> str:
    """The result of a session, for people."""
    return "\n".join(_lines(out, profile, tables, outcome)) + "\n"


def _lines(out: Path, profile: Profile, tables: Tables, outcome: Outcome) -> Iterator[str]:
    key = profile.key
    threads = f"{key.threads} thread{'s' * (key.threads > 1)}"
    attention = key.attention and f", attention by {key.attention}"
    yield f"{key.device}, {key.dtype}, {threads}, torch {key.torch}{attention}"
    yield f"{'microseconds of one layer':52}{'size':>8}{'forward':>10}{'input':>10}{'weight':>10}"
    for row in tables.summary():
        title = f"{row['layer']}  {row['unit']}"
        for size, *passes in row["seconds"]:
            figures = "".join(f"{seconds * 1e6:10.0f}" for seconds in passes)
            yield f"{title:52.52}{size:8.0f}{figures}"
            title = ""
    for part, update in profile.updates.items():
        yield f"optimizer of {part}: {update.seconds * 1e3:.2f} ms, {update.parameters:,} values"
    if (middle := _median(outcome.errors)) is not None:
        yield (
            f"error of interpolation at {len(outcome.errors)} shapes between others, before these "
            f"were measured: median {middle:.1%}, worst {max(outcome.errors):.1%}"
        )
    if outcome.unsettled:
        yield (
            f"not settled: {len(outcome.unsettled)} of {outcome.shapes} shapes, whose two halves "
            f"of rounds differ by more than {SETTLED:.0%}, such as {outcome.unsettled[0]}"
        )
    if outcome.missing:
        yield (
            f"{outcome.missing} of {outcome.shapes} shapes lack rounds, as the time was over: run "
            "the same command again to continue"
        )
    yield f"written: {out}"


def _median(errors: Any) -> float | None:
    return statistics.median(errors) if errors else None

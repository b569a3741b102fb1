"""Workloads from a file of lengths, one sample a line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy

from flowtrain.workloads.workload import Workload, decoder_flops, native_encoder_flops

_PATCHES_PER_TOKEN = 4


def read_lengths(path: Path) -> Workload:
    """Read samples from a JSON-lines file.

    A line is a number of tokens, or an object with `tokens` (text and visual) and, as far as known,
    `visual_tokens`, `cost` and `encoder_cost` in any one unit. A missing cost is the FLOPs of a
    Qwen2.5-7B decoder; a missing encoder cost those of a Qwen2.5-VL tower on one image. Either a
    cost is on all lines or on none.

    Raises:
        ValueError: A line is neither, or lacks what others have; the message has its number.
    """
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.strip():
            rows.append(_row(line, f"{path}:{number}"))
    columns: dict[str, list[float]] = {}
    for key in ("tokens", "visual_tokens", "cost", "encoder_cost"):
        given = [row.get(key) for row in rows]
        if key in ("cost", "encoder_cost") and any(v is None for v in given):
            if any(v is not None for v in given):
                missing = next(i for i, v in enumerate(given, start=1) if v is None)
                raise ValueError(
                    f"{path}: sample {missing} has no {key}, and others do; give it to all or none"
                )
            continue
        columns[key] = [0 if value is None else value for value in given]
    tokens = numpy.array(columns["tokens"], numpy.int64)
    visual = numpy.array(columns["visual_tokens"], numpy.int64)
    cost = columns.get("cost")
    encoder = columns.get("encoder_cost")
    return Workload(
        name=path.stem,
        tokens=tokens,
        visual_tokens=visual,
        cost=decoder_flops(tokens) if cost is None else numpy.array(cost, numpy.float64),
        encoder_cost=native_encoder_flops(visual * _PATCHES_PER_TOKEN)
        if encoder is None
        else numpy.array(encoder, numpy.float64),
    )


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error.msg}); give a number or an object") from error
    row = value if isinstance(value, dict) else {"tokens": value}
    for key in ("tokens", "visual_tokens", "cost", "encoder_cost"):
        number: Any = row.get(key, 0 if key != "tokens" else None)
        whole = key in ("tokens", "visual_tokens")
        good = isinstance(number, int) if whole else isinstance(number, (int, float))
        if not good or isinstance(number, bool) or not math.isfinite(number) or number < 0:
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"{where}: {key}={number!r} must be {kind}, not negative")
    return row

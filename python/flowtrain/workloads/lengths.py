"""Reads workloads from a file of lengths, one sample per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy

from flowtrain.workloads.workload import Workload, decoder_flops, native_encoder_flops

_PATCHES_PER_TOKEN = 4
# Columns of tokens that an encoder makes, with those of its inputs.
_INPUTS = {"visual_tokens": "images", "audio_tokens": "clips"}
# Maximum of each column; the FLOPs of the longest sample are within that of costs.
_MAXIMA = {
    "tokens": 1e9,
    "visual_tokens": 1e9,
    "images": 1e9,
    "audio_tokens": 1e9,
    "clips": 1e9,
    "cost": 1e30,
    "encoder_cost": 1e30,
}


def read_lengths(path: Path) -> Workload:
    """Read samples from a JSON-lines file.

    A line is a number of tokens, or an object with `tokens` (text, visual and audio) and optionally
    `visual_tokens`, `images` (by default one, if there are visual tokens), `audio_tokens`, `clips`
    (by default one, if there are audio tokens), `cost` and `encoder_cost`, all costs in one unit.
    `encoder_cost` is that of images. The default cost is the FLOPs of a Qwen2.5-7B decoder,
    the default encoder cost those of a Qwen2.5-VL vision tower on one image. A cost must be on all
    lines or on none.

    Raises:
        ValueError: A line has another form, or lacks a cost that others have. The message has its
            number.
        OSError: The file cannot be read.
    """
    rows = {
        number: _row(line, f"{path}:{number}")
        for number, line in enumerate(_lines(path), start=1)
        if line.strip()
    }
    columns: dict[str, list[float]] = {}
    for key in ("tokens", "visual_tokens", "audio_tokens", "cost", "encoder_cost"):
        given = {number for number, row in rows.items() if key in row}
        if key in ("cost", "encoder_cost"):
            if given and len(given) < len(rows):
                raise ValueError(
                    f"{path}:{min(rows.keys() - given)}: no {key}, but line {min(given)} has one; "
                    "give it on all lines or on none"
                )
            if not given:
                continue
        columns[key] = [row.get(key, 0) for row in rows.values()]
    images, clips = (
        [row.get(inputs, int(row.get(made, 0) > 0)) for row in rows.values()]
        for made, inputs in _INPUTS.items()
    )
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
        images=numpy.array(images, numpy.int64),
        audio_tokens=numpy.array(columns["audio_tokens"], numpy.int64),
        clips=numpy.array(clips, numpy.int64),
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.start} is not UTF-8; give a text file of JSON lines"
        ) from error


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deep")
        raise ValueError(f"{where}: not JSON ({reason}); give a number or an object") from error
    row = value if isinstance(value, dict) else {"tokens": value}
    if "tokens" not in row:
        known = ", ".join(map(repr, row)) or "none"
        raise ValueError(f"{where}: no 'tokens' among its fields ({known}); add it")
    row = {key: _number(row[key], key, where) for key in _MAXIMA if key in row}
    if sum(row.get(made, 0) for made in _INPUTS) > row["tokens"]:
        given = " and ".join(f"{made}={row[made]}" for made in _INPUTS if made in row)
        raise ValueError(
            f"{where}: {given} exceed tokens={row['tokens']}; "
            "give the sum of text, visual and audio tokens as tokens"
        )
    for made, inputs in _INPUTS.items():
        if row.get(made, 0) > 0 and row.get(inputs, 1) == 0:
            raise ValueError(
                f"{where}: {made}={row[made]} with {inputs}=0; give at least one "
                f"{inputs.removesuffix('s')}"
            )
    return row


def _number(value: Any, key: str, where: str) -> int | float:
    """Convert a value to the number type of its column, and check its range."""
    whole = key not in ("cost", "encoder_cost")
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if good and 0 <= value <= _MAXIMA[key] and (not whole or value == int(value)):
        return int(value) if whole else float(value)
    kind = "a whole number" if whole else "a number"
    shown = repr(value)[:40]
    raise ValueError(f"{where}: {key}={shown} must be {kind} from 0 to {_MAXIMA[key]:g}")

"""Lengths of samples, and of the rows into which they were packed, from the plans of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray

from flowtrain.steps import CorrectionEvent, StepPlan
from flowtrain.train.state.logs import PLANS, no_line

_MAX_STEPS = 400

Lengths = NDArray[numpy.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedLengths:
    """Tokens of samples and rows, in some steps of a run."""

    steps: int
    """Number of steps that were read."""
    samples: Lengths
    """Tokens of each sample."""
    images: Lengths
    """Of these, those of images and videos."""
    rows: Lengths
    """Tokens of each packed microbatch that has any."""


def read_lengths(run: Path, *, steps: int) -> PackedLengths:
    """Lengths in at most 400 steps, at equal distances.

    Args:
        run: Folder of the run.
        steps: Number of its steps.

    Raises:
        RunFileError: A line of `plan.log` cannot be read.
    """
    path, every = run / PLANS, max(1, -(-steps // _MAX_STEPS))
    samples, images, rows = [], [], []
    count = 0
    if path.exists():
        with path.open("rb") as log:
            for number, line in enumerate(log, 1):
                if not line.endswith(b"\n") or CorrectionEvent.is_json_of(line):
                    continue
                if count % every == 0:
                    documents = _documents(path, number, line)
                    found = [doc for rank in documents for slot in rank for doc in slot]
                    samples += [doc.num_tokens for doc in found]
                    images += [doc.image_tokens for doc in found]
                    full = [sum(d.num_tokens for d in slot) for rank in documents for slot in rank]
                    rows += [tokens for tokens in full if tokens]
                count += 1
    return PackedLengths(
        steps=-(-count // every),
        samples=numpy.array(samples, "i8"),
        images=numpy.array(images, "i8"),
        rows=numpy.array(rows, "i8"),
    )


def _documents(path: Path, number: int, line: bytes) -> tuple:
    try:
        return StepPlan.from_json(line).documents
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise no_line(path, number, repr(error)) from error

"""A session of measuring: continues from its file, and refines where interpolation is wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flowtrain import progress
from flowtrain.cost.layers import Layer
from flowtrain.cost.profiled import Profile, Record
from flowtrain.cost.tables import Tables
from flowtrain.train.profile.passes import Passes
from flowtrain.train.profile.search import Edge, Grid
from flowtrain.train.profile.shapes import Shape
from flowtrain.train.state.atomic import write_text

FIRST_ROUNDS = 3
"""Rounds in which a shape is measured before its neighbours are chosen."""
ROUNDS = 5
"""Rounds in which every shape is measured."""
MOST_ROUNDS = 9
"""Rounds after which a shape that is not settled is left as it is."""
TOLERANCE = 0.04
"""Relative error of interpolation from which a shape's neighbours are measured, too."""
WRITE_S = 5.0
"""Time after which the file is written within a round."""
SETTLED = 0.04
"""Spread above which a time is called not settled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a session did.

    Attributes:
        shapes: Shapes that were measured, in this session or before.
        missing: Shapes that lack rounds, as the time was over.
        errors: For each shape that was put between others, the error of interpolation there,
            before it was measured.
        unsettled: Shapes whose spread is above `SETTLED`.
    """

    shapes: int
    missing: int
    errors: Sequence[float]
    unsettled: Sequence[str]


class Session:
    """Measures shapes in interleaved rounds, and writes the file every few seconds.

    Args:
        profile: Earlier measurements, or none.
        passes: Measured passes.
        grid: Shapes.
        path: The file.
        seconds: Time for measuring; the round of a shape that has begun is finished.
    """

    def __init__(
        self,
        profile: Profile,
        passes: Passes,
        grid: Grid,
        path: Path,
        *,
        seconds: float,
    ) -> None:
        self._profile = profile
        self._passes = passes
        self._grid = grid
        self._path = path
        self._began, self._seconds = time.monotonic(), seconds
        self._shapes: dict[str, Shape] = {}
        self._errors: list[float] = []
        self._written = -math.inf

    def run(self) -> Outcome:
        """Measure until all is measured, or the time is over."""
        profile, grid = self._profile, self._grid
        if not profile.updates:
            images, row = grid.typical()
            profile.updates.update(self._passes.updates(images, row, rounds=MOST_ROUNDS))
            self._write()
        self._measure(grid.shapes(), FIRST_ROUNDS)
        edges: list[Edge] = grid.edges()
        while edges and not self._over():
            edges = self._refine(edges)
        self._measure(list(self._shapes.values()), ROUNDS)
        self._measure(list(self._shapes.values()), MOST_ROUNDS)
        records = {name: profile.records.get(name) for name in self._shapes}
        return Outcome(
            shapes=len(records),
            missing=sum(self._lacks(shape, ROUNDS) for shape in self._shapes.values()),
            errors=self._errors,
            unsettled=[n for n, r in records.items() if r is not None and r.spread() > SETTLED],
        )

    def _show(self, text: str) -> None:
        """Show what is measured, and how much of the time is over."""
        progress.show(text, min(time.monotonic() - self._began, self._seconds), self._seconds)

    def _over(self) -> bool:
        return time.monotonic() > self._began + self._seconds

    def _refine(self, edges: Sequence[Edge]) -> list[Edge]:
        """Measure a shape on each edge; return the halves of those where it was a surprise."""
        layers = self._passes.layers
        middles = {edge: shape for edge in edges if (shape := self._grid.between(edge))}
        before = self._without({shape.name for shape in middles.values()})
        tables = Tables(before, layers, extrapolate=True)
        self._measure(list(middles.values()), FIRST_ROUNDS)
        halves: list[Edge] = []
        for (one, other), shape in middles.items():
            record = self._profile.records.get(shape.name)
            if record is None:
                continue
            error = interpolation_error(tables, layers, record)
            self._errors.append(error)
            if error > TOLERANCE:
                halves += [(one, shape), (shape, other)]
        return halves

    def _without(self, names: set[str]) -> Profile:
        """The measurements without some shapes, as they were before these were measured."""
        kept = {
            name: record
            for name, record in self._profile.records.items()
            if name in self._shapes and name not in names
        }
        return replace(self._profile, records=kept)

    def _measure(self, shapes: Sequence[Shape], rounds: int) -> None:
        """Measure shapes in interleaved rounds until each has as many samples."""
        self._shapes |= {shape.name: shape for shape in shapes}
        records = self._profile.records
        warm = False
        while not self._over():
            due = [shape for shape in shapes if self._lacks(shape, rounds)]
            if not due:
                return
            least = min(self._taken(shape) for shape in due)
            for shape in due:
                if self._over():
                    break
                if self._taken(shape) > least:
                    continue
                if not warm:
                    self._passes.sample(shape)
                    warm = True
                self._show(f"round {least + 1}/{rounds} of {len(shapes)} shapes: {shape.name}")
                sample = self._passes.sample(shape)
                if shape.name not in records:
                    # The first pass of a shape allocates, and is not counted.
                    records[shape.name] = self._passes.record(shape)
                    sample = self._passes.sample(shape)
                records[shape.name].samples.append(sample)
                if time.monotonic() > self._written + WRITE_S:
                    self._write()
            self._write()

    def _write(self) -> None:
        write_text(self._path, self._profile.to_json())
        self._written = time.monotonic()

    def _taken(self, shape: Shape) -> int:
        record = self._profile.records.get(shape.name)
        return 0 if record is None else len(record.samples)

    def _lacks(self, shape: Shape, rounds: int) -> bool:
        taken = self._taken(shape)
        if taken < min(rounds, ROUNDS):
            return True
        return taken < rounds and self._profile.records[shape.name].spread() > SETTLED


def interpolation_error(tables: Tables, layers: Sequence[Layer], record: Record) -> float:
    """Relative error of the time of a shape that tables give without it.

    Args:
        tables: Made without the shape.
        layers: Layers of the model.
        record: Its measurements.
    """
    row = record.counts.tokens > 0
    predicted = 0.0
    for layer in layers:
        if (layer.part == "backbone") == row and not layer.left_out:
            seconds = tables.seconds(layer, record.counts, documents=record.documents)
            predicted += seconds.forward + seconds.backward_input + seconds.backward_weight
    return abs(predicted / record.median().total - 1)

"""What a search knows: the model on a pool of GPUs, and prices of its modules there."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.padding import padded, padding
from flowtrain.plan.prices.chain import Chain
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.encoder import EncoderPrice, encoder_prices, least_s
from flowtrain.plan.prices.pipeline import Pipeline, Pipelines, heaviest_waits
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.search.candidates import backbone_shapes, encoder_shapes, row_of
from flowtrain.plan.search.pareto import not_beaten
from flowtrain.plan.search.together import Together
from flowtrain.plan.space import GpuPool, Rules, Space
from flowtrain.plan.work import Work

P = TypeVar("P", bound=Pipelines)

_ROUNDING = 1e-9

Cutoff = Callable[[Shape, int], float]
"""The step that is of no interest any more, for a mesh and its microbatches."""


class Context:
    """A model on a pool of GPUs.

    Attributes:
        usable_bytes: Memory of a rank that plans may use.
        counts: Candidates by what became of them: `priced`, `bounded`, `memory`, `range`.
        out_of_range: Why the times are not valid for one of those; empty if there is none.

    Args:
        model: The model.
        work: The step.
        pool: The GPUs.
        space: Plans to search.
        rules: Constants of the prices.
    """

    def __init__(
        self, model: ModelDescription, work: Work, pool: GpuPool, space: Space, rules: Rules
    ) -> None:
        self.model, self.work, self.pool, self.space, self.rules = model, work, pool, space, rules
        self._encoders = [encoder.name for encoder in model.encoders]
        self.tables = Tables(model, work, pool.timing)
        self.usable_bytes = rules.usable(pool)
        self.counts: collections.Counter[str] = collections.Counter()
        self.out_of_range = ""
        self._chains: dict[tuple[str, tuple[float, ...]], Chain] = {}
        self._padded: dict[tuple[float, ...], Tables] = {}
        self._microbatches = space.microbatches_of(work.batch)
        self._rows: dict[int, Row | None] = {}
        self._least: dict[tuple[str, float, int, int, int], float | None] = {}
        self._priced_encoders: dict[tuple[int, Shape, int], list[EncoderPrice]] = {}
        self._apart: dict[tuple[int, int], list[EncoderPrice]] = {}
        self._colocated: dict[tuple[int, str], list[Together]] = {}

    def budgets(self) -> list[int]:
        """Numbers of GPUs that a plan may use, the largest first."""
        return self.pool.budgets(every=self.space.every_budget)[::-1]

    def shares(self) -> list[int]:
        """Numbers of GPUs that a module beside others may use, the largest first."""
        return self.pool.shares(every=self.space.every_budget)[::-1]

    def pipelines(self, module: str, gpus: int, cutoff_s: Cutoff) -> Iterator[Pipelines]:
        """A module on every mesh of some GPUs, for all numbers of microbatches that may be good.

        Args:
            module: `backbone`, or `model` for encoders and backbone in one.
            gpus: GPUs of the mesh.
            cutoff_s: The cutoff of each mesh.
        """
        shapes = backbone_shapes(
            self.model,
            self.space,
            self.pool,
            gpus=gpus,
            blocks=self._chain("backbone", 1).num_blocks,
            modules=(*self._encoders, "backbone") if module == "model" else ("backbone",),
        )
        for shape in shapes:
            found = self._pipelines(Pipelines, module, shape, self._microbatches, cutoff_s)
            if found is not None:
                yield found

    def pipeline(self, module: str, shape: Shape, microbatches: int) -> Pipeline:
        """One of them.

        Args:
            module: As for `pipelines`.
            shape: Its mesh.
            microbatches: Its microbatches.
        """
        found = self._pipelines(Pipeline, module, shape, [microbatches], _without_cutoff)
        assert found is not None
        return found

    def any_promising(self, pipelines: Pipelines, steps_s: FloatArray, cutoff_s: Cutoff) -> bool:
        """Whether any number of microbatches may be good; if not, all are counted.

        Args:
            pipelines: A module.
            steps_s: As for `promising`.
            cutoff_s: The cutoff of each mesh.
        """
        cutoffs = [cutoff_s(pipelines.shape, int(count)) for count in pipelines.microbatches]
        if (steps_s < numpy.array(cutoffs)).any():
            return True
        fits = int(numpy.isfinite(steps_s).sum())
        self.counts["bounded"] += fits
        self.counts["memory"] += len(steps_s) - fits
        return False

    def promising(
        self, pipelines: Pipelines, steps_s: FloatArray, cutoff_s: Cutoff
    ) -> Iterator[tuple[int, float]]:
        """Microbatches and bounds of those that may be good; the others are counted.

        Args:
            pipelines: A module.
            steps_s: Lower bounds of the steps, shape [num_rows]; infinite where nothing fits.
            cutoff_s: The cutoff of each mesh.
        """
        cutoffs = [cutoff_s(pipelines.shape, int(count)) for count in pipelines.microbatches]
        fits, good = numpy.isfinite(steps_s), steps_s < numpy.array(cutoffs)
        self.counts["memory"] += int((~fits).sum())
        self.counts["bounded"] += int((fits & ~good).sum())
        for number in numpy.flatnonzero(fits & good):
            yield int(pipelines.microbatches[number]), float(steps_s[number])

    def _pipelines(
        self,
        kind: type[P],
        module: str,
        shape: Shape,
        microbatches: Sequence[int],
        cutoff_s: Cutoff,
    ) -> P | None:
        rows, counts, sizes = [], [], []
        # Computing alone: a microbatch through all stages, the others, and the heaviest sample.
        waits = heaviest_waits(
            self._chain(module, shape.mesh.tp), shape, numpy.array(microbatches, numpy.float64)
        )
        passes = (waits + numpy.array(microbatches) + shape.mesh.pp - 1).tolist()
        for count, least in zip(microbatches, passes, strict=True):
            row = self._row(shape.mesh.dp * count)
            if row is None:
                continue
            seconds = self._least_seconds(module, row, shape)
            if seconds is None:
                self.counts["range"] += 1
                continue
            if least * seconds * (1 - _ROUNDING) >= cutoff_s(shape, count):
                self.counts["bounded"] += 1
                continue
            rows.append(row)
            counts.append(count)
            size = sum(
                self.work.itemsize * encoder.row_width * most
                for encoder, most in zip(self.model.encoders, row.most_encoded, strict=True)
            )
            sizes.append(size / (shape.mesh.tp * shape.mesh.cp) if module == "backbone" else 0.0)
        if not rows:
            return None
        return kind(
            self._chain(module, shape.mesh.tp),
            shape,
            rows,
            microbatches=counts,
            pool=self.pool,
            rules=self.rules,
            rows_bytes=sizes,
            levels=self.space.recompute,
        )

    def _chain(self, module: str, tp: int) -> Chain:
        """Layers of a module, those of towers with heads that tensor parallelism divides."""
        factors = tuple(padding(encoder.heads, tp) for encoder in self.model.encoders)
        if module == "backbone" or max(factors, default=1.0) == 1:
            factors = ()
        if (module, factors) not in self._chains:
            tables = self.tables
            if factors:
                if factors not in self._padded:
                    larger = padded(self.model, tp)
                    self._padded[factors] = Tables(larger, self.work, self.pool.timing)
                tables = self._padded[factors]
            self._chains[module, factors] = Chain(tables, self.model.layers_of(module))
        return self._chains[module, factors]

    def _row(self, parts: int) -> Row | None:
        """A row of one of so many equal parts of a step."""
        if parts not in self._rows:
            self._rows[parts] = row_of(self.model, self.work, self.rules, parts=parts)
        return self._rows[parts]

    def _least_seconds(self, module: str, row: Row, shape: Shape) -> float | None:
        """Computing alone, of an even stage; None if the times are not valid for the row."""
        mesh = shape.mesh
        key = (module, row.tokens, mesh.tp, mesh.cp, mesh.ep)
        if key not in self._least:
            chain = self._chain(module, mesh.tp)
            try:
                passes = chain.tables.row_passes(row, mesh)
            except ValueError as error:
                self.out_of_range = str(error)
                self._least[key] = None
            else:
                self._least[key] = float(passes[:2].sum(0) @ chain.layers_of_kind)
        seconds = self._least[key]
        return None if seconds is None else seconds / mesh.pp

    def colocated_encoders(self, gpus: int, sharding: str) -> list[Together]:
        """Encoders that run on all ranks of a backbone before its pipeline, one after the other.

        Those that another one beats in time and memory are left out. The shortest is first.
        """
        key = (gpus, sharding)
        if key not in self._colocated:
            found = [Together()]
            for place, encoder in enumerate(self.model.encoders):
                prices = []
                for shape in encoder_shapes(encoder, self.space, self.pool, gpus=gpus):
                    if shape.sharding == sharding or shape.mesh.dp == 1:
                        prices += self._priced(place, shape, groups=1, cutoff_s=math.inf)
                own = _not_beaten([Together((price,)) for price in prices])
                found = _not_beaten([one.beside(two) for one in found for two in own])
            self._colocated[key] = found
        return self._colocated[key]

    def encoders(self, encoder: int, *, microbatches: int, cutoff_s: float) -> list[EncoderPrice]:
        """An encoder on ranks of its own, in all layouts that may be good.

        Args:
            encoder: Its number.
            microbatches: Microbatches of the step, for each of which it encodes the inputs.
            cutoff_s: Steps at least as long are of no interest; no longer than in the calls before.
        """
        key = (encoder, microbatches)
        if key not in self._apart:
            shapes = encoder_shapes(self.model.encoders[encoder], self.space, self.pool)
            self._apart[key] = [
                price
                for shape in shapes
                for price in self._priced(encoder, shape, groups=microbatches, cutoff_s=cutoff_s)
            ]
        return self._apart[key]

    def _priced(
        self, encoder: int, shape: Shape, *, groups: int, cutoff_s: float
    ) -> list[EncoderPrice]:
        """An encoder that keeps its activations, and the same one that runs forward again."""
        own = self.model.encoders[encoder]
        encoded = self.work.share.encoded[own.modality]
        tokens = self.work.batch * encoded.tokens / (groups * shape.mesh.dp)
        chain = self._chain(own.name, shape.mesh.tp)
        key = (encoder, shape, groups)
        try:
            least = least_s(chain, shape, encoder=encoder, tokens=tokens, groups=groups)
            if groups * least >= cutoff_s:
                return []
            if key not in self._priced_encoders:
                self._priced_encoders[key] = encoder_prices(
                    chain,
                    shape,
                    encoder=encoder,
                    tokens=tokens,
                    groups=groups,
                    pool=self.pool,
                    rules=self.rules,
                )
        except ValueError as error:
            self.out_of_range = str(error)
            self.counts["range"] += 1
            return []
        return self._priced_encoders[key]

    def of_budget(self, gpus: int) -> Context:
        """The same model on another number of the same GPUs, with the prices known so far."""
        return self._on(replace(self.pool, gpus=gpus))

    def of_memory(self, memory_bytes: int) -> Context:
        """The same model on GPUs with another memory, with the prices known so far."""
        return self._on(replace(self.pool, memory_bytes=memory_bytes))

    def with_work(self, work: Work) -> Context:
        """The same model on the same GPUs for another step."""
        return Context(self.model, work, self.pool, self.space, self.rules)

    def _on(self, pool: GpuPool) -> Context:
        other = Context(self.model, self.work, pool, self.space, self.rules)
        other.tables, other._chains, other._padded = self.tables, self._chains, self._padded
        other._priced_encoders, other._least = self._priced_encoders, self._least
        other._rows = self._rows
        return other


def _without_cutoff(shape: Shape, microbatches: int) -> float:
    return math.inf


def _not_beaten(found: list[Together]) -> list[Together]:
    found = sorted(found, key=lambda each: each.once_s)
    values = [
        (each.once_s, each.held_bytes, each.held_bytes + each.working_bytes) for each in found
    ]
    return [found[number] for number in not_beaten(numpy.array(values).reshape(-1, 3).T)]

"""What a search knows: the model on a pool of GPUs, and prices of its modules there."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy

from flowtrain.cost.communication import Mesh
from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.padding import padded, padding
from flowtrain.plan.prices.chain import Chain
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.encoder import Chunks, EncoderPrice, encoder_prices, least_s
from flowtrain.plan.prices.pipeline import Pipeline, Pipelines, heaviest_waits
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.search.candidates import backbone_shapes, encoder_shapes, row_of
from flowtrain.plan.search.cutoffs import Cutoffs
from flowtrain.plan.search.together import Together, together
from flowtrain.plan.space import GpuPool, Rules, Space
from flowtrain.plan.work import Work

P = TypeVar("P", bound=Pipelines)

_ROUNDING = 1e-9


Beside = Callable[[Shape, FloatArray, FloatArray], FloatArray]
"""Lower bounds of steps with encoders, shape [num_rows], from a mesh of the backbone, microbatches,
and lower bounds of its own steps; infinite where no encoder fits."""


@dataclass(frozen=True, slots=True, eq=False)
class _Computing:
    """Computing alone of a module on a mesh, for the numbers of microbatches that it may have.

    Attributes:
        microbatches: Numbers for which there are samples, and for which times are valid.
        seconds: Seconds of one microbatch through all stages, for each of them.
        outside: How many others have times that are not valid.
        least_s: The least seconds of all microbatches of a step; infinite without any.
    """

    microbatches: FloatArray
    seconds: FloatArray
    outside: int
    least_s: float


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
        self._least: dict[tuple[str, int, int, int, int], _Computing] = {}
        self._priced_encoders: dict[Hashable, list[EncoderPrice]] = {}
        self._apart: dict[tuple[int, int], list[EncoderPrice]] = {}
        self._colocated: dict[int, list[Together]] = {}

    def budgets(self) -> list[int]:
        """Numbers of GPUs that a plan may use, the largest first."""
        return self.pool.budgets(every=self.space.every_budget)[::-1]

    def shares(self) -> list[int]:
        """Numbers of GPUs that a module beside others may use, the largest first."""
        return self.pool.shares(every=self.space.every_budget)[::-1]

    def in_flight(self, microbatches: int, stages: int) -> int:
        """Microbatches of which an encoder on its own holds the inputs.

        FlowTrain's runs encode all of a step first, and a pipeline as many as it has stages, and
        one. An encoder that has no backward pass holds the rows that it has not sent.
        """
        if self.space.runtime.encodes_steps and self.tables.gradient[self.tables.vision].any():
            return microbatches
        return min(microbatches, stages + 1)

    def pipelines(
        self, module: str, gpus: int, cutoffs: Cutoffs, beside: Beside | None = None
    ) -> Iterator[Pipelines]:
        """A module on every mesh of some GPUs, for all numbers of microbatches that may be good.

        Args:
            module: `backbone`, or `model` for encoders and backbone in one.
            gpus: GPUs of the mesh.
            cutoffs: Steps that are of no interest.
            beside: What encoders add; None adds nothing.
        """
        shapes = backbone_shapes(
            self.model,
            self._space_of(module),
            self.pool,
            gpus=gpus,
            blocks=self._chain("backbone", 1).num_blocks,
            modules=(*self._encoders, "backbone") if module == "model" else ("backbone",),
        )
        for shape in shapes:
            microbatches = self._promising_microbatches(module, shape, cutoffs, beside)
            if microbatches:
                yield self._pipelines(Pipelines, module, shape, microbatches)

    def _space_of(self, module: str) -> Space:
        """The space without what a module has no use for: states to divide where nothing trains.

        States in host memory are divided, unless the sharding is fixed.
        """
        parts = {self.model.layers[number].part for number in self.model.layers_of(module)}
        if parts & set(self.work.trained):
            if not self.work.optim.offload:
                return self.space
            own = {module, "backbone"} if module == "model" else {module}
            fixed = any(e.field == "sharding" and e.module in own for e in self.space.fixed)
            divided = [each for each in self.space.sharding if fixed or each != "replicated"]
            sharding = tuple(divided) or self.space.sharding
            return replace(self.space, sharding=sharding, offload=True)
        useful = tuple(each for each in self.space.sharding if each != "optimizer")
        return replace(self.space, sharding=useful or ("replicated",))

    def pipeline(self, module: str, shape: Shape, microbatches: int) -> Pipeline:
        """One of them.

        Args:
            module: As for `pipelines`.
            shape: Its mesh.
            microbatches: Its microbatches.
        """
        return self._pipelines(Pipeline, module, shape, [microbatches])

    def any_promising(self, pipelines: Pipelines, steps_s: FloatArray, cutoffs: Cutoffs) -> bool:
        """Whether any number of microbatches may be good; if not, all are counted.

        Args:
            pipelines: A module.
            steps_s: As for `promising`.
            cutoffs: Steps that are of no interest.
        """
        if len(cutoffs.below(steps_s, pipelines.shape, pipelines.microbatches)):
            return True
        self._count(steps_s, 0)
        return False

    def promising(
        self, pipelines: Pipelines, steps_s: FloatArray, cutoffs: Cutoffs
    ) -> Iterator[tuple[int, float]]:
        """Microbatches and bounds of those that may be good; the others are counted.

        Args:
            pipelines: A module.
            steps_s: Lower bounds of the steps, shape [num_rows]; infinite where nothing fits.
            cutoffs: Steps that are of no interest.
        """
        good = cutoffs.below(steps_s, pipelines.shape, pipelines.microbatches)
        self._count(steps_s, len(good))
        for number in good:
            yield int(pipelines.microbatches[number]), float(steps_s[number])

    def _promising_microbatches(
        self, module: str, shape: Shape, cutoffs: Cutoffs, beside: Beside | None
    ) -> list[int]:
        """Numbers of microbatches that may be good by computing alone; the others are counted."""
        found, mesh = self._computing(module, shape.mesh), shape.mesh
        if found.outside:
            self.counts["range"] += found.outside
        if found.least_s / mesh.pp * (1 - _ROUNDING) >= cutoffs.any_s:
            self.counts["bounded"] += len(found.seconds)
            return []
        # A microbatch through all stages, the others, and the heaviest sample.
        waits = heaviest_waits(self._chain(module, mesh.tp), shape, found.microbatches)
        passes = waits + found.microbatches + mesh.pp - 1
        steps_s = passes * (found.seconds / mesh.pp)
        if beside is not None:
            steps_s = beside(shape, found.microbatches, steps_s)
        good = cutoffs.below(steps_s * (1 - _ROUNDING), shape, found.microbatches)
        self._count(steps_s, len(good))
        return [int(found.microbatches[number]) for number in good]

    def _count(self, steps_s: FloatArray, good: int) -> None:
        """Count those of some candidates that are not good."""
        fits = int(numpy.isfinite(steps_s).sum())
        self.counts["memory"] += len(steps_s) - fits
        self.counts["bounded"] += fits - good

    def _pipelines(
        self, kind: type[P], module: str, shape: Shape, microbatches: Sequence[int]
    ) -> P:
        rows, sizes = [], []
        for count in microbatches:
            row = self._row(shape.mesh.dp * count)
            assert row is not None
            rows.append(row)
            size = sum(
                self.work.itemsize * encoder.row_width * most
                for encoder, most in zip(self.model.encoders, row.most_encoded, strict=True)
            )
            sizes.append(size / (shape.mesh.tp * shape.mesh.cp) if module == "backbone" else 0.0)
        return kind(
            self._chain(module, shape.mesh.tp),
            shape,
            rows,
            microbatches=microbatches,
            pool=self.pool,
            rules=self.rules,
            rows_bytes=sizes,
            levels=self.space.levels,
            whole_encoders=self.space.runtime.whole_encoders,
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

    def _computing(self, module: str, mesh: Mesh) -> _Computing:
        """Computing alone, for all numbers of microbatches; stages make no difference."""
        key = (module, mesh.tp, mesh.cp, mesh.ep, mesh.dp)
        if key not in self._least:
            chain = self._chain(module, mesh.tp)
            counts, seconds, outside = [], [], 0
            for count in self._microbatches:
                row = self._row(mesh.dp * count)
                if row is None:
                    continue
                try:
                    passes = chain.tables.row_passes(row, mesh)
                except ValueError as error:
                    self.out_of_range = str(error)
                    outside += 1
                    continue
                counts.append(count)
                seconds.append(float(passes[:2].sum(0) @ chain.layers_of_kind))
            found = numpy.array([counts, seconds], numpy.float64)
            least_s = float((found[0] * found[1]).min(initial=math.inf))
            self._least[key] = _Computing(found[0], found[1], outside, least_s)
        return self._least[key]

    def colocated_encoders(self, gpus: int) -> list[Together]:
        """Encoders that run on all ranks of a backbone before its pipeline, one after the other.

        Those that another one beats in time and memory are left out. The shortest is first.
        """
        if gpus not in self._colocated:
            self._colocated[gpus] = together(
                self._shapes_on(gpus),
                lambda place, shape: self._priced(place, shape, groups=1, cutoff_s=math.inf),
            )
        return self._colocated[gpus]

    def chunked_encoders(
        self, shape: Shape, microbatches: int, chunk_slots: int, *, cutoff_s: float
    ) -> list[Together]:
        """The same of a backbone that is computed some slots at a time.

        Args:
            shape: Its mesh, without stages.
            microbatches: Its slots.
            chunk_slots: Slots that are computed at a time.
            cutoff_s: Encoders that take as long at least are of no interest.
        """
        row = self._row(shape.mesh.dp * microbatches)
        assert row is not None

        def priced(place: int, own: Shape) -> list[EncoderPrice]:
            whole = self._priced(place, own, groups=1, cutoff_s=math.inf)
            if not whole or whole[0].once_s >= cutoff_s:
                return []  # By chunks they take no less.
            modality = self.model.encoders[place].modality
            # Slots of all replicas of the backbone, over those of the encoder.
            slots = chunk_slots * shape.mesh.dp / own.mesh.dp
            chunks = Chunks(
                count=math.ceil(microbatches / chunk_slots),
                most_tokens=self.work.most_of(slots * row.most_tokens, modality),
                meets=own.meets or shape.meets or own.mesh.dp != shape.mesh.dp,
            )
            return self._priced(place, own, groups=1, cutoff_s=math.inf, chunks=chunks)

        return together(self._shapes_on(shape.gpus), priced, chunk_slots)

    def _shapes_on(self, gpus: int) -> list[list[Shape]]:
        """Meshes of each encoder on a number of GPUs."""
        return [
            list(encoder_shapes(encoder, self._space_of(encoder.name), self.pool, gpus=gpus))
            for encoder in self.model.encoders
        ]

    def encoders(self, encoder: int, *, microbatches: int, cutoff_s: float) -> list[EncoderPrice]:
        """An encoder on ranks of its own, in all layouts that may be good.

        Args:
            encoder: Its number.
            microbatches: Microbatches of the step, for each of which it encodes the inputs.
            cutoff_s: Steps at least as long are of no interest; no longer than in the calls before.
        """
        key = (encoder, microbatches)
        if key not in self._apart:
            own = self.model.encoders[encoder]
            shapes = encoder_shapes(own, self._space_of(own.name), self.pool)
            self._apart[key] = [
                price
                for shape in shapes
                for price in self._priced(encoder, shape, groups=microbatches, cutoff_s=cutoff_s)
            ]
        return self._apart[key]

    def _priced(
        self,
        encoder: int,
        shape: Shape,
        *,
        groups: int,
        cutoff_s: float,
        chunks: Chunks | None = None,
    ) -> list[EncoderPrice]:
        """An encoder that keeps its activations, and the same one that runs forward again."""
        own = self.model.encoders[encoder]
        encoded = self.work.share.encoded[own.modality]
        tokens = self.work.batch * encoded.tokens / (groups * shape.mesh.dp)
        chain = self._chain(own.name, shape.mesh.tp)
        # Pools of other sizes, with which prices are shared, may have another link for the rows.
        key = (encoder, shape, groups, chunks, self.pool.rows_link)
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
                    chunks=chunks,
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
        """The same model on GPUs with another memory, with the prices known so far.

        It leaves out the encoders that were of no interest to this one.
        """
        other = self._on(replace(self.pool, memory_bytes=memory_bytes))
        other._apart, other._colocated = self._apart, self._colocated
        return other

    def with_work(self, work: Work) -> Context:
        """The same model on the same GPUs for another step."""
        return Context(self.model, work, self.pool, self.space, self.rules)

    def _on(self, pool: GpuPool) -> Context:
        other = Context(self.model, self.work, pool, self.space, self.rules)
        other.tables, other._chains, other._padded = self.tables, self._chains, self._padded
        other._priced_encoders, other._least = self._priced_encoders, self._least
        other._rows = self._rows
        return other

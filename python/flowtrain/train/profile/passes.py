"""Passes of encoder and backbone on a shape, as a rank computes them, with the time of layers."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import torch

from flowtrain.config.model import Part
from flowtrain.config.schema import RunConfig
from flowtrain.cost.profiled import Record, Sample, Update, kinds_of
from flowtrain.models.compiled import compile_blocks, takes_attention
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.family import Family
from flowtrain.models.registry import family_for
from flowtrain.train.control.exchange import StepDecision
from flowtrain.train.profile.clock import Clock
from flowtrain.train.profile.probe import Probe
from flowtrain.train.profile.shapes import ImagesShape, RowShape, Shape
from flowtrain.train.ranks.batch import packed_batch
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.trained import Trained

_DECISION = StepDecision(
    action="apply", scale=0.5, loss=0.0, grad_norm=1.0, num_targets=1, seconds={}
)
"""A step whose gradients are clipped."""


class Passes:
    """The model of a run on a device, and measured passes of it.

    The projector is computed with the encoder, where its modules are called as such.

    Args:
        config: The run.
        device: Device of the model.
        shallow: Folder of a model with fewer layers that is built instead, as `write_shallow`
            writes it; layers are still those of the run's model.

    Attributes:
        family: Family of the model.
        layers: Layers of the whole model.
        repeats: Layers of each kind in the model that is built.
    """

    def __init__(
        self, config: RunConfig, device: torch.device, *, shallow: Path | None = None
    ) -> None:
        self._config = config
        self._device = device
        self._dtype = DTYPES[config.model.pass_dtype]
        whole = family_for(config.model.folder, projector_side="encoder")
        self._whole_sizes = self._part_sizes(whole)
        self.layers = whole.layers
        self.family: Family = whole
        if shallow is not None:
            self.family = family_for(shallow, projector_side="encoder")
        built = self.family.layers
        self.kinds = kinds_of(built, self.layers)
        self.repeats = dict(Counter(self.kinds.values()))
        self._model = self.family.build(
            "full",
            weights=config.model.path if shallow is None else None,
            seed=config.train.seed,
            dtype=self._dtype,
            device=device,
        )
        if config.model.compile:
            attention = takes_attention(device, self._dtype)
            compile_blocks(self.family, self._model, attention=attention)
        self.processor = self.family.image_processor()
        self._modules = self._with_optimizers(config)
        self._trainable = [p for m in self._modules.values() for p in m.trainable]
        self._clock = Clock(device)
        self._probe = Probe(self._model, built, self.kinds, self._clock)

    @property
    def joins(self) -> bool:
        """Whether documents of different lengths are separate calls of the attention."""
        return self._device.type == "cpu" or self._dtype not in (torch.float16, torch.bfloat16)

    def record(self, shape: Shape) -> Record:
        """An empty record of a shape."""
        return Record(counts=shape.counts(self.family), documents=shape.lengths, samples=[])

    def sample(self, shape: Shape) -> Sample:
        """Measure the passes of a shape once."""
        run = self._images if isinstance(shape, ImagesShape) else self._row
        forward, backward = run(shape)  # type: ignore[arg-type]
        self._drop_gradients()
        with self._frozen():
            _, backward_input = run(shape)  # type: ignore[arg-type]
        return Sample(forward=forward, backward=backward, backward_input=backward_input)

    def _images(self, shape: ImagesShape) -> tuple[dict[str, float], dict[str, float]]:
        sizes = [self.processor.pixel_shape(image.grid) for image in shape.images]
        pixels = torch.cat([torch.randn(size) for size in sizes])
        clock, rest = self._clock, self.kinds[self.layers[0].name]
        with self._probe.passes(rest):
            clock.start(rest)
            rows = self.family.encode(
                self._model, pixels.to(self._device, self._dtype), shape.grids
            )
            forward = clock.stop()
            gradient = torch.randn_like(rows)
            clock.start(rest)
            rows.backward(gradient)
            backward = clock.stop()
        return forward, backward

    def _row(self, shape: RowShape) -> tuple[dict[str, float], dict[str, float]]:
        documents, text = shape.inputs(self.family)
        rows = shape.count * shape.image.tokens if shape.image else 0
        encoded = torch.randn(rows, self.family.row_width, dtype=self._dtype, device=self._device)
        rest = next(la.name for la in self.layers if la.part == "backbone")
        clock = self._clock
        with self._probe.passes(rest):
            clock.start(rest)
            features = None
            if rows:
                features = torch.empty_like(encoded)
                features.copy_(encoded)
                features.requires_grad_()
            batch = packed_batch(self.family, documents, text, device=self._device)
            out = self.family.loss(self._model, batch, features)
            loss = out.loss_sum / out.num_targets
            forward = clock.stop()
            # Behind the last layer's output is the loss.
            clock.start(self.kinds[self.layers[-1].name])
            loss.backward()
            float(out.loss_sum.detach())
            backward = clock.stop()
        return forward, backward

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Within the block no weight trains, and layers pass gradients to their inputs."""
        for parameter in self._trainable:
            parameter.requires_grad_(False)
        self._probe.gives_gradients = True
        try:
            yield
        finally:
            self._probe.gives_gradients = False
            for parameter in self._trainable:
                parameter.requires_grad_(True)

    def _drop_gradients(self) -> None:
        for parameter in self._trainable:
            parameter.grad = None

    def _with_optimizers(self, config: RunConfig) -> dict[Part, ModuleState]:
        """Each part of the model as a module of its own, which trains in any case."""
        # A run has as many steps as its schedule, and a session any number.
        optim = replace(config.optim, schedule="constant", warmup_steps=0)
        everything = Trained(get_args(Part), optim)
        part_of = self.family.part_of

        def lies_in(part: Part, name: str) -> bool:
            return part_of(name) == part

        return {
            part: ModuleState.build(
                self._model,
                everything,
                dtype=self._dtype,
                steps=config.schedule_steps,
                part_of=part_of,
                holds=partial(lies_in, part),
            )
            for part in get_args(Part)
        }

    def updates(self, images: ImagesShape, row: RowShape, *, rounds: int) -> dict[str, Update]:
        """Measure the optimizer on each part of the model, in interleaved rounds.

        A model with fewer layers than the run's stands for it by the number of parameters.

        Args:
            images: Encoded before each round, so that caches are as in a step.
            row: The same for the backbone.
            rounds: Number of rounds.
        """
        found: dict[Part, list[tuple[float, float]]] = {part: [] for part in self._modules}
        for _ in range(rounds + 1):
            self._images(images)
            self._row(row)
            for part, module in self._modules.items():
                found[part].append(self._update(module))
        updates: dict[str, Update] = {}
        for part, times in found.items():
            whole = self._whole_sizes[part]
            built = sum(parameter.numel() for parameter in self._modules[part].trainable)
            # The first step creates the state of the optimizer.
            step, added = (statistics.median(kind) for kind in zip(*times[1:], strict=True))
            updates[part] = Update(
                parameters=whole, seconds=step * whole / built, accumulate_s=added * whole / built
            )
        return updates

    @staticmethod
    def _part_sizes(family: Family) -> dict[str, int]:
        """Values of each part of the model that can train."""
        sizes: Counter[str] = Counter()
        for name, size in family.trainable_sizes().items():
            sizes[family.part_of(name)] += size
        return sizes

    def _update(self, module: ModuleState) -> tuple[float, float]:
        """Seconds of a step of the optimizer, and of adding gradients to those of before."""
        clock = self._clock
        gradients = [p.grad for p in module.trainable if p.grad is not None]
        clock.start("step")
        module.norm()
        module.apply(_DECISION, saw_images=True)
        step = clock.stop()["step"]
        more = [torch.randn_like(gradient) for gradient in gradients]
        clock.start("add")
        for gradient, other in zip(gradients, more, strict=True):
            gradient += other
        return step, clock.stop()["add"]

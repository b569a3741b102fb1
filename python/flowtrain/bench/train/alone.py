"""One module without the other, on the plans of a finished run of `flowtrain train`.

    python -m flowtrain.bench.train.alone RUN --module backbone --out figures.json

The backbone takes image rows from memory, and the encoder's rows go nowhere. Everything else is as
in the run: microbatches, items, texts and images read by a process of its own, optimizer. Prints a
line when it is ready, and begins when it has read one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from flowtrain.config.layout import ModuleName
from flowtrain.config.load import load
from flowtrain.config.schema import RunConfig
from flowtrain.data.pixel_maker import PixelMaker
from flowtrain.data.text import joined
from flowtrain.data.workers import WorkerPool
from flowtrain.events import EventLog
from flowtrain.models.compiled import compile_blocks, takes_attention
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.recompute import recompute_blocks
from flowtrain.models.registry import family_for
from flowtrain.models.sides import Backbone
from flowtrain.steps import CorrectionEvent, Document, PlannedImage, StepPlan
from flowtrain.train.assembly.reads import reading_of
from flowtrain.train.control.exchange import StepDecision
from flowtrain.train.input.prefetch import Prefetch, Request
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.ranks.batch import packed_batch
from flowtrain.train.ranks.encoder import pixel_requests
from flowtrain.train.state.logs import PLANS
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.trained import Trained


def text_requests(rank: int, plan: StepPlan) -> Iterator[Request]:
    """Samples that the backbone of a rank trains on."""
    for _, documents in plan.documents_of(rank):
        yield from map(text_request, documents)


def text_request(document: Document) -> Request:
    """Read of a document's tokens, which LM-only training needs."""
    return "text", (document.sample, document.grids)


REQUESTS: dict[str, Callable[[int, StepPlan], Iterable[Request]]] = {
    "backbone": text_requests,
    "encoder": pixel_requests,
}


class Alone:
    """One module of a run with one rank of each, trained without the other.

    Args:
        config: The run.
        name: `backbone` or `encoder`.
        plans: Its plans.
        prefetch: Reads of the planned samples.
    """

    def __init__(
        self, config: RunConfig, name: str, plans: dict[int, StepPlan], prefetch: Prefetch
    ) -> None:
        self._family = family_for(config.model.folder, projector_side=config.projector_side)
        self._mode = config.flow.mode
        self._recomputes = config.flow.recompute
        self._each_alone = config.flow.cache.path is not None
        self._clip_norm = config.optim.clip_norm
        self._prefetch = prefetch
        self._pixels = PixelMaker(self._family)
        self._device = torch.device(config.model.device)
        self._dtype = DTYPES[config.model.pass_dtype]
        side: ModuleName = "backbone" if name == "backbone" else "encoder"
        model = self._family.build(
            side,
            weights=config.model.path,
            seed=config.train.seed,
            dtype=self._dtype,
            device=self._device,
        )
        recompute_blocks(self._family, model, config.parallel.of(side))
        if config.model.compile:
            level = config.parallel.of(side).recompute
            attention = takes_attention(self._device, self._dtype, level)
            compile_blocks(self._family, model, attention=attention)
        if isinstance(model, Backbone):
            model.logit_bytes = config.train.logit_bytes
        self._module = ModuleState.build(
            model,
            Trained(config.trained_parts, config.optim),
            dtype=self._dtype,
            steps=config.schedule_steps,
            part_of=self._family.part_of,
        )
        tokens = max(sum(item.num_rows for item in plan.items) for plan in plans.values())
        self._noise = torch.randn(
            tokens, self._family.row_width, dtype=self._dtype, device=self._device
        )
        self.step = self._backbone if name == "backbone" else self._encoder

    @property
    def _frozen_encoder(self) -> bool:
        return self._mode == "frozen"

    def _backbone(self, plan: StepPlan) -> None:
        for slot, documents in plan.documents_of(0):
            texts = [self._prefetch.get(plan.step, text_request(doc)) for doc in documents]
            batch = packed_batch(self._family, documents, joined(texts), device=self._device)
            tokens = sum(item.num_rows for item in plan.items_for(0, slot))
            rows = self._noise[:tokens].detach().requires_grad_(not self._frozen_encoder)
            out = self._module.module(batch, rows if tokens else None)
            if out.loss_sum.requires_grad:
                (out.loss_sum / plan.num_targets).backward()
        self._update()

    def _encoder(self, plan: StepPlan) -> None:
        graphs = []
        for planned in self._encoded_together(plan):
            images = [self._prefetch.get(plan.step, ("pixels", image)) for image in planned]
            grids = [image.grid for image in planned]
            pixels = self._pixels(images, grids, dtype=self._dtype, device=self._device)
            encode = partial(self._module.module, pixels, grids)
            keeps_graph = not (self._frozen_encoder or self._recomputes)
            with torch.set_grad_enabled(keeps_graph):
                rows = encode()
            if keeps_graph:
                graphs.append(lambda rows=rows: rows)
            elif not self._frozen_encoder:
                graphs.append(encode)  # Encoded again for the backward, as in the run.
        for make in graphs:
            rows = make()
            rows.backward(self._noise[: len(rows)])
        self._update()

    def _encoded_together(self, plan: StepPlan) -> Iterator[Sequence[PlannedImage]]:
        """Images that the run encodes together."""
        for item in plan.items:
            yield from [[image] for image in item.images] if self._each_alone else [item.images]

    def _update(self) -> None:
        norm = self._module.norm()
        clip = self._clip_norm
        scale = clip / norm if clip is not None and norm > clip else 1.0
        self._module.apply(
            StepDecision(
                action="apply", scale=scale, loss=0.0, grad_norm=norm, num_targets=0, seconds={}
            ),
            saw_images=True,
        )
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def run(config: RunConfig, name: str, *, steps: int | None = None) -> Iterator[float]:
    """Train one module; yields the seconds of each step, after a line was read.

    Args:
        config: The run.
        name: The module.
        steps: Steps to train; all of the run by default.
    """
    with WorkerPool(reading_of(config), config.data.workers, fork=True) as readers:
        torch.set_num_threads(config.train.threads or 1)
        lines = (config.run / PLANS).read_bytes().splitlines()
        read = (StepPlan.from_json(line) for line in lines if not CorrectionEvent.is_json_of(line))
        planned = (plan for plan in read if plan.kind == "train")
        plans = {plan.step: plan for plan in itertools.islice(planned, steps)}
        reads = SampleReads(readers, config.data.name, timeout_s=config.flow.timeout_s)
        prefetch = Prefetch(reads, plans.get, partial(REQUESTS[name], 0), EventLog())
        alone = Alone(config, name, plans, prefetch)
        print("ready", flush=True)
        sys.stdin.readline()
        before = time.perf_counter()
        for plan in plans.values():
            prefetch.start(plan)
            alone.step(plan)
            prefetch.forget(plan.step)
            yield -before + (before := time.perf_counter())


def main() -> None:
    """Train one module as the arguments say, and write the seconds of each step as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--module", choices=tuple(REQUESTS), required=True)
    parser.add_argument("--steps", type=int, help="first steps of the run (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()
    config = load(given.run / "config.yaml")
    seconds = list(run(config, given.module, steps=given.steps))
    given.out.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()

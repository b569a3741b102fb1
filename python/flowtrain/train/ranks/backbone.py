"""Backbone rank: records in, losses out, gradients of the records back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from flowtrain.models.adapter import PackedBatch
from flowtrain.plan import Document, EncoderItem, SpaceNeed, StepPlan
from flowtrain.train.control.close import Report
from flowtrain.train.input.prefetch import Prefetch, Request
from flowtrain.train.planning.planner import Planner
from flowtrain.train.ranks.context import (
    Delays,
    Module,
    Seat,
    build_closing,
    close_step,
    seed_dropout,
)
from flowtrain.train.ranks.metrics import Metrics, StepTiming
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain_core.edges import Explanation


class BackboneRank:
    """Carries out the planned slots of one backbone rank.

    Args:
        seat: This rank's place in the job.
        module: The backbone.
        prefetch: Tokens of planned samples.
        checkpoints: Where the backbone world saves its part.
        metrics: Log of the run; None on all ranks but the first.
        planner: Told of every closed step; None on all ranks but the first.
    """

    def __init__(
        self,
        seat: Seat,
        module: Module,
        prefetch: Prefetch,
        checkpoints: Checkpoints,
        *,
        metrics: Metrics | None,
        planner: Planner | None,
    ) -> None:
        flow = seat.config.flow
        self._seat = seat
        self._module = module
        self._prefetch = prefetch
        self._checkpoints = checkpoints
        self._metrics = metrics
        self._planner = planner
        self._closing = build_closing(seat)
        self._delays = Delays(seat.config, seat.world.label)
        self._returns = flow.mode != "frozen"
        self._granted = SpaceNeed(activation=0, gradient=0)
        self._closed_at = 0.0
        self._records = seat.receiver()
        self._gradients = seat.sender("encoder")

    def run(self, first: int) -> None:
        """Run from step `first` to the end of the plans."""
        self._closed_at = time.perf_counter()
        self._resize(self._seat.granted())
        plans = self._seat.plans
        step = first
        while (plan := plans.get(step)).kind == "train":
            self._step(plan)
            plans.forget(step)
            self._prefetch.forget(step)
            step += 1
        self._records.drain()
        self._gradients.drain()

    def edges(self) -> list[Explanation]:
        """What path the gradients took, and the activations."""
        return self._gradients.edges() + self._records.edges()

    def _step(self, plan: StepPlan) -> None:
        seat = self._seat
        waited = self._records.wait_s
        self._prefetch.step(plan)
        self._resize(seat.check_space(plan, self._granted))
        loss_sum, num_targets, num_skipped = 0.0, 0, 0
        ages = [0.0] * len(plan.items)
        for slot, documents in plan.documents_of(seat.world.rank):
            self._delays.pause()
            loss, targets, skipped = self._slot(plan, slot, documents, ages)
            loss_sum += loss
            num_targets += targets
            num_skipped += skipped
        waited = self._records.wait_s - waited
        sums = seat.world.sum([loss_sum, num_targets, waited, num_skipped, *ages])
        seat.world.sum_gradients(self._module.trained)
        report = Report(
            norm=self._module.norm(),
            checksum=plan.checksum(),
            loss_sum=sums[0],
            num_targets=int(sums[1]),
            wait_s=sums[2] / seat.world.size,
            lr=self._module.lr,
        )
        verdict = close_step(seat, self._closing, self._module, plan, report)
        if self._metrics is not None:
            now = time.perf_counter()
            timing = StepTiming(seconds=now - self._closed_at, pool=seat.pool.stats())
            self._closed_at = now
            self._metrics.step(
                plan,
                verdict,
                lr=verdict.lr,
                skipped=int(sums[3]),
                ages=[int(age) for age in sums[4:]],
                timing=timing,
            )
        self._checkpoints.after(plan, self._module)
        if self._planner is not None:
            self._planner.closed()

    def _slot(
        self, plan: StepPlan, slot: int, documents: Sequence[Document], ages: list[float]
    ) -> tuple[float, int, int]:
        """Forward and backward of one microbatch: loss sum, target tokens, skipped documents."""
        seat = self._seat
        seed_dropout(seat.config.train.seed, plan.step, seat.world.rank, slot)
        items = plan.items_for(seat.world.rank, slot)
        features, skipped = self._gather(plan, items, ages)
        batch = self._batch(plan.step, documents, skipped)
        out = seat.adapter.loss(self._module.module, batch, features)
        if out.loss_sum.requires_grad:
            (out.loss_sum / plan.num_targets).backward()
        if features is not None and self._returns:
            grad = features.grad if features.grad is not None else torch.zeros_like(features)
            for item in items:
                self._gradients.send(
                    grad[item.row : item.row + item.num_tokens],
                    reader=item.encoder,
                    step=plan.step,
                    item=item.index,
                    version=plan.step,
                )
        num_skipped = sum(doc.sample in skipped for doc in documents)
        return float(out.loss_sum.detach()), out.num_targets, num_skipped

    def _gather(
        self, plan: StepPlan, items: Sequence[EncoderItem], ages: list[float]
    ) -> tuple[torch.Tensor | None, set[int]]:
        """Image rows of a slot, a leaf that collects their gradient, and skipped samples."""
        if not items:
            return None, set()
        seat = self._seat
        rows = sum(item.num_tokens for item in items)
        features = torch.empty(
            (rows, seat.adapter.seam_width), dtype=seat.dtype, device=seat.world.device
        )
        skipped: set[int] = set()
        for item in items:
            out = features[item.row : item.row + item.num_tokens]
            key = self._records.gather(out, step=plan.step, item=item.index)
            ages[item.index] = float(plan.step - key.version)
            if key.skipped:
                skipped |= self._skipped(plan.step, item)
        return features.requires_grad_(self._returns), skipped

    def _skipped(self, step: int, item: EncoderItem) -> set[int]:
        """Samples of an item that have an image which could not be read."""
        name = f"skipped/{step}/{item.index}"
        board = self._seat.board
        samples = board.get(name, who=f"encoder.{item.encoder}")
        board.delete(name)
        return set(samples)

    def _batch(self, step: int, documents: Sequence[Document], skipped: set[int]) -> PackedBatch:
        """Documents side by side, each with positions of its own."""
        seat = self._seat
        texts = [self._prefetch.get(step, _text_of(doc)) for doc in documents]
        labels = [
            np.full_like(text.labels, -100) if doc.sample in skipped else text.labels
            for doc, text in zip(documents, texts, strict=True)
        ]
        device = seat.world.device
        positions = [
            seat.adapter.position_ids(
                torch.from_numpy(text.input_ids),
                torch.from_numpy(text.mm_token_type_ids),
                torch.tensor(doc.grids, dtype=torch.long).reshape(-1, 3),
            )
            for doc, text in zip(documents, texts, strict=True)
        ]
        return PackedBatch(
            input_ids=torch.from_numpy(np.concatenate([t.input_ids for t in texts])).to(device),
            labels=torch.from_numpy(np.concatenate(labels)).to(device),
            position_ids=torch.cat(positions, dim=1).to(device),
            doc_lengths=[doc.num_tokens for doc in documents],
        )

    def _resize(self, granted: SpaceNeed) -> None:
        if granted.gradient != self._gradients.slabs:
            self._gradients.reserve(granted.gradient)
        self._granted = granted


def wanted_texts(rank: int, plan: StepPlan) -> Iterator[Request]:
    """Samples that one backbone rank reads for a plan."""
    for _, documents in plan.documents_of(rank):
        for document in documents:
            yield _text_of(document)


def _text_of(document: Document) -> Request:
    return "text", (document.sample, document.num_tokens, document.grids)

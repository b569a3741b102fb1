"""Backbone rank: receives records, computes the loss, and sends back the records' gradients."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from flowtrain.models.adapter import PackedBatch
from flowtrain.steps import Document, EncoderItem, SpaceNeed, StepPlan
from flowtrain.train.control.close import StepReport
from flowtrain.train.input.prefetch import Prefetch, Request
from flowtrain.train.planning.planner import Planner
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.metrics import Metrics, StepTiming
from flowtrain.train.ranks.step import Delays, build_close, close_step, seed_dropout
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain.train.state.module import Module
from flowtrain_core.edges import Explanation


class BackboneRank:
    """Executes the planned slots of one backbone rank.

    Args:
        context: Configuration, connections and services of this rank.
        module: The backbone.
        prefetch: Reads of the planned samples' tokens.
        checkpoints: Saves the backbone's part of the checkpoints.
        metrics: Log of the run; None except on the first rank.
        planner: Told of each closed step; None except on the first rank.
    """

    def __init__(
        self,
        context: RankContext,
        module: Module,
        prefetch: Prefetch,
        checkpoints: Checkpoints,
        *,
        metrics: Metrics | None,
        planner: Planner | None,
    ) -> None:
        flow = context.config.flow
        self._context = context
        self._module = module
        self._prefetch = prefetch
        self._checkpoints = checkpoints
        self._metrics = metrics
        self._planner = planner
        self._close_exchange = build_close(context)
        self._delays = Delays(context.config, context.world.label)
        self._sends_gradients = flow.mode != "frozen"
        self._sizes = SpaceNeed(activation=0, gradient=0)
        self._closed_at = 0.0
        self._records = context.receiver()
        self._gradients = context.sender("encoder")

    def run(self, first: int) -> None:
        """Run from step `first` to the end of the plans."""
        self._closed_at = time.perf_counter()
        self._resize(self._context.segments.initial(self._context.plans.first_need()))
        plans = self._context.plans
        step = first
        while (plan := plans.get(step)).kind == "train":
            self._step(plan)
            plans.forget(step)
            self._prefetch.forget(step)
            step += 1
        self._records.drain()
        self._gradients.drain()

    def edges(self) -> list[Explanation]:
        """Edges of the gradients and of the activations."""
        return self._gradients.edges() + self._records.edges()

    def _step(self, plan: StepPlan) -> None:
        context = self._context
        waited = self._records.wait_s
        self._prefetch.start(plan)
        self._resize(context.segments.sizes_for(plan, self._sizes))
        loss_sum, num_targets, num_skipped = 0.0, 0, 0
        ages = [0.0] * len(plan.items)
        for slot, documents in plan.documents_of(context.world.rank):
            self._delays.pause()
            loss, targets, skipped = self._slot(plan, slot, documents, ages)
            loss_sum += loss
            num_targets += targets
            num_skipped += skipped
        waited = self._records.wait_s - waited
        sums = context.world.sum([loss_sum, num_targets, waited, num_skipped, *ages])
        context.world.sum_gradients(self._module.trainable)
        report = StepReport(
            norm=self._module.norm(),
            checksum=plan.checksum(),
            loss_sum=sums[0],
            num_targets=int(sums[1]),
            wait_s=sums[2] / context.world.size,
            lr=self._module.lr,
        )
        decision = close_step(context, self._close_exchange, self._module, plan, report)
        if self._metrics is not None:
            now = time.perf_counter()
            timing = StepTiming(seconds=now - self._closed_at, pool=context.pool.stats())
            self._closed_at = now
            self._metrics.step(
                plan,
                decision,
                lr=decision.lr,
                skipped=int(sums[3]),
                ages=[int(age) for age in sums[4:]],
                timing=timing,
            )
        self._checkpoints.save_if_due(plan, self._module)
        if self._planner is not None:
            self._planner.step_closed()

    def _slot(
        self, plan: StepPlan, slot: int, documents: Sequence[Document], ages: list[float]
    ) -> tuple[float, int, int]:
        """Forward and backward of one microbatch.

        Returns:
            Loss sum, number of target tokens, and number of skipped documents.
        """
        context = self._context
        seed_dropout(context.config.train.seed, plan.step, context.world.rank, slot)
        items = plan.items_for(context.world.rank, slot)
        features, skipped = self._gather(plan, items, ages)
        batch = self._batch(plan.step, documents, skipped)
        out = context.adapter.loss(self._module.module, batch, features)
        if out.loss_sum.requires_grad:
            (out.loss_sum / plan.num_targets).backward()
        if features is not None and self._sends_gradients:
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
        """Gather the image rows of a slot.

        Returns:
            Rows, a leaf tensor that collects their gradient, or None if the slot has no image; and
            the samples with a skipped image.
        """
        if not items:
            return None, set()
        context = self._context
        rows = sum(item.num_tokens for item in items)
        features = torch.empty(
            (rows, context.adapter.seam_width), dtype=context.dtype, device=context.world.device
        )
        skipped: set[int] = set()
        for item in items:
            out = features[item.row : item.row + item.num_tokens]
            key = self._records.gather(out, step=plan.step, item=item.index)
            ages[item.index] = float(plan.step - key.version)
            if key.skipped:
                skipped |= self._skipped(plan.step, item)
        return features.requires_grad_(self._sends_gradients), skipped

    def _skipped(self, step: int, item: EncoderItem) -> set[int]:
        """Samples of an item with a skipped image."""
        name = f"skipped/{step}/{item.index}"
        store = self._context.store
        samples = store.get(name, writer=f"encoder.{item.encoder}")
        store.delete(name)
        return set(samples)

    def _batch(self, step: int, documents: Sequence[Document], skipped: set[int]) -> PackedBatch:
        """Pack documents into one row; the positions of each start at 0."""
        context = self._context
        texts = [self._prefetch.get(step, _text_request(doc)) for doc in documents]
        labels = [
            np.full_like(text.labels, -100) if doc.sample in skipped else text.labels
            for doc, text in zip(documents, texts, strict=True)
        ]
        device = context.world.device
        positions = [
            context.adapter.position_ids(
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

    def _resize(self, sizes: SpaceNeed) -> None:
        if sizes.gradient != self._gradients.slabs:
            self._gradients.reserve(sizes.gradient)
        self._sizes = sizes


def text_requests(rank: int, plan: StepPlan) -> Iterator[Request]:
    """Samples that a backbone rank reads for a plan."""
    for _, documents in plan.documents_of(rank):
        for document in documents:
            yield _text_request(document)


def _text_request(document: Document) -> Request:
    return "text", (document.sample, document.num_tokens, document.grids)

"""The backbone's part of a rank: receives records, computes the loss, and returns gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flowtrain.data.text import CompactText
from flowtrain.models.family import LossOutput
from flowtrain.steps import Document, EncoderItem, SpaceNeed, StepPlan
from flowtrain.train.planning.texts import take_texts
from flowtrain.train.ranks.answers import greedy_answers
from flowtrain.train.ranks.batch import packed_batch
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.step import Delays, inference, seed_dropout
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.records.sender import RecordSender
from flowtrain.train.state.module import Module
from flowtrain_core.edges import Explanation


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSums:
    """Results of one step, on one rank or summed over the ranks.

    Attributes:
        loss_sum: Sum of the losses of the target tokens.
        num_targets: Target tokens, without those of skipped samples.
        num_skipped: Skipped samples.
        ages: For each item of the plan, the age in steps of the weights that encoded it; 0 on ranks
            that do not read the item.
        slot_seconds: Time of forward and backward of each slot, without waits, [rank][slot] in one
            row; 0 for the slots of other ranks. Empty if costs are not corrected.
    """

    loss_sum: float
    num_targets: float
    num_skipped: float
    ages: Sequence[float]
    slot_seconds: Sequence[float] = ()


class BackbonePart:
    """Executes the planned slots of one rank.

    Args:
        context: Configuration, connections and services of this rank.
        module: The backbone.
        records: Receives the image rows of the slots.
        gradients: Sends the gradients of these rows.
    """

    def __init__(
        self,
        context: RankContext,
        module: Module,
        *,
        records: RecordReceiver,
        gradients: RecordSender,
    ) -> None:
        self.module = module
        self._context = context
        self._records = records
        self._gradients = gradients
        self._delays = Delays(context.config, f"backbone.{context.world.rank}")
        # A run that follows a log measures, too: sums over ranks of vectors of another length could
        # be rounded in another way.
        flow = context.config.flow
        self._measures = flow.correct or flow.corrections is not None
        self._sends_gradients = context.config.flow.mode != "frozen"
        self._texts: dict[int, CompactText] = {}

    def read(self, plan: StepPlan) -> None:
        """Take the texts of a step."""
        with self._context.activity.account.doing("read"):
            self._texts = take_texts(self._context.store, plan, self._context.world.rank)

    def slots(self, plan: StepPlan) -> StepSums:
        """Forward and backward of the slots of a step, after `read`.

        The sums of the gradients over the ranks start during the last backward.
        """
        loss_sum, num_targets, num_skipped = 0.0, 0, 0
        ages = [0.0] * len(plan.items)
        slots = list(plan.documents_of(self._context.world.rank))
        account = self._context.activity.account
        seconds = [0.0] * (len(plan.documents) * plan.slots if self._measures else 0)
        for slot, documents in slots:
            self._delays.pause()
            before = account.spent("backbone")
            if slot == slots[-1][0]:
                self.module.announce_last_backward()
            loss, targets, skipped = self._slot(plan, slot, documents, self._texts[slot], ages)
            loss_sum += loss
            num_targets += targets
            num_skipped += skipped
            if self._measures:
                place = self._context.world.rank * plan.slots + slot
                seconds[place] = account.spent("backbone") - before
        self.module.start_sums()
        return StepSums(
            loss_sum=loss_sum,
            num_targets=num_targets,
            num_skipped=num_skipped,
            ages=ages,
            slot_seconds=seconds,
        )

    def evaluate(self, plan: StepPlan) -> StepSums:
        """Loss of the slots of a batch of an evaluation, after `read`."""
        loss_sum, num_targets, num_skipped = 0.0, 0, 0
        with inference(self.module.module):
            for slot, documents in plan.documents_of(self._context.world.rank):
                self._delays.pause()
                features, skipped, _ = self._gather(plan, slot)
                out = self._loss(documents, self._texts[slot], features, skipped)
                loss_sum += float(out.loss_sum)
                num_targets += out.num_targets
                num_skipped += sum(doc.sample in skipped for doc in documents)
        return StepSums(
            loss_sum=loss_sum, num_targets=num_targets, num_skipped=num_skipped, ages=()
        )

    def answers(
        self, plan: StepPlan, *, max_tokens: int, end_ids: set[int]
    ) -> dict[int, list[int]]:
        """Greedy answers to the prompts of a batch, after `read`: token ids by sample."""
        context = self._context
        found: dict[int, list[int]] = {}
        with inference(self.module.module):
            for slot, documents in plan.documents_of(context.world.rank):
                features, _, _ = self._gather(plan, slot)
                ids = greedy_answers(
                    context.family,
                    self.module.module,
                    documents,
                    self._texts[slot],
                    features,
                    device=context.world.device,
                    max_tokens=max_tokens,
                    end_ids=end_ids,
                )
                found |= {doc.sample: own for doc, own in zip(documents, ids, strict=True)}
        return found

    def resize(self, sizes: SpaceNeed) -> None:
        """Set the slabs of the segment for gradients."""
        if sizes.gradient != self._gradients.slabs:
            self._gradients.reserve(sizes.gradient)

    def drain(self) -> None:
        """Wait until all copies to and from the pool are complete."""
        self._records.drain()
        self._gradients.drain()

    def edges(self) -> list[Explanation]:
        """Edges of the gradients and of the activations."""
        return self._gradients.edges() + self._records.edges()

    def _slot(
        self,
        plan: StepPlan,
        slot: int,
        documents: Sequence[Document],
        text: CompactText,
        ages: list[float],
    ) -> tuple[float, int, int]:
        """Forward and backward of one microbatch.

        Returns:
            Loss sum, number of target tokens, and number of skipped documents.
        """
        context = self._context
        seed_dropout(context.config.train.seed, plan.step, context.world.rank, slot)
        features, skipped, versions = self._gather(plan, slot)
        for number, version in versions.items():
            ages[number] = float(plan.step - version)
        if features is not None:
            features.requires_grad_(self._sends_gradients)
        out = self._loss(documents, text, features, skipped)
        if out.loss_sum.requires_grad:
            (out.loss_sum / plan.num_targets).backward()
        if features is not None and self._sends_gradients:
            grad = features.grad if features.grad is not None else torch.zeros_like(features)
            for item in plan.items_for(context.world.rank, slot):
                self._gradients.send(
                    grad[item.row : item.row + item.num_rows],
                    reader=item.encoder,
                    step=plan.step,
                    item=item.index,
                    version=plan.step,
                )
        num_skipped = sum(doc.sample in skipped for doc in documents)
        return float(out.loss_sum.detach()), out.num_targets, num_skipped

    def _loss(
        self,
        documents: Sequence[Document],
        text: CompactText,
        features: torch.Tensor | None,
        skipped: set[int],
    ) -> LossOutput:
        """Loss of one microbatch."""
        context = self._context
        batch = packed_batch(
            context.family, documents, text, device=context.world.device, skipped=skipped
        )
        return context.family.loss(self.module.module, batch, features)

    def _gather(
        self, plan: StepPlan, slot: int
    ) -> tuple[torch.Tensor | None, set[int], dict[int, int]]:
        """Gather the image rows of a slot.

        Returns:
            Rows, or None if the slot has no image; the samples with a skipped image; and the
            version of each item.
        """
        context = self._context
        items = plan.items_for(context.world.rank, slot)
        if not items:
            return None, set(), {}
        rows = sum(item.num_rows for item in items)
        features = torch.empty(
            (rows, context.family.row_width), dtype=context.dtype, device=context.world.device
        )
        skipped: set[int] = set()
        versions: dict[int, int] = {}
        for item in items:
            out = features[item.row : item.row + item.num_rows]
            key = self._records.gather(out, step=plan.step, item=item.index)
            versions[item.index] = key.version
            if key.skipped:
                skipped |= self._skipped(plan.step, item)
        return features, skipped, versions

    def _skipped(self, step: int, item: EncoderItem) -> set[int]:
        """Samples of an item with a skipped image."""
        name = f"skipped/{step}/{item.index}"
        context, store = self._context, self._context.store
        samples = store.get(name, writer=context.layout.holder("encoder", item.encoder))
        store.delete(name)
        return set(samples)

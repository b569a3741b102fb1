"""The backbone's part of a rank: receives records, computes the loss, and returns gradients."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from flowtrain.data.text import NO_TEXT, CompactText
from flowtrain.models.packed_batch import LossOutput, PackedBatch
from flowtrain.schedule import Action
from flowtrain.steps import EncoderItem, StepPlan
from flowtrain.train.planning.texts import take_texts
from flowtrain.train.ranks.answers import AnswerLimits, greedy_answers
from flowtrain.train.ranks.batch import packed_batch
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.step import dropout_of
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.records.sender import RecordSender
from flowtrain.train.state.module import ModuleState


@dataclass(kw_only=True, slots=True)
class StepSums:
    """Results of one step, on one rank or summed over the ranks."""

    loss_sum: float = 0.0
    """Sum of the losses of the target tokens."""
    num_targets: float = 0
    """Target tokens, without those of skipped samples."""
    num_skipped: float = 0
    """Skipped samples."""
    num_hits: float = 0
    """Images whose features were in the cache."""
    ages: list[float] = field(default_factory=list)
    """For each item of the plan, the age in steps of the weights that encoded it; 0 on ranks that
    do not read the item."""
    slot_seconds: list[float] = field(default_factory=list)
    """Time of forward and backward of each slot, without waits, [replica][slot] in one row; 0 for
    the slots of other replicas. Empty if costs are not corrected."""
    answers: dict[int, list[int]] = field(default_factory=dict)
    """Answers of an evaluation, token ids by sample."""
    is_abandoned: bool = False
    """Whether rows are missing, as no encoder rank is there: nothing of the step may be used."""


@dataclass(slots=True)
class _Slot:
    """A slot between the first of its records and its backward."""

    features: torch.Tensor | None = None
    """Its image rows, if it has images."""
    skipped: set[int] = field(default_factory=set)
    """Samples with a skipped image."""
    loss: LossOutput | None = None
    num_skipped: int = 0


class BackbonePart:
    """Executes the actions of the backbone.

    Args:
        context: Connections and services of this rank.
        module: The backbone.
        receiver: Receives the image rows of the slots.
        sender: Sends the gradients of these rows.
        meets: Whether each pass takes all ranks of the backbone.
        answers: When answers to prompts end; None if there are none.

    Attributes:
        sums: Results of the step, or of the batch of an evaluation, whose texts were read last.
    """

    def __init__(
        self,
        context: RankContext,
        module: ModuleState,
        *,
        receiver: RecordReceiver,
        sender: RecordSender,
        meets: bool,
        answers: AnswerLimits | None,
    ) -> None:
        self.module = module
        self.sums = StepSums()
        self._context = context
        self.receiver = receiver
        self.sender = sender
        # A run that follows a log measures, too: sums over ranks of vectors of another length could
        # be rounded in another way.
        flow = context.flow
        self._measures = flow.correct or flow.corrections is not None
        self._sends_gradients = flow.mode != "frozen"
        self._meets = meets
        self._answers = answers
        self._texts: dict[int, CompactText] = {}
        self._slots: dict[tuple[int, int], _Slot] = {}
        self._returned: dict[tuple[int, int], torch.Tensor] = {}
        self._losses: list[torch.Tensor] = []

    def load(self, plan: StepPlan, _: Action) -> None:
        """Take the texts of a step."""
        self._texts = take_texts(self._context.store, plan, self._context.world.replica)
        self.sums = StepSums(ages=[0.0] * len(plan.items))
        self._losses.clear()
        if self._measures and plan.kind == "train":
            self.sums.slot_seconds = [0.0] * (len(plan.documents) * plan.slots)

    def get(self, plan: StepPlan, action: Action) -> None:
        """Receive the rows of an item into those of its slot."""
        context, item = self._context, plan.items[action.index or 0]
        slot = self._slots.setdefault((plan.step, item.slot), _Slot())
        if slot.features is None:
            rows = sum(i.num_rows for i in plan.items_for(context.world.replica, item.slot))
            slot.features = torch.empty(
                (rows, context.family.row_width), dtype=context.dtype, device=context.world.device
            )
        out = slot.features[item.row : item.row + item.num_rows]
        key = self.receiver.gather(out, step=plan.step, item=item.index)
        if key is None:
            self.sums.is_abandoned = True
            return
        self.sums.ages[item.index] = float(plan.step - key.version)
        self.sums.num_hits += key.hits
        if key.skipped:
            slot.skipped |= self._skipped(plan.step, item)

    def forward(self, plan: StepPlan, action: Action) -> None:
        """Loss of a slot, or the answers to its prompts."""
        assert action.index is not None
        context, number = self._context, action.index
        replica = context.world.replica
        slot = self._slots.pop((plan.step, number), None) or _Slot()
        documents = plan.documents[replica][number]
        text = self._texts[number] if documents else NO_TEXT
        if plan.kind == "answer":
            assert self._answers is not None
            answers = greedy_answers(
                context.family,
                self.module.module,
                documents,
                text,
                slot.features,
                device=context.world.device,
                limits=self._answers,
                goes_on=self._any_goes_on,
            )
            self.sums.answers |= {d.sample: ids for d, ids in zip(documents, answers, strict=True)}
            return
        before = time.perf_counter()
        trains = plan.kind == "train"
        if trains and slot.features is not None:
            slot.features.requires_grad_(self._sends_gradients)
        batch = packed_batch(
            context.family, documents, text, device=context.world.device, skipped=slot.skipped
        )
        with dropout_of(context.world.device, context.seed, plan.step, replica, number):
            slot.loss = self._loss(plan, batch, slot.features)
        slot.num_skipped = sum(doc.sample in slot.skipped for doc in documents)
        if trains:
            self._slots[plan.step, number] = slot
        else:
            self._add(slot.loss, slot.num_skipped)
            self._settle()
        self._measured(plan, number, before)

    def backward(self, plan: StepPlan, action: Action) -> None:
        """Backward of a slot; the sums over the ranks start during the last one."""
        assert action.index is not None
        before = time.perf_counter()
        if action.last:
            self.module.parallel.last_backward()
        slot = self._slots.pop((plan.step, action.index))
        assert slot.loss is not None
        self._backward(plan, slot.loss)
        if slot.features is not None and self._sends_gradients:
            grad = self._gradient(slot.features)
            for item in plan.items_for(self._context.world.replica, action.index):
                rows = grad[item.row : item.row + item.num_rows]
                self._returned[plan.step, item.index] = rows
        self._add(slot.loss, slot.num_skipped)
        if action.last or self._measures:
            self._settle()
        self._measured(plan, action.index, before)

    def _loss(self, _plan: StepPlan, batch: PackedBatch, rows: torch.Tensor | None) -> LossOutput:
        """Loss of a slot."""
        loss: LossOutput = self.module.module(batch, rows)
        return loss

    def _backward(self, plan: StepPlan, loss: LossOutput) -> None:
        """Backward of a slot."""
        if loss.loss_sum.requires_grad:
            (loss.loss_sum / plan.num_targets).backward()

    def _gradient(self, features: torch.Tensor) -> torch.Tensor:
        """The gradient of a slot's image rows, as those of all ranks add up to that of the step."""
        return torch.zeros_like(features) if features.grad is None else features.grad

    def put(self, plan: StepPlan, action: Action) -> None:
        """Send the gradient of an item's rows."""
        item = plan.items[action.index or 0]
        self.sender.send(
            self._returned.pop((plan.step, item.index)),
            reader=item.encoder,
            step=plan.step,
            item=item.index,
            version=plan.step,
        )

    def reduce(self, _plan: StepPlan, _: Action) -> None:
        """Start the sums of the gradients over the ranks that have not started."""
        self.module.parallel.reduce()

    def _any_goes_on(self, mine: bool) -> bool:
        """Whether a rank has an answer that has not ended, where all ranks run each pass."""
        if not self._meets:
            return mine
        return self._context.world.sum([float(mine)])[0] > 0

    def _add(self, loss: LossOutput, num_skipped: int) -> None:
        self._losses.append(loss.loss_sum.detach())
        self.sums.num_targets += loss.num_targets
        self.sums.num_skipped += num_skipped

    def _settle(self) -> None:
        """Add the losses of the slots so far; on a device, the host waits for them."""
        for loss in self._losses:
            self.sums.loss_sum += float(loss)
        self._losses.clear()

    def _measured(self, plan: StepPlan, slot: int, before: float) -> None:
        if self.sums.slot_seconds:
            place = self._context.world.replica * plan.slots + slot
            self.sums.slot_seconds[place] += time.perf_counter() - before

    def _skipped(self, step: int, item: EncoderItem) -> set[int]:
        """Samples of an item with a skipped image."""
        name = f"skipped/{step}/{item.index}"
        context, store = self._context, self._context.store
        samples = store.get(name, writer=context.layout.holder("encoder", item.encoder))
        store.delete(name)
        return set(samples)

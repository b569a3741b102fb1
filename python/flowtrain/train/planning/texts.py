"""Tokens of a planned step, on their way from the planner to the ranks that train on them.

The planner has tokenized each sample to plan its step; no other process does so again.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowtrain.data.text import CompactText, from_bytes, joined, split
from flowtrain.steps import StepPlan
from flowtrain.train.control.store import JobStore


def put_texts(store: JobStore, plan: StepPlan, texts: Mapping[int, CompactText]) -> None:
    """Publish the texts of each data replica of the backbone, before the plan is published.

    Args:
        store: The job's store.
        plan: The step.
        texts: The text of each of its samples.
    """
    for reader in range(len(plan.documents)):
        documents = [doc for _, slot in plan.documents_of(reader) for doc in slot]
        text = joined([texts[doc.sample] for doc in documents])
        store.put_bytes(_key(plan.step, reader), text.tobytes())


def take_texts(store: JobStore, plan: StepPlan, reader: int) -> dict[int, CompactText]:
    """Texts of one reader, by slot, without empty slots; each reader takes its own once."""
    text = from_bytes(store.take_bytes(_key(plan.step, reader), writer="the planner"))
    slots = list(plan.documents_of(reader))
    lengths = [sum(doc.num_tokens for doc in documents) for _, documents in slots]
    return {slot: own for (slot, _), own in zip(slots, split(text, lengths), strict=True)}


def _key(step: int, reader: int) -> str:
    return f"text/{step}/{reader}"

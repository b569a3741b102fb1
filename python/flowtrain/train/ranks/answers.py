"""Greedy answers to packed prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from flowtrain.data.text import NO_TEXT, CompactText, joined, split, with_tokens
from flowtrain.models.family import Family
from flowtrain.steps import Document
from flowtrain.train.ranks.batch import packed_batch


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerLimits:
    """When an answer ends."""

    max_tokens: int
    """Maximum tokens of an answer."""
    end_ids: Collection[int]
    """Tokens that end an answer."""


def greedy_answers(
    family: Family,
    backbone: torch.nn.Module,
    documents: Sequence[Document],
    text: CompactText,
    rows: torch.Tensor | None,
    *,
    device: torch.device,
    limits: AnswerLimits,
    goes_on: Callable[[bool], bool],
) -> list[list[int]]:
    """Append the most likely token to each prompt until each answer has ended.

    Every token takes a forward pass over all prompts: a cache of keys and values would need code
    for each family, and a few answers to look at are worth no more.

    Args:
        family: Family of the model.
        backbone: The side `backbone` of the model.
        documents: The prompts.
        text: Their tokens, side by side.
        rows: Rows of their images in order, or None if there is no image.
        device: Device of the model.
        limits: When an answer ends.
        goes_on: Told whether an answer has not ended; returns whether another pass is to run.

    Returns:
        Token ids of each answer, with the token that ends it.
    """
    prompts = split(text, [document.num_tokens for document in documents])
    answers: list[list[int]] = [[] for _ in documents]
    ended = [False] * len(documents)
    for _ in range(limits.max_tokens):
        grown = [
            replace(document, num_tokens=document.num_tokens + len(answer))
            for document, answer in zip(documents, answers, strict=True)
        ]
        texts = [with_tokens(*pair) for pair in zip(prompts, answers, strict=True)]
        text = joined(texts) if texts else NO_TEXT
        batch = packed_batch(family, grown, text, device=device)
        tokens = backbone(batch, rows, answer=True).tolist()
        for number, token in enumerate(tokens[: len(documents)]):
            if not ended[number]:
                answers[number].append(token)
                ended[number] = token in limits.end_ids
        if not goes_on(not all(ended)):
            break
    return answers

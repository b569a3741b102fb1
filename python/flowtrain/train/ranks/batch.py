"""One microbatch, as the backbone takes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from flowtrain.data.text import CompactText, expand
from flowtrain.models.family import Family
from flowtrain.models.packed_batch import PackedBatch, pack
from flowtrain.steps import Document


def empty_batch(family: Family, *, device: torch.device) -> PackedBatch:
    """Two tokens without targets, for a rank that must run a pass because others run one."""
    lengths = [2]
    token = 0 if family.image_id != 0 else 1
    return pack(
        input_ids=torch.full(lengths, token),
        labels=torch.full(lengths, -100),
        position_ids=family.position_ids(torch.zeros(2, dtype=torch.long), [], lengths),
        grids=[],
        doc_lengths=lengths,
        visual_ids=family.visual_ids,
        device=device,
    )


def packed_batch(
    family: Family,
    documents: Sequence[Document],
    text: CompactText,
    *,
    device: torch.device,
    skipped: Collection[int] = (),
) -> PackedBatch:
    """Pack documents into one row; the positions of each start at 0.

    Without documents it is `empty_batch`.

    Args:
        family: Family of the model, for positions.
        documents: The documents.
        text: Tokens of the documents, side by side.
        device: Device of the result.
        skipped: Samples without targets, since an image of theirs was skipped.
    """
    if not documents:
        return empty_batch(family, device=device)
    tokens = expand(text)
    end = 0
    for document in documents:
        start, end = end, end + document.num_tokens
        if document.sample in skipped:
            tokens.labels[start:end] = -100
    grids = [grid for doc in documents for grid in doc.grids]
    doc_lengths = [doc.num_tokens for doc in documents]
    positions = family.position_ids(
        torch.from_numpy(tokens.mm_token_type_ids),
        grids,
        doc_lengths,
        [second for doc in documents for second in doc.seconds or (0.0,) * len(doc.grids)],
    )
    return pack(
        input_ids=torch.from_numpy(tokens.input_ids),
        labels=torch.from_numpy(tokens.labels),
        position_ids=positions,
        grids=grids,
        doc_lengths=doc_lengths,
        visual_ids=family.visual_ids,
        device=device,
    )

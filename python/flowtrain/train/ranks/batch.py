"""One microbatch, as the backbone takes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from flowtrain.data.text import SampleText
from flowtrain.models.adapter import PackedBatch, VLMAdapter
from flowtrain.steps import Document


def packed_batch(
    adapter: VLMAdapter,
    documents: Sequence[Document],
    texts: Sequence[SampleText],
    *,
    device: torch.device,
    skipped: Collection[int] = (),
) -> PackedBatch:
    """Pack documents into one row; the positions of each start at 0.

    Args:
        adapter: Adapter of the model, for positions.
        documents: The documents.
        texts: Tokens of each document.
        device: Device of the result.
        skipped: Samples without targets, since an image of theirs was skipped.
    """
    labels = [
        np.full_like(text.labels, -100) if doc.sample in skipped else text.labels
        for doc, text in zip(documents, texts, strict=True)
    ]
    input_ids = torch.from_numpy(np.concatenate([t.input_ids for t in texts]))
    types = torch.from_numpy(np.concatenate([t.mm_token_type_ids for t in texts]))
    grids = [grid for doc in documents for grid in doc.grids]
    doc_lengths = [doc.num_tokens for doc in documents]
    positions = adapter.position_ids(
        input_ids,
        types,
        torch.tensor(grids, dtype=torch.long).reshape(-1, 3),
        doc_lengths=doc_lengths,
    )
    return PackedBatch(
        input_ids=input_ids.to(device),
        labels=torch.from_numpy(np.concatenate(labels)).to(device),
        position_ids=positions.to(device),
        doc_lengths=doc_lengths,
    )

"""Multi-axis rotary positions of Qwen-VL models, for packed documents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from flowtrain.cost.flops import Grid
from flowtrain.models.errors import ModelError


def mrope_positions(
    mm_token_type_ids: torch.Tensor,
    grids: Sequence[Grid],
    doc_lengths: Sequence[int],
    *,
    merge: int,
    family: str,
    steps: Sequence[float] = (),
) -> torch.Tensor:
    """Positions of packed documents, as `get_rope_index` of transformers makes for each document.

    Args:
        mm_token_type_ids: 0 for text, 1 for image tokens, 2 for video tokens, shape [tokens], on
            the host.
        grids: Frames, height and width in patches of each run of image or video tokens.
        doc_lengths: Tokens of each document, none of them empty.
        merge: Rows and columns of a block of patches, which make one token.
        family: Name of the family, for messages.
        steps: Temporal positions of a frame in each grid, rounded down together; empty means 1.

    Returns:
        Text, temporal, height and width positions, shape [4, tokens].

    Raises:
        ModelError: The tokens are not those of the grids.
    """
    types = mm_token_type_ids.numpy()
    lengths = np.array(doc_lengths)
    ends = lengths.cumsum()
    starts = ends - lengths
    is_image = types > 0
    # A run ends where its tokens or its document end.
    first, last = is_image.copy(), is_image.copy()
    changes = types[1:] != types[:-1]
    first[1:] &= changes
    last[:-1] &= changes
    first[starts], last[ends - 1] = is_image[starts], is_image[ends - 1]
    image_at = np.flatnonzero(first)
    runs = np.flatnonzero(last) + 1 - image_at
    sizes = np.array(grids, dtype=np.int64).reshape(-1, 3)
    frames, rows, columns = (sizes // [1, merge, merge]).T
    tokens = frames * rows * columns
    if not np.array_equal(runs, tokens):
        raise ModelError(
            f"{family}: the tokens have runs of {runs.tolist()} visual tokens, but the grids "
            f"make {tokens.tolist()}; tokenize with the processor that made the grids"
        )
    # Text continues from the largest position before it, so that an image of n tokens moves
    # the text after it by max(rows, columns) - n.
    moved = np.zeros(len(types) + 1, dtype=np.int64)
    moved[image_at + tokens] = np.maximum(rows, columns) - tokens
    moved = moved.cumsum()[:-1]
    out = np.empty((4, len(types)), dtype=np.int64)
    out[0] = np.arange(len(types)) - starts.repeat(lengths)
    out[1:] = out[0] + moved - moved[starts].repeat(lengths)
    # Image tokens have grid positions, which start at that of the first.
    row, column = rows.repeat(tokens), columns.repeat(tokens)
    number = np.arange(len(row)) - (tokens.cumsum() - tokens).repeat(tokens)
    frame = number // column // row
    if len(steps):
        # As torch, which multiplies in float32.
        frame = (
            frame.astype(np.float32) * np.array(steps, dtype=np.float32).repeat(tokens)
        ).astype(np.int64)
    axes = np.stack([frame, number // column % row, number % column])
    out[1:, is_image] += axes - number
    return torch.from_numpy(out)


def patch_positions(grids: torch.Tensor, merge: int) -> torch.Tensor:
    """Row and column of each patch in its frame, in the order of patches, shape [patches, 2].

    Args:
        grids: Frames, height and width of each image in patches, shape [images, 3].
        merge: Rows and columns of a block of patches, which make one token. Patches are in order
            block by block.
    """
    _, rows, columns = grids.unbind(1)
    per_frame, of_image = rows * columns, grids.prod(1)
    first = (of_image.cumsum(0) - of_image).repeat_interleave(of_image)
    within = (torch.arange(len(first)) - first) % per_frame.repeat_interleave(of_image)
    block, inner = within // merge**2, within % merge**2
    blocks = (columns // merge).repeat_interleave(of_image)
    return torch.stack(
        [block // blocks * merge + inner // merge, block % blocks * merge + inner % merge], dim=-1
    )

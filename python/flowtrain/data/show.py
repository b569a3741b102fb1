"""Tokens, labels, grids and cost of samples, for `flowtrain data show`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from flowtrain.config.schema import RunConfig
from flowtrain.data.samples import SampleReader
from flowtrain.data.text import CompactText, expand

if TYPE_CHECKING:
    from flowtrain.models.family import Family


def show_samples(config: RunConfig, samples: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield text, tokens, labels, grids and cost of each sample.

    The text is in pieces, each with whether it is trained.

    Args:
        config: The run whose model and data are used.
        samples: Sample numbers, counted from 0 without blank lines.

    Raises:
        DataError: A sample does not exist, or cannot be used.
    """
    from flowtrain.models.registry import family_for

    reader = SampleReader(config.model.folder, config.data, config.train.microbatch_tokens)
    family = family_for(config.model.folder)
    for sample in samples:
        yield _show(reader, family, sample)


def _pieces(text: CompactText, decode: Callable[[list[int]], str]) -> list[tuple[str, bool]]:
    """Decoded pieces of a text, and whether each is trained."""
    found = []
    for (trained, kind), group in groupby(text.tolist(), key=itemgetter(2, 3)):
        entries = [*group]
        if kind:
            name = "image" if kind == 1 else "video"
            piece = "".join(f"<{name}: {count} tokens>" for _, count, *_ in entries)
        else:
            piece = decode([token for token, *_ in entries])
        found.append((piece, trained))
    return found


def _show(reader: SampleReader, family: Family, sample: int) -> dict[str, Any]:
    meta, entries = reader.meta_and_text(sample)
    text = expand(entries)
    flops = family.sample_flops(meta.num_tokens, meta.grids, num_targets=meta.num_targets)
    return {
        "index": sample,
        "where": reader.where(sample),
        "fit": meta.fit,
        "text": _pieces(entries, reader.decode),
        "input_ids": text.input_ids.tolist(),
        "labels": text.labels.tolist(),
        "grids": [list(grid) for grid in meta.grids],
        "tokens": {
            "images": list(meta.image_lengths),
            "all": meta.num_tokens,
            "targets": meta.num_targets,
        },
        "flops": {
            "encoder": flops.encoder,
            "projector": flops.projector,
            "backbone": flops.backbone,
        },
    }

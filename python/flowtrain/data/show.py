"""Tokens, labels, grids and cost of samples, for `flowtrain data show`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flowtrain.config.schema import RunConfig
from flowtrain.data.samples import SampleReader
from flowtrain.data.text import expand

if TYPE_CHECKING:
    from flowtrain.models.family import Family


def show_samples(config: RunConfig, samples: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield tokens, labels, grids and cost of each sample.

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


def _show(reader: SampleReader, family: Family, sample: int) -> dict[str, Any]:
    meta, entries = reader.meta_and_text(sample)
    text = expand(entries)
    flops = family.sample_flops(meta.num_tokens, meta.grids, num_targets=meta.num_targets)
    return {
        "index": sample,
        "where": reader.where(sample),
        "fit": meta.fit,
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

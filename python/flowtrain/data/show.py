"""What samples become, for people and for other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowtrain.config.schema import RunConfig
from flowtrain.cost.flops import sample_flops
from flowtrain.data.samples import SampleReader


def show_samples(config: RunConfig, samples: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Tokens, labels, grids and cost of samples, one after the other.

    Args:
        config: The run whose model and data are used.
        samples: Numbers of the samples, from 0: lines of the data file, without blank ones.

    Raises:
        DataError: There is no such sample, or it cannot be used.
    """
    from transformers import AutoConfig

    reader = SampleReader(config.model.folder, config.data, config.train.microbatch_tokens)
    model = AutoConfig.from_pretrained(config.model.folder)
    for sample in samples:
        yield _show(reader, model, sample)


def _show(reader: SampleReader, model: Any, sample: int) -> dict[str, Any]:
    meta = reader.meta(sample)
    text = reader.text(sample, meta.num_tokens, meta.grids)
    flops = sample_flops(model, meta.num_tokens, meta.grids, num_targets=meta.num_targets)
    return {
        "index": sample,
        "fit": meta.fit,
        "input_ids": text.input_ids.tolist(),
        "labels": text.labels.tolist(),
        "image_grid_thw": [list(grid) for grid in meta.grids],
        "tokens": {
            "encoder": sum(t * h * w for t, h, w in meta.grids),
            "projector": sum(meta.image_lengths),
            "backbone": meta.num_tokens,
            "targets": meta.num_targets,
        },
        "flops": {
            "encoder": flops.encoder,
            "projector": flops.projector,
            "backbone": flops.backbone,
        },
    }

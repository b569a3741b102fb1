"""What a sample becomes, for people and for other programs."""

from __future__ import annotations

from typing import Any

from flowtrain.config.schema import RunConfig
from flowtrain.cost.flops import sample_flops
from flowtrain.data.samples import SampleReader


def show_sample(config: RunConfig, line: int) -> dict[str, Any]:
    """Tokens, labels, grids and cost of one sample.

    Args:
        config: The run whose model and data are used.
        line: Line of the data file, from 0.
    """
    from transformers import AutoConfig

    reader = SampleReader(config.model.folder, config.data, config.train.microbatch_tokens)
    meta, text = reader.meta(line), reader.text(line)
    flops = sample_flops(
        AutoConfig.from_pretrained(config.model.folder),
        meta.num_tokens,
        meta.grids,
        num_targets=meta.num_targets,
    )
    return {
        "index": line,
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

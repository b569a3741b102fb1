"""How many images of a run will have their features in its cache."""

from __future__ import annotations

from pathlib import Path

from flowtrain.cache import CacheFolder
from flowtrain.config.schema import RunConfig
from flowtrain.workloads import Workload


def expected_hits(config: RunConfig, workload: Workload, *, samples: int) -> float:
    """Expected share of the images of a run whose features are stored when they are read.

    After the first epoch these are all; in the first one those that the context used last has,
    which is taken for that of the run. `flow.cache.max_bytes` is taken to hold all.

    Args:
        config: The run.
        workload: Samples of its data, or some of them.
        samples: Samples of its data; 0 for a stream, of which no number is known.

    Returns:
        A share from 0 to 1; 0 without a cache.
    """
    if config.flow.cache.path is None:
        return 0.0
    train = config.train
    drawn = train.epochs * samples if train.epochs else train.steps * train.global_batch
    first_share = min(1.0, samples / drawn) if samples and drawn else 1.0
    images = samples * _images_of_sample(workload)
    known = min(1.0, _stored(config.flow.cache.path) / images) if images else 0.0
    return 1.0 - first_share * (1.0 - known)


def words_of(hits: float) -> str:
    """Hits as what an estimate also rests on; empty without any."""
    return f" with {hits:.0%} of the features from flow.cache" if hits else ""


def _images_of_sample(workload: Workload) -> float:
    """Images of a sample in the mean; one with visual tokens has one, if no number is known."""
    images = workload.visual_tokens > 0 if workload.images is None else workload.images
    return float(images.mean())


def _stored(path: Path) -> int:
    """Features that the context of a cache has which was used last."""
    contexts = CacheFolder.existing(path).contexts() if CacheFolder.is_in(path) else []
    return contexts[0].entries if contexts else 0

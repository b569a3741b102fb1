"""The cache of features of a rank, as the configuration of its run sets it."""

from __future__ import annotations

from functools import partial

from flowtrain.cache import CacheFolder
from flowtrain.config.schema import RunConfig
from flowtrain.models.dropout import check_image_dropout
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.feature_context import feature_context
from flowtrain.train.ranks.features import FeatureCache
from flowtrain.train.state.module import ModuleState


def feature_cache(
    config: RunConfig, context: RankContext, encoder: ModuleState
) -> FeatureCache | None:
    """The cache of features of a rank with the encoder; None if the run has none.

    Raises:
        ConfigError: The tower of the model has dropout.
        CacheError: Its folder cannot be used.
    """
    cache = config.flow.cache
    if cache.path is None:
        return None
    check_image_dropout(context.family.config, cache.path)
    return FeatureCache(
        CacheFolder(cache.path, cache.max_bytes),
        partial(
            feature_context,
            context.family,
            encoder.module,
            config.model.folder,
            dtype=context.dtype,
            row_dtype=context.pool_dtype,
            device=context.world.device,
            compiled=config.model.compile,
        ),
        width=context.family.row_width,
        always=cache.fetch == "always",
        reports=context.world.label.endswith(".0"),
        dtype=context.pool_dtype,
        device=context.world.device,
    )

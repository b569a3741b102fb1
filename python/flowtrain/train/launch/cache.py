"""Whether a run can use its cache of features, and what its ranks have told about it."""

from __future__ import annotations

from pathlib import Path

from flowtrain.cache import TOLD, CacheFolder
from flowtrain.config.cache import CacheConfig
from flowtrain.models.dropout import check_image_dropout
from flowtrain.models.family import Family


def check_cache(cache: CacheConfig, family: Family) -> None:
    """Refuse a cache that the ranks could not use.

    Args:
        cache: Section `flow.cache`.
        family: Family of the model.

    Raises:
        ConfigError: The tower of the model has dropout.
        CacheError: The folder cannot be used.
    """
    if cache.path is not None:
        check_image_dropout(family.config, cache.path)
        CacheFolder(cache.path, cache.max_bytes)


def cache_lines(logs: Path) -> list[str]:
    """Lines that ranks and their workers have told about the cache, each once.

    Args:
        logs: Folder of the logs of their standard error.
    """
    lines: dict[str, None] = {}
    for path in sorted(logs.rglob("stderr.log")):
        with path.open(errors="replace") as log:
            lines.update((line.rstrip(), None) for line in log if line.startswith(TOLD))
    return list(lines)

"""Configuration of the cache of frozen features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flowtrain.config.checks import positive, require


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """Where features of frozen images are stored, and how many."""

    path: Path | None = None
    """Folder of the cache, which runs may share; null has none. An image whose features are there
    is neither decoded nor encoded. With a cache each image is encoded alone, so that its features
    do not depend on others."""
    max_bytes: int | None = None
    """Maximum bytes of the folder; null leaves a tenth of its file system free."""
    fetch: Literal["auto", "always"] = "auto"
    """`auto` times the first images, and ends the use of the cache where fetching features takes
    longer than reading, decoding and encoding the image; `always` does not."""

    def __post_init__(self) -> None:
        if self.max_bytes is not None:
            positive(flow__cache__max_bytes=self.max_bytes)
            require(
                self.path is not None,
                f"flow.cache.max_bytes={self.max_bytes} without flow.cache.path: give the folder",
            )

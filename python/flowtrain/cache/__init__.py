"""A cache of frozen features on disk, shared by processes: bytes by key, checked when read.

Without torch, and without knowledge of models: a key is 32 bytes, and what it stands for is decided
by those who use it (`flowtrain.data.content`, `flowtrain.train.ranks.features`).
"""

from flowtrain.cache.context import Context
from flowtrain.cache.errors import CacheError
from flowtrain.cache.folder import CacheFolder
from flowtrain.cache.reader import Reader
from flowtrain.cache.told import TOLD, tell_once
from flowtrain.cache.writer import Writer

__all__ = ["TOLD", "CacheError", "CacheFolder", "Context", "Reader", "Writer", "tell_once"]

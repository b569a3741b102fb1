"""Features of frozen images on disk, as a rank uses them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import torch

from flowtrain.cache import CacheFolder, Context, Writer, tell_once
from flowtrain.data.pixel_maker import StoredRows
from flowtrain.models.send import send

# Features that wait to be written. If the disk is slower than the encoder, the rest is left out: a
# run with an empty cache is as fast as one without.
_MAX_WAITING_BYTES = 1 << 28


class FeatureCache:
    """Stores and returns the features of images, each of which was encoded alone.

    It is opened by its first use, when the encoder has its weights. A thread writes, so that the
    rank waits neither for a disk nor for the end of a copy from its device.

    Args:
        cache: The cache.
        describe: Returns the context of the features.
        width: Values of a row.
        dtype: Dtype of the rows.
        device: Device on which rows are returned.
    """

    def __init__(
        self,
        cache: CacheFolder,
        describe: Callable[[], Context],
        *,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.dtype = dtype
        self._cache = cache
        self._describe = describe
        self._width = width
        self._device = device
        self._tell = tell_once()
        self._resources = ExitStack()
        self._waiting = _Waiting()
        self._thread: threading.Thread | None = None
        self._hits = self._misses = 0

    @cached_property
    def folder(self) -> str:
        """Folder of the context, for those that read it; it is in use until `close`.

        Raises:
            CacheError: It cannot be used.
        """
        context = self._describe()
        if news := self._cache.news(context):
            self._tell(news)
        return str(self._resources.enter_context(self._cache.use(context)))

    def rows(self, stored: StoredRows) -> torch.Tensor:
        """Stored rows, shape [rows, width], on the device of the rank."""
        self._hits += 1
        rows = torch.from_numpy(stored.rows).view(self.dtype).view(-1, self._width)
        return send(rows, self._device)

    def keep(self, key: bytes, rows: torch.Tensor) -> None:
        """Store the rows of an image in the background, unless too many others wait for that.

        Args:
            key: Key of the image.
            rows: Shape [rows, width], of the dtype of the cache. Nobody may change them.
        """
        self._misses += 1
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write, args=(Path(self.folder),), name="flowtrain-cache", daemon=True
            )
            self._thread.start()
        if not self._waiting.put(key, rows.detach()):
            self._tell(
                f"{self._cache.path}: it is written more slowly than images are encoded; some are "
                "left out, and are stored when they are next encoded"
            )

    def close(self) -> None:
        """Wait until all is written, and end the use of the cache."""
        if self._thread is not None:
            self._waiting.end()
            self._thread.join()
            self._thread = None
        if self._hits or self._misses:
            self._cache.count(Path(self.folder), hits=self._hits, misses=self._misses)
            self._hits = self._misses = 0
        self._resources.close()

    def _write(self, folder: Path) -> None:
        writer = Writer(self._cache, folder, self._tell)
        while (waiting := self._waiting.get()) is not None:
            key, rows = waiting
            writer.put(key, bytes_of(rows))
        writer.close()


def bytes_of(rows: torch.Tensor) -> memoryview:
    """The bytes of rows as they are stored."""
    return rows.cpu().contiguous().view(-1).view(torch.uint8).numpy().data


class _Waiting:
    """A queue of rows with a bound of their bytes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[bytes, torch.Tensor] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0

    def put(self, key: bytes, rows: torch.Tensor) -> bool:
        """Add rows; return whether there was room."""
        with self._lock:
            if self._bytes and self._bytes + rows.nbytes > _MAX_WAITING_BYTES:
                return False
            self._bytes += rows.nbytes
        self._queue.put((key, rows))
        return True

    def end(self) -> None:
        """Let `get` return None behind what waits."""
        self._queue.put(None)

    def get(self) -> tuple[bytes, torch.Tensor] | None:
        """Take rows, which no longer count."""
        found = self._queue.get()
        if found is not None:
            with self._lock:
                self._bytes -= found[1].nbytes
        return found

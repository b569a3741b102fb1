"""Features of frozen images on disk, as a rank uses them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum, auto
from functools import cached_property
from pathlib import Path

import torch

from flowtrain.cache import CacheFolder, Context, Writer, tell_once
from flowtrain.data.pixel_maker import SamplePixels, StoredRows
from flowtrain.models.send import send
from flowtrain.steps import PlannedImage
from flowtrain.train.input.prefetch import Request
from flowtrain.train.ranks.fetch_trial import FetchTrial

# Features that wait to be written. If the disk is slower than the encoder, the rest is left out: a
# run with an empty cache is as fast as one without.
_MAX_WAITING_BYTES = 1 << 28


class FeatureCache:
    """Stores and returns the features of images, each of which was encoded alone.

    It is opened by its first use, when the encoder has its weights. A thread writes, so that the
    rank waits neither for a disk nor for the end of a copy from its device. Where fetching takes
    longer than encoding, `FetchTrial` ends both fetching and storing.

    Args:
        cache: The cache.
        describe: Returns the context of the features.
        width: Values of a row.
        dtype: Dtype of the rows.
        device: Device on which rows are returned.
        always: Whether stored features are fetched in any case.
        reports: Whether this rank tells what others find as well.
    """

    def __init__(
        self,
        cache: CacheFolder,
        describe: Callable[[], Context],
        *,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        always: bool,
        reports: bool,
    ) -> None:
        self._cache = cache
        self._describe = describe
        self._width = width
        self._dtype = dtype
        self._device = device
        self._tell = tell_once()
        self._trial = FetchTrial(
            device, lambda found: self._tell(f"{cache.path}: {found}"), tells_all=reports
        )
        if always:
            self._trial.pays = True
        self._ways: dict[int, _Way] = {}
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

    def request(self, step: int, image: PlannedImage) -> Request:
        """What a data worker is asked for an image: always the same within a step."""
        if (way := self._ways.get(step)) is None:
            way = self._ways[step] = self._way()
        if way is _Way.ENCODE:
            return "pixels", image
        # Where all are stored, some have to be encoded for the trial.
        finds = way is _Way.FETCH or (image.sample + image.image) % 2 == 0
        return "features", (*image, self.folder, finds)

    def forget(self, step: int) -> None:
        """A step has ended."""
        self._ways.pop(step, None)

    def _way(self) -> _Way:
        if self._trial.pays is False:
            return _Way.ENCODE
        return _Way.TRY if self._trial.wants_encoded else _Way.FETCH

    def rows(
        self, read: SamplePixels | StoredRows, encode: Callable[[SamplePixels], torch.Tensor]
    ) -> torch.Tensor:
        """Rows of an image, shape [rows, width], on the device of the rank.

        Args:
            read: What `request` asked for.
            encode: Encodes it, if its features are not stored.
        """
        if isinstance(read, StoredRows):
            self._hits += 1
            stored = torch.from_numpy(read.rows).view(self._dtype).view(-1, self._width)
            self._trial.fetched(len(stored), read.read_s)
            return send(stored, self._device)
        if read.key is None:
            return encode(read).to(self._dtype)
        rows = self._trial.timed(lambda: encode(read), read.read_s).to(self._dtype)
        self.keep(read.key, rows)
        return rows

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


class _Way(Enum):
    """What data workers are asked for the images of a step."""

    TRY = auto()
    """For the features of every second image, as far as they are stored."""
    FETCH = auto()
    """For their features, as far as they are stored."""
    ENCODE = auto()
    """For their pixels."""


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

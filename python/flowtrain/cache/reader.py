"""Reads payloads from a context of a cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy
from numpy.typing import NDArray

from flowtrain.cache.index import Index, Place
from flowtrain.cache.told import tell_once

Payload = NDArray[numpy.uint8]


class Reader:
    """Reads payloads by their keys, also those that others append meanwhile.

    A payload is read with `pread`, never mapped: a file that is cut would end the process. It is
    returned only if its checksum is right. Not for several threads.

    Args:
        folder: Folder of the context, which need not exist yet.
        tell: Called with a line about what is damaged; by default it goes to standard error.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell or tell_once()
        self._index = Index(folder, self._tell)
        self._index.refresh()
        self._opened: dict[Path, int] = {}
        self._damaged: set[tuple[Path, int]] = set()

    def __len__(self) -> int:
        """Number of entries read so far, of twins each."""
        return len(self._index)

    def get(self, key: bytes) -> Payload | None:
        """The payload of a key, shape [bytes]; None if there is none, or only damaged ones."""
        payload = self._among_known(key)
        if payload is None and self._index.refresh():
            payload = self._among_known(key)
        return payload

    def close(self) -> None:
        """Close the files."""
        for file in self._opened.values():
            os.close(file)
        self._opened.clear()

    def _among_known(self, key: bytes) -> Payload | None:
        for place in self._index.find(key):
            if (place.path, place.offset) in self._damaged:
                continue
            payload = self._payload(place)
            if payload is not None:
                return payload
            self._damaged.add((place.path, place.offset))
            self._tell(
                f"{place.path}: the {place.bytes} bytes at {place.offset} are damaged or gone; "
                "their image is encoded again"
            )
        return None

    def _payload(self, place: Place) -> Payload | None:
        payload = numpy.empty(place.bytes, numpy.uint8)
        try:
            if (file := self._opened.get(place.path)) is None:
                file = self._opened[place.path] = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
            done = 0
            while done < place.bytes:
                count = os.preadv(file, [payload.data[done:]], place.offset + done)
                if count == 0:
                    return None
                done += count
        except OSError:  # Removed, or the disk cannot read it.
            return None
        return payload if crc32(payload.data) == place.crc else None

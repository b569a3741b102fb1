"""Content of image and video files, by which the features of an image are found again.

The digest is of the bytes of a file: one of pixels would need the decoder, which takes most of the
time of a read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from PIL import Image

from flowtrain.data.files import IMAGE, VisualFile

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file when it was read.

    Attributes:
        digest: SHA-256 of its bytes.
        file: The image or video with these bytes, or the path of a video.
        is_same: Whether the file of a path still has them.
    """

    digest: bytes
    file: VisualFile
    is_same: Callable[[], bool]


def content_of(file: VisualFile) -> Content | None:
    """Read an image or video without decoding it.

    The bytes of an image are kept, so that what is decoded is what the digest is of. Those of a
    video are not, since it may be large: its path is read again, and `is_same` compares the states.

    Returns:
        None for an image of Pillow, which has no file.

    Raises:
        OSError: The file cannot be read.
    """
    if isinstance(file.source, tuple):
        frames = [content_of(frame) for frame in file.source]
        if any(frame is None for frame in frames):
            return None
        found = [frame for frame in frames if frame is not None]
        digest = sha256(b"".join(frame.digest for frame in found)).digest()
        return Content(digest, replace(file, source=tuple(f.file for f in found)), _always)
    if isinstance(file.source, Image.Image):
        return None
    if isinstance(file.source, bytes):
        return Content(sha256(file.source).digest(), file, _always)
    with file.open() as opened:
        if file.kind is IMAGE:
            data = opened.read()
            return Content(sha256(data).digest(), replace(file, content=data), _always)
        before, hashed = _state(file.source), sha256()
        while chunk := opened.read(_CHUNK_BYTES):
            hashed.update(chunk)
    path = file.source
    return Content(hashed.digest(), file, lambda: _state(path) == before)


def _always() -> bool:
    return True


def _state(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino

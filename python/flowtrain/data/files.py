"""Images and videos of records: files on disk, encoded bytes, or images of Pillow."""

from __future__ import annotations

import base64
import io
import os
import re
import stat
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from PIL import Image

from flowtrain.data.errors import DataError, cut, shortened
from flowtrain.data.fields import either
from flowtrain.git_lfs import POINTER, is_pointer_file
from flowtrain.models.images import NO_LIMITS, PixelLimits

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_HEAD, _HEAD_BASE64 = 100, 64
"""Characters of a text in which its first characters of base64 are looked for, and their number."""
_SIGNATURES = (
    *(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*"),
    *(b"\x1aE\xdf\xa3", b"FLV\x01"),
)
"""First bytes of PNG, JPEG, GIF, WebP and AVI, BMP, TIFF, Matroska and WebM, and FLV."""
_LONGEST_PATH = 4096


class Visual(Enum):
    """A part of a message that stands for the next image or video. All other parts are text."""

    IMAGE = "image"
    VIDEO = "video"

    @property
    def mark(self) -> str:
        """The mark of the part in a text."""
        return f"<{self.value}>"

    @property
    def noun(self) -> str:
        """The kind with its article."""
        return "an image" if self is Visual.IMAGE else "a video"


IMAGE, VIDEO = Visual.IMAGE, Visual.VIDEO


@dataclass(frozen=True, slots=True)
class VisualFile:
    """An image or video of a sample.

    Attributes:
        kind: Image or video.
        source: Path of its file, the bytes of such a file, an image of Pillow, or the images that
            are the frames of a video.
        name: The path, or its place in the record, for error messages.
        limits: Limits of the pixels of this image alone.
        fps: Frames per second of a list of frames; None if its record does not say it.
        content: Bytes of the file of a path, if they were read already.
    """

    kind: Visual
    source: Path | bytes | Image.Image | tuple[VisualFile, ...]
    name: str
    limits: PixelLimits = NO_LIMITS
    fps: float | None = None
    content: bytes | None = None

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Open the file, or the bytes as a file.

        Raises:
            OSError: The file cannot be opened, or is a folder or a pipe.
        """
        assert not isinstance(self.source, Image.Image | tuple)
        content = self.source if isinstance(self.source, bytes) else self.content
        if content is not None:
            return io.BytesIO(content)
        assert isinstance(self.source, Path)
        return open(self.source, "rb", opener=_open_regular)

    def unusable(self, where: str, error: Exception) -> DataError:
        """Error that names the image or video, its line and the cause."""
        cause = cut(str(error))
        if not isinstance(error, OSError):
            cause = f"{type(error).__name__}: {cause}"
        if isinstance(error, FileNotFoundError):
            cause = "there is no such file"
        elif isinstance(self.source, Path) and is_pointer_file(self.source):
            cause = POINTER
        thing, line = ("file", "line") if isinstance(self.source, Path) else ("data", "sample")
        return DataError(
            f"{where}: {self.kind.value} {self.name}: {cause}; repair the {thing}, drop the "
            f"{line}, or set data.bad_image=skip"
        )


def as_json(value: Any) -> str:
    """A path as text, and bytes or an image as a `data:` address, for `json.dumps`.

    Raises:
        TypeError: The value is none of these.
    """
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Image.Image):
        # Upright and in RGB, since PNG holds neither every mode nor every orientation.
        from transformers.image_utils import load_image

        load_image(value).save(file := io.BytesIO(), "png", compress_level=1)
        value = file.getvalue()
    if isinstance(value, bytes | bytearray):
        return f"data:;base64,{base64.b64encode(value).decode()}"
    raise TypeError(f"the record has {shortened(value)}, which JSON cannot hold")


def visual_file(
    value: Any,
    kind: Visual,
    place: str,
    root: Path | None,
    where: str,
    limits: PixelLimits = NO_LIMITS,
) -> VisualFile:
    """An image or a video of a record.

    Args:
        value: A path, a `file:` or `data:` address, bytes, an image of Pillow, or a dictionary with
            one of these as `path`, `url` or `bytes`.
        kind: Image or video.
        place: Its number among those of its kind, from 1, and where they are if not in the record.
        root: Folder that relative paths start from; None refuses them.
        where: Data set and line or row, for error messages.
        limits: Limits of its pixels that the record gives.

    Raises:
        DataError: The value is none of these, is not on this host, or cannot be decoded.
    """
    name = f"{place} of the record"
    if isinstance(value, dict):
        # As in `datasets`: beside bytes, the path is only their name.
        if (content := value.get("bytes")) is not None:
            path = value.get("path")
            name = f"{cut(str(path))} of the record" if path else name
            return VisualFile(kind, _decoded(content, kind, name, where), name, limits)
        value = either(value, "path", "url", f"{where}: {kind.noun}") or value
    if isinstance(value, bytes | bytearray):
        return VisualFile(kind, bytes(value), name, limits)
    if isinstance(value, Image.Image) and kind is IMAGE:
        return VisualFile(kind, value, name, limits)
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str):
        raise DataError(
            f"{where}: {kind.value} {shortened(value)}; it must be a path, or the bytes of a file"
        )
    if value.startswith("data:") or _is_base64(value):
        return VisualFile(kind, _decoded(value, kind, name, where), name, limits)
    path = _path(value, kind, root, where)
    return VisualFile(kind, path, cut(str(path)), limits)


def _is_base64(text: str) -> bool:
    """Whether a text without the head of an address is an image or video in base64."""
    begin = "".join(text[:_HEAD].split())[:_HEAD_BASE64]
    if len(begin) < _HEAD_BASE64 or not _BASE64.fullmatch(begin):
        return False
    head = base64.b64decode(begin)
    # MP4 and QuickTime files have their type behind a length of four bytes.
    known = head.startswith(_SIGNATURES) or head[4:8] == b"ftyp"
    return known and _BASE64.fullmatch(text) is not None


def _decoded(content: Any, kind: Visual, name: str, where: str) -> bytes:
    """Bytes that a record has as such, or in base64 with or without the head of an address."""
    if isinstance(content, bytes | bytearray):
        return bytes(content)
    if not isinstance(content, str):
        raise DataError(f"{where}: {kind.value} {name}: bytes={shortened(content)}; give bytes")
    head, comma, text = content.rpartition(",")
    try:
        if comma and not (head.startswith("data:") and head.endswith(";base64")):
            raise ValueError(f"its head is {shortened(head)}")
        return _from_base64(text)
    except ValueError as error:
        raise DataError(
            f"{where}: {kind.value} {name}: not base64 ({error}); write it as "
            f"data:{kind.value}/TYPE;base64,TEXT, or store it as a file and give its path"
        ) from error


def _from_base64(text: str) -> bytes:
    """Bytes of a text in base64, as browsers read it.

    Raises:
        ValueError: It has other characters.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        # In lines, with the escapes of an address, or without padding.
        text = "".join(unquote(text).split())
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _path(file: str, kind: Visual, root: Path | None, where: str) -> Path:
    name = kind.value
    try:
        file.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {name} {shortened(file)}: not Unicode ({error}); correct it"
        ) from error
    if len(file) > _LONGEST_PATH:
        raise DataError(
            f"{where}: {name} {shortened(file)}: {len(file)} characters are no path; write base64 "
            f"as data:{name}/TYPE;base64,TEXT"
        )
    if file.startswith("file:///"):
        return Path(unquote(file.removeprefix("file://")))
    if "://" in file:
        raise DataError(
            f"{where}: {name} {shortened(file)} is no local path; store the {name} as a file and "
            "give its path"
        )
    if root is None and not Path(file).is_absolute():
        raise DataError(
            f"{where}: {name} {shortened(file)} is a relative path, and data.dataset has no folder "
            "for it to start from; set data.image_root, or give absolute paths"
        )
    return (root or Path()) / file


def _open_regular(path: str, flags: int) -> int:
    """Opener for `open` that refuses a pipe, which would wait for a writer."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file (a folder or a pipe, say)")
    return descriptor

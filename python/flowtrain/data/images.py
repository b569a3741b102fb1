"""Images: their size from the header alone, and their pixels.

`transformers.image_utils.load_image` reads the pixels, so that training has the same input as
other users of the model's processor:

- The orientation in EXIF or XMP metadata is applied, once, in every format.
- The alpha channel is dropped. Transparent pixels keep their colour; there is no background.
- Other modes (palette, grey, 1 bit, CMYK) are converted to RGB by Pillow's `convert`. Grey values
  of 16 or 32 bits are clipped at 255, not scaled.
- Only the first frame of an animation, or the first page of a TIFF, is read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from flowtrain.data.files import VisualFile

FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO"),
    "HEIF",  # If a package such as pillow-heif has been registered.
)
"""Formats of Pillow that are read. Others are rare, and some start programs: Ghostscript runs what
is in an EPS file."""

_ORIENTATION = ExifTags.Base.Orientation
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Modes of Pillow with 16 or 32 bits a pixel."""
_SWAPPED = (5, 6, 7, 8)
"""EXIF orientations that swap width and height."""


def upright_size(file: VisualFile, where: str) -> tuple[int, int]:
    """Height and width with the orientation applied, without decoding encoded images.

    Raises:
        DataError: The file is missing, or its header cannot be used.
    """
    if isinstance(file.source, Image.Image):
        upright = read_upright(file, where)
        return upright.height, upright.width
    with _opened(file, where) as (image, opened):
        width, height = image.size
        return (width, height) if _is_swapped(image, opened) else (height, width)


def read_upright(file: VisualFile, where: str) -> Image.Image:
    """The image in RGB, as `load_image` of transformers reads it.

    Raises:
        DataError: The file is missing, truncated, damaged or too large for Pillow.
    """
    from transformers.image_utils import load_image

    if isinstance(file.source, Image.Image):
        try:
            return load_image(file.source)
        except Exception as error:  # It may still read its file.
            raise file.unusable(where, error) from error
    with _opened(file, where) as (image, _):
        return load_image(image)


def becomes_blank(file: VisualFile, where: str) -> bool:
    """Whether `read_upright` loses most of the values of an image of 16 or 32 bits.

    It does so if most of them are above 255, or if their range is less than one step of 8 bits.

    Raises:
        DataError: The file is missing or damaged.
    """
    if isinstance(file.source, Image.Image):
        return _is_lost(file.source)
    with _opened(file, where) as (image, _):
        return _is_lost(image)


def _is_lost(image: Image.Image) -> bool:
    if image.mode not in _DEEP:
        return False
    values = np.asarray(image)
    least, most = values.min(), values.max()
    is_flat = values.dtype.kind == "f" and most < least + 2
    return bool(least < most and (is_flat or np.mean(values > 255) > 0.5))


@contextmanager
def _opened(file: VisualFile, where: str) -> Iterator[tuple[Image.Image, BinaryIO]]:
    """An image and its file, in which Pillow has a position."""
    try:
        with file.open() as opened, _identified(opened) as image:
            yield image, opened
    # Decoders raise errors of many types for damaged files.
    except Exception as error:
        raise file.unusable(where, error) from error


def _identified(file: BinaryIO) -> Image.Image:
    """An image of which Pillow has read the header.

    Raises:
        OSError: It has none of the formats; the message names its own if that is known.
    """
    Image.init()  # Reads the plugins.
    formats = [name for name in FORMATS if name in Image.OPEN]
    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError as error:
        file.seek(0)
        begin = file.read(16)
        others = (name for name in Image.OPEN if name not in FORMATS and _begins(begin, name))
        found = next(others, None)
        cause = (
            "cannot identify it as an image"
            if found is None
            else f"its first bytes are those of {found}"
        )
        raise OSError(f"{cause}; supported are {', '.join(formats)}") from error


def _begins(begin: bytes, name: str) -> bool:
    """Whether a file with these first bytes may have a format of Pillow."""
    _, accepts = Image.OPEN[name]
    try:
        return accepts is not None and accepts(begin) is True
    except (IndexError, struct.error):  # Too few bytes.
        return False


def _is_swapped(image: Image.Image, file: BinaryIO) -> bool:
    """Whether the orientation swaps width and height of the header."""
    if isinstance(image, TiffImageFile) and _ORIENTATION in image.tag_v2:
        return False  # Pillow has swapped them already.
    if image.format == "PNG" and _has_late_metadata(file):
        image.load()
    # getexif of the base class, as that of PNG would decode the image.
    return Image.Image.getexif(image).get(_ORIENTATION) in _SWAPPED


def _has_late_metadata(file: BinaryIO) -> bool:
    """Whether chunks after the pixels of a PNG may hold an orientation."""
    position = file.tell()
    file.seek(len(b"\x89PNG\r\n\x1a\n"))
    found = after_pixels = False
    while not found and len(head := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        found = after_pixels and kind in (b"eXIf", b"iTXt", b"tEXt", b"zTXt")
        after_pixels = after_pixels or kind == b"IDAT"
        file.seek(length + len(b"CRC."), os.SEEK_CUR)
    file.seek(position)
    return found

"""Image files: the size from the header alone, and the pixels when they are needed."""

from __future__ import annotations

from pathlib import Path

from PIL import ExifTags, Image, UnidentifiedImageError

from flowtrain.data.errors import DataError

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What an EXIF orientation asks for; from 5 on it swaps width and height."""


def upright_size(path: Path, where: str) -> tuple[int, int]:
    """Height and width as the image is meant to be seen, without decoding it.

    Raises:
        DataError: The file is missing, or its header is no image's.
    """
    try:
        with Image.open(path) as image:
            width, height = image.size
            return (width, height) if _orientation(image) >= 5 else (height, width)
    except (OSError, UnidentifiedImageError) as error:
        raise _unreadable(path, where, error) from error


def read_upright(path: Path, where: str) -> Image.Image:
    """The image in RGB, turned as its EXIF orientation says.

    Raises:
        DataError: The file is missing, cut short or damaged.
    """
    try:
        with Image.open(path) as image:
            turn = _TURNS.get(_orientation(image))
            upright = image if turn is None else image.transpose(turn)
            return upright.convert("RGB")
    except (OSError, UnidentifiedImageError, SyntaxError) as error:
        raise _unreadable(path, where, error) from error


def _orientation(image: Image.Image) -> int:
    """EXIF orientation from the header; PNG's own look-up would decode the whole image."""
    if image.format == "PNG":
        exif = Image.Exif()
        exif.load(image.info.get("exif", b""))
    else:
        exif = image.getexif()
    return int(exif.get(ExifTags.Base.Orientation, 1))


def _unreadable(path: Path, where: str, error: Exception) -> DataError:
    cause = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
    return DataError(f"{where}: image {path}: {cause}; mend the file or drop the line")

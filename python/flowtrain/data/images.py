"""Image files: the size from the header alone, and the pixels when they are needed."""

from __future__ import annotations

from pathlib import Path

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from flowtrain.data.errors import DataError

# Orientations of EXIF that swap width and height.
_TURNED = frozenset({5, 6, 7, 8})


def upright_size(path: Path, where: str) -> tuple[int, int]:
    """Height and width as the image is meant to be seen, without decoding it.

    Raises:
        DataError: The file is missing, or its header is no image's.
    """
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(ExifTags.Base.Orientation) in _TURNED
    except (OSError, UnidentifiedImageError) as error:
        raise _unreadable(path, where, error) from error
    return (width, height) if turned else (height, width)


def read_upright(path: Path, where: str) -> Image.Image:
    """The image in RGB, turned as its EXIF orientation says.

    Raises:
        DataError: The file is missing, cut short or damaged.
    """
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, UnidentifiedImageError, SyntaxError) as error:
        raise _unreadable(path, where, error) from error


def _unreadable(path: Path, where: str, error: Exception) -> DataError:
    cause = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
    return DataError(f"{where}: image {path}: {cause}; mend the file or drop the line")

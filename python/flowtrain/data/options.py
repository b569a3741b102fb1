"""Options of single images and videos: those of the tools that released models come with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flowtrain.data.errors import DataError, shortened
from flowtrain.data.fields import either, is_empty
from flowtrain.data.files import IMAGE, VIDEO, Visual
from flowtrain.models.images import NO_LIMITS, PixelLimits

_SIDES = ("resized_height", "resized_width")

_RATES = ("sample_fps", "fps")

OPTIONS = {IMAGE: frozenset(("min_pixels", "max_pixels", *_SIDES)), VIDEO: frozenset(_RATES)}
"""Options that are used, by kind; they have the names and meanings of `qwen_vl_utils`. Those of
videos are used for lists of frames alone."""

FIXED = {"detail": "auto"}
"""Values of further options that change nothing."""

HINTS = {IMAGE: "", VIDEO: "set data.video_fps and data.video_max_frames, or list the frames"}
"""Advice for an option that is not used, by kind."""


def joined(
    options: Mapping[str, Any], given: Mapping[str, Any], kind: Visual, where: str
) -> dict[str, Any]:
    """Options, with those of another object.

    Raises:
        DataError: An option has two values.
    """
    out = dict(options)
    for name in OPTIONS[kind] & given.keys():
        if not is_empty(value := given.get(name)) and out.setdefault(name, value) != value:
            raise DataError(
                f"{where}: {name} is {shortened(out[name])} in its part and {shortened(value)} "
                "beside its file, and one of them would be lost; remove one"
            )
    return out


def pixel_limits(options: Mapping[str, Any], where: str) -> PixelLimits:
    """Limits of an image that its options give.

    Raises:
        DataError: A value is no whole number above 0, or the resized size has only one side.
    """
    if not options:
        return NO_LIMITS
    values = {name: _whole(value, name, where) for name, value in options.items()}
    sides = [values.pop(name) for name in _SIDES if name in values]
    if len(sides) == 1:
        raise DataError(f"{where}: {' and '.join(_SIDES)} belong together; give both or none")
    return PixelLimits(**values, resized=(sides[0], sides[1]) if sides else None)


def list_rate(options: Mapping[str, Any], where: str) -> float | None:
    """Frames per second of a list of frames, if its options say it.

    Raises:
        DataError: The options say two rates, or one that is no number above 0.
    """
    rate = either(options, *_RATES, where)
    if rate is None:
        return None
    if not 0 < (number := _number(rate)) < math.inf:
        raise DataError(f"{where}: fps={shortened(rate)}; it must be a number above 0")
    return number


def _number(value: Any) -> float:
    """A number, which some tools write as a text; NaN if it is none."""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _whole(value: Any, name: str, where: str) -> int:
    number = _number(value)
    if not (0 < number < math.inf and number.is_integer()):
        raise DataError(f"{where}: {name}={shortened(value)}; it must be a whole number above 0")
    return int(number)

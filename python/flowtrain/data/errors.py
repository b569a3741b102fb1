"""Errors raised by `flowtrain.data`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from flowtrain_core import FlowTrainError

if TYPE_CHECKING:
    from flowtrain.config.data import DataConfig


_MOST_CHARACTERS = 200
# A value is one word, or stands between quotes as `repr` writes them. An apostrophe is no quote.
_LONG_VALUE = re.compile(
    rf"""(?<!\w)(["'])(?:(?!\1)[^\\]|\\.){{{_MOST_CHARACTERS - 1},}}\1(?!\w)"""
    rf"""|\S{{{_MOST_CHARACTERS + 1},}}""",
    re.DOTALL,
)


class DataError(FlowTrainError, ValueError):
    """A sample cannot be used. The message names file, line and cause.

    Args:
        message: No value within it is shown with more than 200 characters: a value of a record may
            be a whole file.
    """

    def __init__(self, message: str) -> None:
        super().__init__(bounded(message))


def no_sample_fits(data: DataConfig, samples: int, *, max_tokens: int) -> DataError:
    """Error for a run that would drop every sample of a data set.

    Args:
        data: The data set.
        samples: Its samples.
        max_tokens: `train.microbatch_tokens`.
    """
    return DataError(
        f"{data.name}: none of {samples} samples fits into "
        f"train.microbatch_tokens={max_tokens} with "
        f"data.oversize={data.oversize}; raise train.microbatch_tokens"
    )


def bounded(message: str) -> str:
    """A message with the middle of each longer value left out."""
    return _LONG_VALUE.sub(lambda found: cut(found[0]), message)


def cut(text: str) -> str:
    """A text of at most 200 characters, without the middle of a longer one."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    gap = f" ...({len(text)} characters)... "
    ends = _MOST_CHARACTERS - len(gap)
    return f"{text[: ends // 2]}{gap}{text[len(text) - ends // 2 :]}"


def shortened(value: Any) -> str:
    """`repr` of a value, of at most 63 characters, as a value may hold whole files."""
    # `repr` of megabytes would take as many.
    shown = repr(value[:61] if isinstance(value, str | bytes | bytearray) else value)
    return f"{shown[:60]}..." if len(shown) > 60 else shown

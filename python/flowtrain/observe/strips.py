"""Held-out strips with what was read, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy
from PIL import Image
from rich.console import Console
from rich.text import Text

from flowtrain.train.state.strips import ReadStrip

_MOST = 4


def show_strips(strips: Sequence[ReadStrip], console: Console) -> None:
    """Print a few strips that fit, as pictures where the console has colors, and texts."""
    drawn = console.is_terminal and not console.no_color and console.color_system is not None
    pictures = [(strip, _pixels(strip)) for strip in strips]
    fitting = [(s, pixels) for s, pixels in pictures if pixels.shape[1] <= console.width]
    for strip, pixels in fitting[:: max(1, len(fitting) // _MOST)][:_MOST]:
        if drawn:
            console.print(_picture(pixels))
        console.print(caption(strip), markup=False, highlight=False)


def caption(strip: ReadStrip) -> str:
    """What a strip says, and what was read."""
    return f"expected {strip.expected}, read {strip.read or 'nothing'}"


def _pixels(strip: ReadStrip) -> numpy.ndarray:
    image = numpy.asarray(Image.open(BytesIO(strip.png)).convert("L"))
    return image[: len(image) // 2 * 2]


def _picture(pixels: numpy.ndarray) -> Text:
    """Two rows of pixels a line: the upper one is the letter, the lower one its ground."""
    lines = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        line = Text(no_wrap=True)
        for top, bottom in zip(upper, lower, strict=True):
            line.append(
                "\N{UPPER HALF BLOCK}", f"rgb({top},{top},{top}) on rgb({bottom},{bottom},{bottom})"
            )
        lines.append(line)
    return Text("\n").join(lines)

from __future__ import annotations

from io import BytesIO, StringIO
from typing import Any

import numpy
from PIL import Image
from rich.console import Console

from flowtrain.observe.strips import show_strips
from flowtrain.train.state.strips import ReadStrip

PIXELS = numpy.array([[0, 255], [255, 0], [9, 9], [8, 8]], numpy.uint8)


def strip(pixels: numpy.ndarray, read: str) -> ReadStrip:
    png = BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return ReadStrip(png.getvalue(), "12", read)


def shown(*strips: ReadStrip, **console: Any) -> list[str]:
    out = StringIO()
    show_strips(strips, Console(file=out, width=30, **console))
    return out.getvalue().splitlines()


def test_a_terminal_shows_pixels_and_a_file_texts_alone() -> None:
    strips = strip(PIXELS, "12"), strip(PIXELS, "[red]"), strip(numpy.tile(PIXELS, 16), "too wide")
    texts = ["expected 12, read 12", "expected 12, read [red]"]
    assert shown(*strips) == texts
    terminal: dict[str, Any] = {"force_terminal": True, "color_system": "truecolor"}
    assert shown(*strips, **terminal, no_color=True) == texts
    first, second, *_ = shown(*strips, **terminal)
    assert first == (
        "\x1b[38;2;0;0;0;48;2;255;255;255m\u2580\x1b[0m\x1b[38;2;255;255;255;48;2;0;0;0m\u2580\x1b[0m"
    )
    assert second.startswith("\x1b[38;2;9;9;9;48;2;8;8;8m\u2580")
